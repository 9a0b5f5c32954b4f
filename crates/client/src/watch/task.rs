//! The task behind a watch: opens streams, one behind the other, and hands on what is whole.

use std::sync::Arc;

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use clearlane_proto::mvccpb;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Status, Streaming};

use super::{Batch, Event};
use crate::Client;
use crate::call::Way;
use crate::error::{Error, Result, Verdict};
use crate::kv::header;
use crate::pause::Pause;
use crate::place::Place;

/// A stream to one member.
struct Open {
    place: Arc<Place>,
    requests: mpsc::UnboundedSender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

/// What is to be done after a stream has said something, or has ended.
enum Then {
    Listen,
    Reopen,
}

pub(super) struct Task {
    client: Client,
    /// Its `start_revision` is always the first one that was not handed on.
    create: WatchCreateRequest,
    batches: mpsc::Sender<Result<Batch>>,
    questions: mpsc::UnboundedReceiver<()>,
    /// Taken when the watch begins.
    begun: Option<oneshot::Sender<i64>>,
    /// Of a message that is not complete.
    fragments: Vec<mvccpb::Event>,
    pause: Pause,
    /// A token was refused, and nothing has come since.
    was_refused: bool,
}

impl Task {
    pub(super) fn new(
        client: Client,
        create: WatchCreateRequest,
        batches: mpsc::Sender<Result<Batch>>,
        questions: mpsc::UnboundedReceiver<()>,
        begun: oneshot::Sender<i64>,
    ) -> Task {
        Task {
            client,
            create,
            batches,
            questions,
            begun: Some(begun),
            fragments: Vec::new(),
            pause: Pause::new(),
            was_refused: false,
        }
    }

    /// Until there is an error that nobody else would not have, or no reader.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.watch().await {
            // Behind this sender's end the reader finds the reason.
            drop(self.begun.take());
            let _ = self.batches.send(Err(error)).await;
        }
    }

    async fn watch(&mut self) -> Result<()> {
        loop {
            match self.open().await {
                Ok(open) => self.listen(open).await?,
                // Nobody can be reached now. The cluster will be back, or the reader gives up.
                Err(Error::Unavailable(_) | Error::NoLeader | Error::TimedOut(_)) => {}
                Err(error) => return Err(error),
            }
            self.pause.wait().await;
        }
    }

    /// A stream on which the watch is already asked for.
    async fn open(&self) -> Result<Open> {
        let create = RequestUnion::CreateRequest(self.create.clone());
        let create = WatchRequest { request_union: Some(create) };
        let send = move |channel, request: Request<()>| {
            let (requests, receiver) = mpsc::unbounded_channel();
            // Some servers say nothing before they have heard something.
            let _ = requests.send(create.clone());
            let (head, extensions, ()) = request.into_parts();
            let outgoing = UnboundedReceiverStream::new(receiver);
            let request = Request::from_parts(head, extensions, outgoing);
            async move {
                let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
                let opened = client.watch(request).await?;
                Ok(opened.map(|responses| (requests, responses)))
            }
        };
        let (place, (requests, responses)) = self.client.call_at(Way::STREAM, (), send).await?;
        Ok(Open { place, requests, responses })
    }

    /// To the end of the stream.
    async fn listen(&mut self, mut open: Open) -> Result<()> {
        self.fragments.clear();
        loop {
            let then = tokio::select! {
                message = open.responses.message() => match message {
                    Ok(Some(response)) => self.take(response).await?,
                    // A server that stops ends its streams.
                    Ok(None) => Then::Reopen,
                    Err(status) => self.broken(&status).await?,
                },
                Some(()) = self.questions.recv() => {
                    let ask = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    // If the stream is broken, it will say so.
                    let _ = open.requests.send(WatchRequest { request_union: Some(ask) });
                    Then::Listen
                }
            };
            if matches!(then, Then::Reopen) {
                open.place.set_aside();
                return Ok(());
            }
        }
    }

    /// What becomes of the watch when its stream has failed.
    async fn broken(&mut self, status: &Status) -> Result<Then> {
        match Verdict::of(status) {
            Verdict::Answer if status.code() != tonic::Code::Internal => Err(Error::of(status)),
            Verdict::Token => self.refused(Error::of(status)).await,
            _ => Ok(Then::Reopen),
        }
    }

    /// A new token, once; if that is refused as well, the error is the reader's.
    async fn refused(&mut self, error: Error) -> Result<Then> {
        if std::mem::replace(&mut self.was_refused, true)
            || self.client.shared.options.credentials.is_none()
        {
            return Err(error);
        }
        let token = self.client.token(None).await?;
        self.client.token(Some(token)).await?;
        Ok(Then::Reopen)
    }

    async fn take(&mut self, response: WatchResponse) -> Result<Then> {
        let revision = header(response.header).revision;
        if response.canceled {
            return match (response.compact_revision, &response.cancel_reason[..]) {
                (revision @ 1.., _) => Err(Error::Compacted { compact_revision: Some(revision) }),
                // A member that stops may cancel without a word.
                (_, "") => Ok(Then::Reopen),
                (_, words) => match Error::of_words(words) {
                    error @ Error::Unauthenticated(_) => self.refused(error).await,
                    Error::NoLeader => Ok(Then::Reopen),
                    error => Err(error),
                },
            };
        }
        if response.created {
            self.begin(revision);
            return Ok(Then::Listen);
        }
        self.was_refused = false;
        self.pause.reset();
        let is_part = response.fragment;
        self.fragments.extend(response.events);
        if !is_part {
            self.hand_on(revision).await;
        }
        Ok(Then::Listen)
    }

    /// The watch is on. From now on it has a revision to begin from, wherever it goes.
    fn begin(&mut self, revision: i64) {
        if self.create.start_revision <= 0 {
            self.create.start_revision = revision + 1;
        }
        if let Some(begun) = self.begun.take() {
            // If nobody waits for it, the task is about to be ended.
            let _ = begun.send(self.create.start_revision);
        }
    }

    /// A whole message: events, or a notice that there are none up to here.
    async fn hand_on(&mut self, of_header: i64) {
        let next = self.create.start_revision;
        let events = std::mem::take(&mut self.fragments);
        // While a watch catches up, the header names the store's revision, and more is to come.
        let revision = match events.last() {
            Some(last) => last.kv.as_ref().map_or(of_header, |kv| kv.mod_revision),
            None => of_header,
        };
        if revision < next {
            return;
        }
        // A member that says a thing twice is not listened to twice.
        let is_new = |event: &Event| event.revision() >= next;
        let events: Vec<Event> = events.into_iter().map(Event::from).filter(is_new).collect();
        self.create.start_revision = revision + 1;
        // Without a reader there is no task.
        let _ = self.batches.send(Ok(Batch { revision, events })).await;
    }
}
