//! One stream to one member: connects, carries what is in the queue, and begins anew when it breaks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_proto::peerpb::{Echo, Greeting, Parcel};
use clearlane_raft_log::driver::Message;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use super::badge::{PROTOCOL_MAX, PROTOCOL_MIN, says_removed, spoken_here};
use super::link::{Link, Queue, connect};
use super::{Context, MESSAGE_BYTES_MAX, PATIENCE};

/// How often an echo is wanted.
const PING: Duration = Duration::from_millis(500);
/// Messages leave together up to about this.
const PARCEL_BYTES: u64 = 1 << 20;
/// How long to wait before the next attempt: doubled each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Small messages. It also says whether the member is there.
    Urgent,
    /// Entries.
    Long,
}

impl Kind {
    /// Behind entries an echo may take long; whether anybody is there the urgent stream knows.
    fn patience(self) -> Duration {
        match self {
            Kind::Urgent => PATIENCE,
            Kind::Long => 6 * PATIENCE,
        }
    }
}

/// Carries messages until the link is closed.
pub(super) async fn run(
    context: Context,
    link: Arc<Link>,
    kind: Kind,
    mut end: UnboundedReceiver<Message>,
) {
    let end = &mut end;
    let lane = Lane { context, link, kind, last_words: Mutex::default() };
    let mut pause = PAUSES.0;
    for attempt in 0.. {
        let begin = Instant::now();
        let Err(status) = lane.attempt(attempt, end).await else { return };
        lane.broke(&status, end);
        if says_removed(&status) {
            tracing::error!(member = %hex(lane.link.id), "says that this member was removed");
            lane.context.node.was_removed();
            return;
        }
        pause = if begin.elapsed() > PAUSES.1 { PAUSES.0 } else { (2 * pause).min(PAUSES.1) };
        sleep(pause).await;
        lane.queue().open();
    }
}

struct Lane {
    context: Context,
    link: Arc<Link>,
    kind: Kind,
    /// Said once, not at each attempt.
    last_words: Mutex<String>,
}

impl Lane {
    fn queue(&self) -> &Queue {
        match self.kind {
            Kind::Urgent => &self.link.urgent,
            Kind::Long => &self.link.long,
        }
    }

    /// One connection, from its beginning to its end.
    async fn attempt(
        &self,
        attempt: usize,
        end: &mut UnboundedReceiver<Message>,
    ) -> Result<(), Status> {
        if self.link.is_cut() {
            return Err(Status::unavailable("the way is cut"));
        }
        let url = self.link.urls.get(attempt % self.link.urls.len().max(1));
        let url = url.ok_or_else(|| Status::unavailable("the member has no address"))?;
        let channel = connect(url, &self.context.outgoing).await;
        let channel = channel.map_err(|why| Status::unavailable(format!("{url}: {why}")))?;
        let client = PeerClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (parcels, echoes) = self.open(client).await?;
        if self.kind == Kind::Urgent {
            self.link.is_up(channel);
            tracing::info!(member = %hex(self.link.id), %url, "connected");
            self.last_words.lock().clear();
        }
        tokio::select! {
            ended = self.write(&parcels, end) => ended,
            ended = self.read(echoes) => ended,
        }
    }

    /// Greets, and begins the stream.
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
        let greeted = timeout(PATIENCE, client.greet(self.dressed(greeting))).await;
        let theirs = greeted.map_err(late)??.into_inner();
        spoken_here(theirs.protocol_min, theirs.protocol_max)?;
        // One waits, and another is on its way: the stream takes them as its window allows.
        let (parcels, outgoing) = mpsc::channel(1);
        let request = self.dressed(ReceiverStream::new(outgoing));
        let echoes = timeout(PATIENCE, client.messages(request)).await.map_err(late)??;
        Ok((parcels, echoes.into_inner()))
    }

    fn dressed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.context.badge(self.link.id).write(request.metadata_mut());
        request
    }

    async fn write(
        &self,
        parcels: &mpsc::Sender<Parcel>,
        end: &mut UnboundedReceiver<Message>,
    ) -> Result<(), Status> {
        let mut pings = interval(PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begin = self.context.begin;
        loop {
            let parcel = tokio::select! {
                message = end.recv() => match message {
                    Some(first) => self.gather(first, end),
                    // The link is gone.
                    None => return Ok(()),
                },
                _ = pings.tick() => {
                    let ping = begin.elapsed().as_micros() as u64 | 1;
                    Parcel { messages: Vec::new(), ping }
                }
            };
            if self.link.is_cut() {
                return Err(Status::unavailable("the way is cut"));
            }
            let closed = |_| Status::unavailable("the stream has ended");
            parcels.send(parcel).await.map_err(closed)?;
        }
    }

    fn gather(&self, first: Message, end: &mut UnboundedReceiver<Message>) -> Parcel {
        let mut next = Some(first);
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while let Some(message) = next {
            self.queue().took(&message);
            bytes += message.bytes();
            messages.push(message.encode().into());
            next = if bytes < PARCEL_BYTES { end.try_recv().ok() } else { None };
        }
        Parcel { messages, ping: 0 }
    }

    async fn read(&self, mut echoes: Streaming<Echo>) -> Result<(), Status> {
        loop {
            let echo = timeout(self.kind.patience(), echoes.message()).await;
            let echo = echo.map_err(|_| Status::deadline_exceeded("no echo for too long"))??;
            let echo = echo.ok_or_else(|| Status::unavailable("the other side has ended it"))?;
            let sent = Duration::from_micros(echo.ping);
            self.link.took(self.context.begin.elapsed().saturating_sub(sent));
        }
    }

    fn broke(&self, status: &Status, end: &mut UnboundedReceiver<Message>) {
        // Raft says everything again but a proposal: that is lost, and its request waits until its time is over.
        self.queue().close(end);
        self.context.node.unreachable(self.link.id);
        if self.kind == Kind::Urgent {
            self.link.is_down();
            let mut last_words = self.last_words.lock();
            if *last_words != status.message() {
                tracing::warn!(member = %hex(self.link.id), why = status.message(), "no connection");
                status.message().clone_into(&mut last_words);
            }
        }
    }
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}
