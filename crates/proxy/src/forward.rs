//! Calls that go upstream as they are: head, message, response, status and trailers are not
//! changed.
//!
//! | call | goes to | if the connection is lost |
//! |---|---|---|
//! | reads | any member, in turn | is repeated at another member |
//! | writes | any member, in turn | is repeated if it was certainly not sent |
//! | about one member: status, hashes, ... | the connection's member | as a read or a write |
//! | MoveLeader | the leader | as a write |

use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clearlane_contention::timeline::LaneKind;
use clearlane_proto::etcdserverpb::StatusRequest;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Request, Response, Uri};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout};
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{ConnectError, Status, TimeoutExpired};
use tower_service::Service as _;

use crate::connection::ConnectionState;
use crate::status;
use crate::upstream::{Member, Upstream};

/// The number of bytes of a gRPC frame before its message.
pub(crate) const FRAME_HEAD_BYTES: usize = 5;
/// A call is repeated for at most this time.
const RETRY_TIME: Duration = Duration::from_secs(5);
/// Time that a write has left when its member is found suspect.
const WRITE_GRACE: Duration = Duration::from_secs(3);
const RETRY_DELAY: Duration = Duration::from_millis(50);
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);

/// A unary or server-streaming call that was received in full.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// The frames of the request: one message.
    pub(crate) body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Any,
    /// The member that belongs to the connection.
    OfConnection,
    Leader,
}

impl Call {
    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    fn target(&self) -> Target {
        match self.path() {
            "/etcdserverpb.Maintenance/MoveLeader" => Target::Leader,
            "/etcdserverpb.Maintenance/Status"
            | "/etcdserverpb.Maintenance/Defragment"
            | "/etcdserverpb.Maintenance/Hash"
            | "/etcdserverpb.Maintenance/HashKV"
            | "/etcdserverpb.Maintenance/Snapshot" => Target::OfConnection,
            _ => Target::Any,
        }
    }

    /// Returns true if the call may be repeated although it may have been carried out.
    fn is_read(&self) -> bool {
        self.is_streaming()
            || matches!(
                self.path(),
                "/etcdserverpb.KV/Range"
                    | "/etcdserverpb.Lease/LeaseTimeToLive"
                    | "/etcdserverpb.Lease/LeaseLeases"
                    | "/etcdserverpb.Cluster/MemberList"
                    | "/etcdserverpb.Maintenance/Status"
                    | "/etcdserverpb.Maintenance/Hash"
                    | "/etcdserverpb.Maintenance/HashKV"
                    | "/etcdserverpb.Auth/AuthStatus"
                    | "/etcdserverpb.Auth/UserGet"
                    | "/etcdserverpb.Auth/UserList"
                    | "/etcdserverpb.Auth/RoleGet"
                    | "/etcdserverpb.Auth/RoleList"
                    | "/etcdserverpb.Auth/Authenticate"
                    | "/v3electionpb.Election/Leader"
            )
    }

    /// Returns the name and the kind of the call's lane in a timeline.
    pub(crate) fn lane(&self) -> (&'static str, LaneKind) {
        match self.path() {
            "/etcdserverpb.KV/Range" => ("range", LaneKind::Read),
            "/etcdserverpb.KV/RangeStream" => ("range stream", LaneKind::Read),
            "/etcdserverpb.KV/Put" => ("put", LaneKind::Write),
            "/etcdserverpb.KV/DeleteRange" => ("delete range", LaneKind::Write),
            "/etcdserverpb.KV/Txn" => ("txn", LaneKind::Write),
            "/etcdserverpb.KV/Compact" => ("compact", LaneKind::Write),
            _ if self.is_read() => ("other read", LaneKind::Read),
            _ => ("other write", LaneKind::Write),
        }
    }

    /// Returns true if a member may rightly take long to answer.
    fn is_long(&self) -> bool {
        matches!(
            self.path(),
            "/v3lockpb.Lock/Lock"
                | "/v3electionpb.Election/Campaign"
                | "/etcdserverpb.Maintenance/Defragment"
        )
    }

    /// Returns true if the response is a stream.
    fn is_streaming(&self) -> bool {
        matches!(
            self.path(),
            "/etcdserverpb.KV/RangeStream"
                | "/etcdserverpb.Maintenance/Snapshot"
                | "/v3electionpb.Election/Observe"
        )
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::new(Full::new(self.body.clone())));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// Reads the body of a call with one request message. `message_bytes_max` limits the message.
pub(crate) async fn collect(mut body: Incoming, message_bytes_max: usize) -> Result<Bytes, Status> {
    let mut first = Bytes::new();
    let mut all: Option<BytesMut> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::cancelled("the client has left"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() {
            first = data;
        } else {
            let all = all.get_or_insert_with(|| BytesMut::from(&first[..]));
            all.extend_from_slice(&data);
        }
        let received: &[u8] = all.as_deref().unwrap_or(&first);
        let length = received.len().saturating_sub(FRAME_HEAD_BYTES).max(stated_length(received));
        if length > message_bytes_max {
            return Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({length} vs. {message_bytes_max})"
            )));
        }
    }
    Ok(all.map_or(first, BytesMut::freeze))
}

/// Returns the length of the message that a frame states. It is 0 until the frame's head is there.
fn stated_length(frame: &[u8]) -> usize {
    let head = frame.first_chunk::<FRAME_HEAD_BYTES>();
    head.map_or(0, |[_, length @ ..]| u32::from_be_bytes(*length) as usize)
}

/// Returns the message of a frame. `None` if there is not exactly one uncompressed message.
pub(crate) fn message_of(frame: &Bytes) -> Option<Bytes> {
    let [flag, length @ ..] = *frame.first_chunk::<FRAME_HEAD_BYTES>()?;
    let is_whole = u32::from_be_bytes(length) as usize == frame.len() - FRAME_HEAD_BYTES;
    (flag == 0 && is_whole).then(|| frame.slice(FRAME_HEAD_BYTES..))
}

/// Returns the frame of a message.
pub(crate) fn frame(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + length);
    frame.extend_from_slice(&[0]);
    frame.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode(&mut frame).expect("the buffer grows as needed");
    frame.freeze()
}

/// Sends a call to a member, and returns its response.
pub(crate) async fn forward(
    upstream: &Arc<Upstream>,
    call: &Call,
    connection: &ConnectionState,
) -> Response<Body> {
    match try_forward(upstream, call, connection).await {
        Ok(response) => response,
        Err(status) => status.into_http(),
    }
}

async fn try_forward(
    upstream: &Arc<Upstream>,
    call: &Call,
    connection: &ConnectionState,
) -> Result<Response<Body>, Status> {
    let deadline = Instant::now() + RETRY_TIME;
    loop {
        let member = match call.target() {
            Target::Any => upstream.pick(),
            Target::OfConnection => upstream.choose(connection.number),
            Target::Leader => leader(upstream).await,
        };
        let member = match member {
            Some(member) => member,
            None => upstream.wait_and_pick().await.ok_or_else(status::no_member)?,
        };
        let Some((channel, generation)) = member.connection_of_thread() else {
            // The connection was lost just now.
            if Instant::now() > deadline {
                return Err(status::no_member());
            }
            sleep(RETRY_DELAY).await;
            continue;
        };
        let lost = async {
            if call.is_long() {
                // It waits for other clients, or works for long: only its connection counts.
                std::future::pending::<()>().await;
            }
            loop {
                upstream.lost(&member, generation).await;
                // A write is not repeated, so it waits longer: the member may only be slow.
                if call.is_read() {
                    return;
                }
                sleep(WRITE_GRACE).await;
                if upstream.is_lost(&member) || member.generation() != generation {
                    return;
                }
            }
        };
        let sent = tokio::select! {
            sent = send(channel, call.request()) => sent,
            () = lost => Err(Failure::Unknown),
        };
        match sent {
            Ok(response) if call.is_streaming() => {
                let (upstream, member) = (Arc::clone(upstream), Arc::clone(&member));
                let lost = Box::pin(async move { upstream.lost(&member, generation).await });
                return Ok(response.map(|body| Body::new(GuardedBody { body, lost })));
            }
            Ok(response) => return Ok(response),
            Err(Failure::Deadline) => return Err(status::deadline_exceeded()),
            Err(failure) => {
                member.doubt();
                if matches!(failure, Failure::Unknown) && !call.is_read() {
                    return Err(status::connection_lost());
                }
                if Instant::now() > deadline {
                    return Err(status::no_member());
                }
                let _ = timeout(RETRY_DELAY, upstream.lost(&member, generation)).await;
            }
        }
    }
}

/// Returns true if the member has rejected the token of the call. Members send such an error in the
/// head of the response.
pub(crate) fn is_token_rejected<B>(response: &Response<B>) -> bool {
    Status::from_header_map(response.headers())
        .is_some_and(|status| status::is_token_rejection(status.message()))
}

enum Failure {
    /// The member has certainly not received the call.
    Unsent,
    /// The member may have carried out the call.
    Unknown,
    /// The deadline of the caller has passed.
    Deadline,
}

async fn send(mut channel: Channel, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let ready = std::future::poll_fn(|context| channel.poll_ready(context)).await;
    ready.map_err(|_| Failure::Unsent)?;
    channel.call(request).await.map_err(|error| {
        let mut source = error.source();
        let mut failure = Failure::Unknown;
        while let Some(cause) = source {
            if cause.is::<TimeoutExpired>() {
                failure = Failure::Deadline;
            }
            let is_canceled = cause.downcast_ref().is_some_and(hyper::Error::is_canceled);
            if is_canceled || cause.is::<ConnectError>() {
                failure = Failure::Unsent;
            }
            source = cause.source();
        }
        failure
    })
}

/// Finds the member that is the leader. Returns `None` if none says that it is.
async fn leader(upstream: &Upstream) -> Option<Arc<Member>> {
    let members = upstream.members();
    let questions = members.iter().filter_map(|member| {
        let mut client = MaintenanceClient::new(member.channel()?);
        Some(async move {
            let status = client.status(StatusRequest::default()).await.ok()?.into_inner();
            let is_leader = status.header.is_some_and(|it| it.member_id == status.leader);
            is_leader.then(|| Arc::clone(member))
        })
    });
    // A member that hangs must not delay the others.
    let questions: FuturesUnordered<_> = questions.collect();
    let mut leaders = questions.filter_map(std::future::ready);
    timeout(LEADER_TIMEOUT, leaders.next()).await.ok().flatten()
}

/// The body of a streamed response. It ends with an error when its member is lost.
struct GuardedBody {
    body: Body,
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_pending() && self.lost.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(status::connection_lost())));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
