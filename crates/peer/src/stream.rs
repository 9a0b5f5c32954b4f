//! One stream to one member: connects, carries what is in the queue, and begins anew when it
//! breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_proto::peerpb::{Echo, Greeting, Parcel};
use clearlane_raft::Message;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use super::headers::{PROTOCOL_MAX, PROTOCOL_MIN, check_protocol, is_removed_status};
use super::remote_peer::{Peer, StreamQueue, connect};
use super::{CONNECTION_TIMEOUT, MESSAGE_BYTES_MAX, PeerContext};

const PING_INTERVAL: Duration = Duration::from_millis(500);
/// Messages are sent together up to about this.
const BATCH_BYTES: u64 = 1 << 20;
/// The first and the longest one; doubled each time.
const RECONNECT_DELAYS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// Small messages. Its echoes show whether the member is reachable.
    Urgent,
    /// Appends and forwarded writes.
    Bulk,
}

impl StreamKind {
    /// An echo behind entries may take long; the urgent stream shows whether the peer is there.
    fn echo_timeout(self) -> Duration {
        match self {
            StreamKind::Urgent => CONNECTION_TIMEOUT,
            StreamKind::Bulk => 6 * CONNECTION_TIMEOUT,
        }
    }
}

/// Reconnects until the link is closed.
pub(super) async fn run_stream(
    context: PeerContext,
    link: Arc<Peer>,
    kind: StreamKind,
    mut end: UnboundedReceiver<Message>,
) {
    let lane = PeerStream { context, peer: link, kind, last_error: Mutex::default() };
    let mut pause = RECONNECT_DELAYS.0;
    for attempt in 0.. {
        let begin = Instant::now();
        let Err(status) = lane.run_connection(attempt, &mut end).await else { return };
        lane.on_disconnect(&status, &mut end);
        if is_removed_status(&status) {
            tracing::error!(member = %hex(lane.peer.id), "answered that this member was removed");
            lane.context.threads.report_removed();
            return;
        }
        pause = if begin.elapsed() > RECONNECT_DELAYS.1 {
            RECONNECT_DELAYS.0
        } else {
            (2 * pause).min(RECONNECT_DELAYS.1)
        };
        sleep(pause).await;
        lane.queue().is_open.store(true, Relaxed);
    }
}

struct PeerStream {
    context: PeerContext,
    peer: Arc<Peer>,
    kind: StreamKind,
    /// So that an error is logged once, not at each attempt.
    last_error: Mutex<String>,
}

impl PeerStream {
    fn queue(&self) -> &StreamQueue {
        match self.kind {
            StreamKind::Urgent => &self.peer.urgent,
            StreamKind::Bulk => &self.peer.bulk,
        }
    }

    async fn run_connection(
        &self,
        attempt: usize,
        end: &mut UnboundedReceiver<Message>,
    ) -> Result<(), Status> {
        if self.peer.is_cut.load(Relaxed) {
            return Err(Status::unavailable("the way is cut"));
        }
        let url = self.peer.urls.get(attempt % self.peer.urls.len().max(1));
        let url = url.ok_or_else(|| Status::unavailable("the member has no address"))?;
        let channel = connect(url, &self.context.dialer).await;
        let channel = channel.map_err(|why| Status::unavailable(format!("{url}: {why}")))?;
        let client = PeerClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (parcels, echoes) = self.open(client).await?;
        if self.kind == StreamKind::Urgent {
            self.peer.set_connected(channel);
            let name = self.member_name();
            tracing::info!(member = %hex(self.peer.id), name, %url, "connected");
            self.last_error.lock().clear();
        }
        tokio::select! {
            ended = self.write(&parcels, end) => ended,
            ended = self.read(echoes) => ended,
        }
    }

    async fn open(
        &self,
        mut client: PeerClient<Channel>,
    ) -> Result<(mpsc::Sender<Parcel>, Streaming<Echo>), Status> {
        let late = |_| Status::deadline_exceeded("no answer");
        let greeting = Greeting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
        };
        let greeted = timeout(CONNECTION_TIMEOUT, client.greet(self.with_headers(greeting))).await;
        let theirs = greeted.map_err(late)??.into_inner();
        check_protocol(theirs.protocol_min, theirs.protocol_max)?;
        // One waits, and another is on its way: the stream takes them as its window allows.
        let (parcels, outgoing) = mpsc::channel(1);
        let request = self.with_headers(ReceiverStream::new(outgoing));
        let echoes =
            timeout(CONNECTION_TIMEOUT, client.messages(request)).await.map_err(late)??;
        Ok((parcels, echoes.into_inner()))
    }

    fn with_headers<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.context.headers(self.peer.id).write(request.metadata_mut());
        request
    }

    async fn write(
        &self,
        parcels: &mpsc::Sender<Parcel>,
        end: &mut UnboundedReceiver<Message>,
    ) -> Result<(), Status> {
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begin = self.context.started_at;
        loop {
            let parcel = tokio::select! {
                message = end.recv() => match message {
                    Some(first) => self.batch(first, end),
                    // The link is gone.
                    None => return Ok(()),
                },
                _ = pings.tick() => {
                    let ping = begin.elapsed().as_micros() as u64 | 1;
                    Parcel { messages: Vec::new(), ping }
                }
            };
            if self.peer.is_cut.load(Relaxed) {
                return Err(Status::unavailable("the way is cut"));
            }
            let closed = |_| Status::unavailable("the stream has ended");
            parcels.send(parcel).await.map_err(closed)?;
        }
    }

    fn batch(&self, first: Message, end: &mut UnboundedReceiver<Message>) -> Parcel {
        let mut next = Some(first);
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while let Some(message) = next {
            self.queue().on_sent(&message);
            bytes += message.bytes();
            messages.push(message.encode().into());
            next = if bytes < BATCH_BYTES { end.try_recv().ok() } else { None };
        }
        Parcel { messages, ping: 0 }
    }

    async fn read(&self, mut echoes: Streaming<Echo>) -> Result<(), Status> {
        loop {
            let echo = timeout(self.kind.echo_timeout(), echoes.message()).await;
            let echo = echo.map_err(|_| Status::deadline_exceeded("no echo for too long"))??;
            let echo = echo.ok_or_else(|| Status::unavailable("the other side has ended it"))?;
            let sent = Duration::from_micros(echo.ping);
            self.peer.round_trips.record(self.context.started_at.elapsed().saturating_sub(sent));
        }
    }

    /// The peer's name, or an empty one if the peer has never started.
    fn member_name(&self) -> String {
        let members = self.context.threads.members();
        members.get(self.peer.id).map(|member| member.name.clone()).unwrap_or_default()
    }

    fn on_disconnect(&self, status: &Status, end: &mut UnboundedReceiver<Message>) {
        // Raft sends all messages again but a proposal: that is lost, and its request waits until
        // its time-out.
        self.queue().close(end);
        self.context.threads.report_unreachable(self.peer.id);
        if self.kind == StreamKind::Urgent {
            self.peer.set_disconnected();
            let mut last_words = self.last_error.lock();
            if *last_words != status.message() {
                let (name, why) = (self.member_name(), status.message());
                tracing::warn!(member = %hex(self.peer.id), name, why, "no connection");
                status.message().clone_into(&mut last_words);
            }
        }
    }
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}
