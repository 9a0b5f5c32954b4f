//! The service Watch: many watchers in one stream. See `docs/watch.md`.
//!
//! When the connection has capacity to send, it polls a stream. The stream then takes requests,
//! sends progress notices that are due, and takes responses from its channel. The member's threads
//! fill that channel ([`clearlane_server::watch`]).
//!
//! * If many events are ready to be sent, as for an unsynced watcher, they are sent in
//!   [turns](BulkTurns) of the thread.
//! * If the client does not read, the stream is not polled. During this time the stream takes no
//!   responses from its channel, which is bounded, and no further requests. Further requests wait
//!   in a [queue](crate::read_ahead).
//! * As in etcd, the end of the requests does not end the stream. The stream ends when the client
//!   leaves or sends an invalid message, at the deadline of the call, when the member has had no
//!   leader for too long and the client requires one, when the store cannot be read, and when the
//!   server stops.
//! * etcd varies the interval of progress notices by up to a tenth with a random generator. Here
//!   the number of the stream determines the variation.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use clearlane_auth::AuthRejection;
use clearlane_mvcc::Change;
use clearlane_mvcc::watch::{self as mvcc, ResponseKind, WatchedKeys};
use clearlane_net::bulk_turn::{BulkTurn, BulkTurns};
use clearlane_net::coalescing_writer::{ActiveLargeResponses, LargeResponseGuard};
use clearlane_proto::etcdserverpb::watch_create_request::FilterType;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::watch_server::Watch;
use clearlane_proto::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse,
};
use clearlane_proto::mvccpb::Event;
use clearlane_proto::mvccpb::event::EventType;
use clearlane_replica::RequestError;
use clearlane_server::Server;
use clearlane_server::watch::{Stream as Watchers, WatchWakeSet};
use http::HeaderMap;
use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_stream::Stream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::credentials::server_for;
use crate::interceptors::{
    RequireLeaderStream, RequiredRole, check_member_can_serve, require_leader,
};
use crate::status;
use crate::watch_permissions::{Creation, WatchPermission, WatchPermissions};

const EVENT_BYTES_PER_POLL: usize = 64 << 10;
/// Number of bytes of events after which the next events wait for a turn of the thread.
const BULK_EVENT_BYTES: usize = 16 << 10;
/// Maximum number of requests that a stream takes in one [turn](BulkTurns) of the thread. Their
/// bytes are limited by [`request_turns`](crate::request_turns).
const REQUESTS_PER_TURN: usize = 64;
/// etcd's `grpcOverheadBytes`. If a watcher accepts fragments, a message is fragmented if it is
/// longer than the limit of requests plus this number of bytes.
const FRAGMENT_OVERHEAD_BYTES: usize = 512 << 10;
/// Minimum interval of progress notices. As in etcd, this minimum replaces a shorter interval.
const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct WatchService {
    server: Server,
    wake_set: WatchWakeSet,
    stopped: watch::Receiver<bool>,
    streams_opened: Arc<AtomicU64>,
    turns: BulkTurns,
    _task: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl WatchService {
    /// Creates the service of one network thread. Must be called on the runtime of that thread.
    /// Streams end when `stopped` becomes true.
    pub fn new(member: Server, stopped: watch::Receiver<bool>, turns: BulkTurns) -> WatchService {
        let wake_set = WatchWakeSet::new(member.threads().watch_server());
        let task = Arc::new(AbortOnDrop(tokio::spawn(wake_set.clone().run())));
        WatchService {
            server: member,
            wake_set,
            stopped,
            streams_opened: Arc::default(),
            turns,
            _task: task,
        }
    }

    pub fn wake_set(&self) -> &WatchWakeSet {
        &self.wake_set
    }

    /// Returns the interval of the next stream, with its variation.
    fn progress_interval(&self) -> Duration {
        let interval = self.wake_set.watch_server().progress_interval().max(PROGRESS_INTERVAL_MIN);
        let number = self.streams_opened.fetch_add(1, Ordering::Relaxed) as u32;
        // Multiples of the golden ratio are spread evenly, however many there are.
        let share = f64::from(number.wrapping_mul(0x9E37_79B9)) / f64::from(u32::MAX);
        interval + interval.mul_f64(share / 10.0)
    }
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = RequireLeaderStream<WatchResponseStream>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let head: HeaderMap = request.metadata().as_ref().clone();
        check_member_can_serve(&self.server, &head, RequiredRole::Voter)?;
        let mut stopped = self.stopped.clone();
        let large_responses = request.extensions().get::<ActiveLargeResponses>().cloned();
        // Set the user even if auth is disabled, because auth may be enabled while the stream is
        // open.
        let server = server_for(&self.server, &request);
        server.wait_for_token().await.map_err(status::from_error)?;
        let watched = WatchResponseStream {
            server,
            permissions: WatchPermissions::default(),
            requests: Some(request.into_inner()),
            next_request_turn: None,
            watchers: self.wake_set.open(),
            responses: VecDeque::new(),
            bulk: BulkEvents {
                turns: self.turns.clone(),
                next_turn: None,
                large_responses: large_responses.unwrap_or_default(),
                active_response: None,
            },
            progress_interval: self.progress_interval(),
            progress: None,
            stopped: Box::pin(async move { drop(stopped.wait_for(|stopped| *stopped).await) }),
            is_ended: false,
        };
        Ok(Response::new(require_leader(&self.server, &head, watched)))
    }
}

pub struct WatchResponseStream {
    server: Server,
    /// The stream of the client's requests. `None` once the client has ended it.
    requests: Option<Streaming<WatchRequest>>,
    /// A requested turn. `Some` from the end of a batch of [`REQUESTS_PER_TURN`] requests until the
    /// turn is granted. During this time no request is taken.
    next_request_turn: Option<BulkTurn>,
    watchers: Watchers,
    responses: VecDeque<WatchResponse>,
    permissions: WatchPermissions,
    bulk: BulkEvents,
    progress_interval: Duration,
    /// The timer of progress notices. `None` until a watcher requests them.
    progress: Option<Interval>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_ended: bool,
}

/// The turns in which a stream sends many events, one batch after the other.
struct BulkEvents {
    turns: BulkTurns,
    /// The turn that the stream has requested, and before which it takes nothing from the channel.
    /// `None` if the stream need not wait for a turn.
    next_turn: Option<BulkTurn>,
    large_responses: ActiveLargeResponses,
    /// `Some` from the first large batch until the channel is empty. During this time, the
    /// connection counts the stream as a large response.
    active_response: Option<LargeResponseGuard>,
}

impl BulkEvents {
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.next_turn {
            ready!(Pin::new(turn).poll(context));
            self.next_turn = None;
        }
        Poll::Ready(())
    }

    fn record(&mut self, batch: &[mvcc::Response]) {
        let bytes: usize = batch.iter().map(mvcc::Response::event_bytes).sum();
        if bytes >= BULK_EVENT_BYTES {
            self.active_response.get_or_insert_with(|| self.large_responses.start());
            self.next_turn = Some(self.turns.request());
        }
    }
}

impl Stream for WatchResponseStream {
    type Item = Result<WatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let next = ready!(self.poll_response(context));
        self.is_ended = next.is_err();
        Poll::Ready(Some(next))
    }
}

impl WatchResponseStream {
    fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<Result<WatchResponse, Status>> {
        loop {
            if let Some(response) = self.responses.pop_front() {
                return Poll::Ready(Ok(response));
            }
            if self.stopped.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(status::from_error(RequestError::Stopped)));
            }
            self.cancel_revoked(context);
            self.poll_requests(context)?;
            self.poll_progress(context);
            ready!(self.bulk.poll_turn(context));
            let polled = self.watchers.poll_responses(EVENT_BYTES_PER_POLL, context);
            if polled.is_pending() {
                self.bulk.active_response = None;
            }
            let response =
                ready!(polled).map_err(|error| status::from_error(RequestError::Failed(error)))?;
            // A change of permissions that was applied before these events were published is
            // visible by now. So cancel the watchers that have lost their permission before the
            // events are sent.
            self.cancel_revoked(context);
            self.bulk.record(&response);
            response.into_iter().for_each(|response| self.queue_response(response));
        }
    }

    fn poll_requests(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        if let Some(turn) = &mut self.next_request_turn {
            if Pin::new(turn).poll(context).is_pending() {
                return Ok(());
            }
            self.next_request_turn = None;
        }
        for _ in 0..REQUESTS_PER_TURN {
            if self.watchers.poll_ready(context).is_pending() {
                return Ok(());
            }
            let Some(requests) = &mut self.requests else { return Ok(()) };
            match Pin::new(requests).poll_next(context) {
                Poll::Ready(Some(Ok(request))) => self.handle_request(request),
                Poll::Ready(Some(Err(status))) => return Err(request_stream_error(status)),
                Poll::Ready(None) => self.requests = None,
                Poll::Pending => return Ok(()),
            }
        }
        // Before the next requests are taken, the responses so far are sent, and tasks of other
        // connections can run.
        let mut turn = self.bulk.turns.request();
        if Pin::new(&mut turn).poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        self.next_request_turn = Some(turn);
        Ok(())
    }

    fn handle_request(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                let creation = self.creation(&create);
                let is_refused = matches!(creation, Creation::Refused(_));
                self.permissions.creating(&self.server, creation);
                let request = parse_create(create, is_refused);
                if request.progress_notify && self.progress.is_none() {
                    let every = self.progress_interval;
                    let mut progress = interval_at(Instant::now() + every, every);
                    progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    self.progress = Some(progress);
                }
                self.watchers.watch(request);
            }
            Some(RequestUnion::CancelRequest(cancel)) => self.watchers.cancel(cancel.watch_id),
            Some(RequestUnion::ProgressRequest(_)) => self.watchers.request_progress(),
            None => {}
        }
    }

    fn creation(&self, create: &WatchCreateRequest) -> Creation {
        let (key, range_end) = (first_key(&create.key), create.range_end.clone());
        match self.server.permit_watch(&key, &range_end) {
            Ok(None) => Creation::Unchecked,
            Ok(Some(user)) => Creation::Permitted(WatchPermission { user, key, range_end }),
            Err(refused) => Creation::Refused(refused),
        }
    }

    fn cancel_revoked(&mut self, context: &mut Context<'_>) {
        for id in self.permissions.poll_revoked(&self.server, context) {
            self.watchers.cancel(id);
        }
    }

    fn poll_progress(&mut self, context: &mut Context<'_>) {
        let Some(progress) = &mut self.progress else { return };
        while progress.poll_tick(context).is_ready() {
            self.watchers.interval_passed();
        }
    }

    /// Queues the messages of a response: one message, or several if the response is fragmented.
    /// Queues none for events of a revoked watcher.
    fn queue_response(&mut self, response: mvcc::Response) {
        // Omit responses of a revoked watcher. The store may send some before it ends the watcher.
        let is_end = matches!(response.kind, ResponseKind::Canceled | ResponseKind::Compacted(_));
        if self.permissions.is_revoked(response.id) && !is_end {
            return;
        }
        let is_revoked = is_end && self.permissions.ended(response.id);
        let mut header =
            Some(ResponseHeader { revision: response.revision, ..ResponseHeader::default() });
        self.server.fill_header(&mut header);
        let message = WatchResponse { header, watch_id: response.id, ..WatchResponse::default() };
        let message = match response.kind {
            ResponseKind::Created => {
                if self.permissions.created(&self.server, response.id) {
                    self.watchers.cancel(response.id);
                }
                WatchResponse { created: true, ..message }
            }
            ResponseKind::Rejected(refusal) => {
                let refused = self.permissions.rejected();
                let cancel_reason = match (refusal, refused) {
                    (mvcc::WatchError::Refused, Some(refused)) => reason(refused),
                    (refusal, _) => refusal.to_string(),
                };
                WatchResponse { created: true, canceled: true, cancel_reason, ..message }
            }
            ResponseKind::Canceled | ResponseKind::Compacted(_) if is_revoked => {
                let cancel_reason = reason(AuthRejection::PermissionDenied);
                WatchResponse { canceled: true, cancel_reason, ..message }
            }
            ResponseKind::Canceled => WatchResponse { canceled: true, ..message },
            ResponseKind::Compacted(compact_revision) => {
                WatchResponse { canceled: true, compact_revision, ..message }
            }
            ResponseKind::Progress => message,
            ResponseKind::Events { events, fragment } => {
                let length_max = if fragment {
                    self.server.limits().request_bytes_max + FRAGMENT_OVERHEAD_BYTES
                } else {
                    usize::MAX
                };
                return self.queue_events(&message, &events, length_max);
            }
        };
        self.responses.push_back(message);
    }

    /// Queues events, in as many messages as needed. A message is longer than `length_max` only if
    /// its first event is too long.
    fn queue_events(&mut self, message: &WatchResponse, events: &[mvcc::Event], length_max: usize) {
        let cut = WatchResponse { fragment: true, ..message.clone() };
        let left = length_max.saturating_sub(cut.encoded_len() + 1);
        for piece in mvcc::fragments(events, left) {
            let fragment = piece.end < events.len();
            let events = events[piece].iter().map(to_proto_event).collect();
            self.responses.push_back(WatchResponse { fragment, events, ..message.clone() });
        }
    }
}

fn to_proto_event(of: &mvcc::Event) -> Event {
    let (kind, record) = match &of.change {
        Change::Put(record) => (EventType::Put, record),
        Change::Delete(record) => (EventType::Delete, record),
    };
    // Keys and values are shared, not copied.
    Event { r#type: kind as i32, kv: Some(record.clone()), prev_kv: of.prev_kv.clone() }
}

fn first_key(key: &Bytes) -> Bytes {
    if key.is_empty() { Bytes::from_static(&[0]) } else { key.clone() }
}

/// Returns the error as Go's gRPC prints it.
fn reason(refused: AuthRejection) -> String {
    let status = status::from_error(refused);
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

/// Translates a creation request. As in a range, an end of one NUL byte means no end.
fn parse_create(create: WatchCreateRequest, is_refused: bool) -> mvcc::WatchRequest {
    let has_filter = |filter: FilterType| create.filters.contains(&(filter as i32));
    let (no_put, no_delete) = (has_filter(FilterType::Noput), has_filter(FilterType::Nodelete));
    let key = first_key(&create.key);
    let keys = match &create.range_end[..] {
        [] => WatchedKeys::Single(key),
        [0] => WatchedKeys::From(key),
        _ => WatchedKeys::Range(key, create.range_end),
    };
    mvcc::WatchRequest {
        keys,
        start_revision: create.start_revision,
        id: create.watch_id,
        no_put,
        no_delete,
        prev_kv: create.prev_kv,
        progress_notify: create.progress_notify,
        fragment: create.fragment,
        is_refused,
    }
}

/// Returns the status of the response stream after an error in the stream of requests. The code
/// `Cancelled` usually means that the client has left.
fn request_stream_error(status: Status) -> Status {
    match status.code() {
        Code::Cancelled => Status::cancelled("etcdserver: watch canceled"),
        _ => status,
    }
}

impl std::fmt::Debug for WatchResponseStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchResponseStream")
            .field("watchers", &self.watchers)
            .finish_non_exhaustive()
    }
}
