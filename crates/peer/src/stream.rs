//! One stream to one member. It connects, sends the messages of its queue, and reconnects when it
//! breaks.
//!
//! While the stream is not connected, its messages use the *way back*: a stream that the member
//! itself has opened, where the messages are sent between the echoes. So two members can
//! communicate even if a firewall or a certificate lets only one of them connect to the other.
//! Members of an etcd cluster can do the same, because in etcd the receiver opens the stream.
//!
//! ```text
//!                           connected                       stream or way back ends
//!   connecting, pausing ─────────────▶ stream     way back ───────────────────────▶ queue closed
//!            │                                        ▲
//!            └────────────────────────────────────────┘
//!                  the member has opened a stream
//! ```
//!
//! A closed queue rejects messages, and raft is informed that the member is unreachable. The queue
//! opens again when the pause is over and the next attempt to connect starts, when the stream is
//! connected, or when a way back opens. If the attempt fails and there is no way back, the messages
//! in the queue are dropped, and raft is informed again.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
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
/// Queued messages are collected into one parcel until they have at least this number of bytes.
const BATCH_BYTES: u64 = 1 << 20;
/// The shortest and the longest pause before a new attempt to connect. The shortest pause follows
/// an attempt that ended after more than a second, whether or not it had connected. After each
/// other attempt the pause is doubled, up to the longest pause. The pause ends early when the peer
/// has connected to this member, because then it has just started or is reachable again.
const RECONNECT_DELAYS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// Small messages. The echoes on this stream show whether the member is reachable.
    Urgent,
    /// Appends and forwarded writes.
    Bulk,
}

impl StreamKind {
    /// Returns the longest wait for an echo. On the bulk stream an echo may wait for long entries;
    /// the urgent stream shows whether the peer is reachable.
    fn echo_timeout(self) -> Duration {
        match self {
            StreamKind::Urgent => CONNECTION_TIMEOUT,
            StreamKind::Bulk => 6 * CONNECTION_TIMEOUT,
        }
    }
}

/// Runs the stream and reconnects, until the peer is closed or reports that this member was removed
/// from the cluster.
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
            tracing::error!(member = %hex(lane.peer.id), "reports that this member was removed");
            lane.context.threads.report_removed();
            return;
        }
        pause = if begin.elapsed() > RECONNECT_DELAYS.1 {
            RECONNECT_DELAYS.0
        } else {
            (2 * pause).min(RECONNECT_DELAYS.1)
        };
        let returned = lane.peer.new_way_back();
        tokio::select! {
            () = sleep(pause) => {}
            () = returned => pause = RECONNECT_DELAYS.0,
            never = lane.send_way_back(&mut end) => match never {},
        }
        lane.queue().is_open.store(true, Relaxed);
    }
}

struct PeerStream {
    context: PeerContext,
    peer: Arc<Peer>,
    kind: StreamKind,
    /// The last logged error. A repeated error is logged only once, not at each attempt.
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
            return Err(Status::unavailable("the connection is cut"));
        }
        let url = self.peer.urls.get(attempt % self.peer.urls.len().max(1));
        let url = url.ok_or_else(|| Status::unavailable("the member has no address"))?;
        let opened = tokio::select! {
            opened = self.open(url) => opened,
            never = self.send_way_back(end) => match never {},
        };
        let (channel, parcels, echoes) = opened?;
        // Reopen the queue: it is closed if a way back has ended while the stream was being opened.
        self.queue().is_open.store(true, Relaxed);
        if self.kind == StreamKind::Urgent {
            self.peer.set_connected(channel);
            let name = self.member_name();
            tracing::info!(member = %hex(self.peer.id), name, %url, "connected");
            self.last_error.lock().clear();
        }
        let ended = tokio::select! {
            ended = self.write(&parcels, end) => ended,
            ended = self.read(echoes) => ended,
        };
        if ended.is_err() {
            self.close_queue(end);
        }
        ended
    }

    async fn open(
        &self,
        url: &str,
    ) -> Result<(Channel, mpsc::Sender<Parcel>, Streaming<Echo>), Status> {
        let channel = connect(url, &self.context.dialer).await;
        let channel = channel.map_err(|why| Status::unavailable(format!("{url}: {why}")))?;
        let mut client =
            PeerClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let late = |_| Status::deadline_exceeded("no response");
        let greeting = Greeting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
        };
        let greeted = timeout(CONNECTION_TIMEOUT, client.greet(self.with_headers(greeting))).await;
        let theirs = greeted.map_err(late)??.into_inner();
        check_protocol(theirs.protocol_min, theirs.protocol_max)?;
        // One parcel waits in this channel, and another is in flight. The stream takes a parcel
        // when its flow-control window allows it.
        let (parcels, outgoing) = mpsc::channel(1);
        let request = self.with_headers(ReceiverStream::new(outgoing));
        let echoes =
            timeout(CONNECTION_TIMEOUT, client.messages(request)).await.map_err(late)??;
        Ok((channel, parcels, echoes.into_inner()))
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
                    Some(first) => Parcel { messages: self.batch(first, end), ping: 0 },
                    // Never reached: `self.peer` holds the sender. If the peer is closed, this task
                    // is aborted.
                    None => return Ok(()),
                },
                _ = pings.tick() => {
                    let ping = begin.elapsed().as_micros() as u64 | 1;
                    Parcel { messages: Vec::new(), ping }
                }
            };
            if self.peer.is_cut.load(Relaxed) {
                return Err(Status::unavailable("the connection is cut"));
            }
            let closed = |_| Status::unavailable("the stream has ended");
            parcels.send(parcel).await.map_err(closed)?;
        }
    }

    /// Sends messages over the streams that the peer opens. The future never completes; the caller
    /// drops it.
    async fn send_way_back(&self, end: &mut UnboundedReceiver<Message>) -> Infallible {
        loop {
            let way_back = self.peer.way_back().await;
            self.queue().is_open.store(true, Relaxed);
            while let Ok(permit) = way_back.reserve().await {
                // No message is taken from the queue before the stream has capacity for it.
                let Some(first) = end.recv().await else { return pending().await };
                let messages = self.batch(first, end);
                if !self.peer.is_cut.load(Relaxed) {
                    permit.send(Ok(Echo { ping: 0, messages }));
                }
            }
            self.close_queue(end);
        }
    }

    fn batch(&self, first: Message, end: &mut UnboundedReceiver<Message>) -> Vec<Bytes> {
        let mut next = Some(first);
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while let Some(message) = next {
            self.queue().on_sent(&message);
            bytes += message.bytes();
            messages.push(message.encode().into());
            next = if bytes < BATCH_BYTES { end.try_recv().ok() } else { None };
        }
        messages
    }

    async fn read(&self, mut echoes: Streaming<Echo>) -> Result<(), Status> {
        loop {
            let echo = timeout(self.kind.echo_timeout(), echoes.message()).await;
            let echo =
                echo.map_err(|_| Status::deadline_exceeded("no echo within the time limit"))??;
            let echo =
                echo.ok_or_else(|| Status::unavailable("the other side has ended the stream"))?;
            if !echo.messages.is_empty() {
                if self.peer.is_cut.load(Relaxed) {
                    return Err(Status::unavailable("the connection is cut"));
                }
                self.context.receive_messages(self.peer.id, &echo.messages)?;
                self.context.threads.wait_for_capacity().await;
            }
            if echo.ping == 0 {
                continue;
            }
            let sent = Duration::from_micros(echo.ping);
            self.peer.round_trips.record(self.context.started_at.elapsed().saturating_sub(sent));
        }
    }

    /// Returns the peer's name. It is empty if the peer is unknown, or was added to the cluster
    /// later and has not published its name yet.
    fn member_name(&self) -> String {
        let members = self.context.threads.members();
        members.get(self.peer.id).map(|member| member.name.clone()).unwrap_or_default()
    }

    /// Closes the queue, drops its messages, and reports the peer as unreachable. Raft expects that
    /// messages are lost, and sends newer ones in their place. Only a forwarded proposal is not
    /// repeated: it is lost, and its request waits until its time-out.
    fn close_queue(&self, end: &mut UnboundedReceiver<Message>) {
        self.queue().close(end);
        self.context.threads.report_unreachable(self.peer.id);
    }

    fn on_disconnect(&self, status: &Status, end: &mut UnboundedReceiver<Message>) {
        // A connection attempt may fail while the messages use a way back. Then the queue stays
        // open.
        if !self.peer.has_way_back() {
            self.close_queue(end);
        }
        if self.kind == StreamKind::Urgent {
            self.peer.set_disconnected();
            let mut last_words = self.last_error.lock();
            if *last_words != status.message() {
                let (name, why) = (self.member_name(), status.message());
                let has_way_back = self.peer.has_way_back();
                let member = hex(self.peer.id);
                tracing::warn!(%member, name, why, has_way_back, "no connection");
                status.message().clone_into(&mut last_words);
            }
        }
    }
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}
