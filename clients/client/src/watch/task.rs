//! The background task of a watch. It opens streams, one after the other, and delivers complete
//! revisions.

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use clearlane_proto::mvccpb;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{Batch, Event};
use crate::Client;
use crate::backoff::Backoff;
use crate::call::OpenStream;
use crate::error::{Error, Result, StatusKind};
use crate::kv::header;

enum NextStep {
    Listen,
    Reopen,
}

pub(super) struct WatchTask {
    pub(super) client: Client,
    /// The request. Once the watch has started, its `start_revision` is always the first revision
    /// that is not delivered.
    pub(super) create: WatchCreateRequest,
    pub(super) batches: mpsc::Sender<Result<Batch>>,
    pub(super) progress_requests: mpsc::UnboundedReceiver<()>,
    /// Signals that the watch has started. `None` after that.
    pub(super) started: Option<oneshot::Sender<i64>>,
    /// The events of an incomplete message.
    pub(super) fragments: Vec<mvccpb::Event>,
    pub(super) backoff: Backoff,
    /// If true, the token was rejected. The next events or progress notice set this to false.
    pub(super) token_was_rejected: bool,
}

impl WatchTask {
    /// Runs until an error occurs that any other endpoint would also report, or until the reader is
    /// dropped.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.watch().await {
            // The reader finds the error in the queue.
            drop(self.started.take());
            let _ = self.batches.send(Err(error)).await;
        }
    }

    async fn watch(&mut self) -> Result<()> {
        loop {
            match self.open().await {
                Ok(open) => self.listen(open).await?,
                // No endpoint can be reached now. The task tries again until the reader drops the
                // watch.
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
            self.backoff.wait().await;
        }
    }

    /// Opens a stream on which the watch is already requested.
    async fn open(&self) -> Result<OpenStream<WatchRequest, WatchResponse>> {
        let create = RequestUnion::CreateRequest(self.create.clone());
        let create = WatchRequest { request_union: Some(create) };
        let open = async |channel, requests| {
            let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
            client.watch(requests).await
        };
        self.client.open_stream(create, open).await
    }

    async fn listen(&mut self, mut open: OpenStream<WatchRequest, WatchResponse>) -> Result<()> {
        self.fragments.clear();
        loop {
            let then = tokio::select! {
                message = open.responses.message() => match message {
                    Ok(Some(response)) => self.handle_response(response).await?,
                    // A server that stops ends its streams.
                    Ok(None) => NextStep::Reopen,
                    Err(status) => self.on_stream_error(&status).await?,
                },
                Some(()) = self.progress_requests.recv() => {
                    let ask = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    let _ = open.requests.send(WatchRequest { request_union: Some(ask) });
                    NextStep::Listen
                }
            };
            if matches!(then, NextStep::Reopen) {
                open.endpoint.mark_failed();
                return Ok(());
            }
        }
    }

    async fn on_stream_error(&mut self, status: &Status) -> Result<NextStep> {
        match StatusKind::from_status(status) {
            StatusKind::Final if status.code() != tonic::Code::Internal => {
                Err(Error::from_status(status))
            }
            StatusKind::TokenRejected => self.renew_token(Error::from_status(status)).await,
            _ => Ok(NextStep::Reopen),
        }
    }

    /// Fetches a new token once. If that token is also rejected, the reader gets the error.
    async fn renew_token(&mut self, error: Error) -> Result<NextStep> {
        if std::mem::replace(&mut self.token_was_rejected, true) {
            return Err(error);
        }
        self.client.renew_token(error).await.map(|()| NextStep::Reopen)
    }

    async fn handle_response(&mut self, response: WatchResponse) -> Result<NextStep> {
        let revision = header(response.header).revision;
        if response.canceled {
            return match (response.compact_revision, &response.cancel_reason[..]) {
                (revision @ 1.., _) => Err(Error::Compacted { compact_revision: Some(revision) }),
                // A member that stops may cancel a watch without a reason.
                (_, "") => Ok(NextStep::Reopen),
                (_, words) => match Error::from_text(words) {
                    error @ Error::Unauthenticated(_) => self.renew_token(error).await,
                    Error::NoLeader => Ok(NextStep::Reopen),
                    error => Err(error),
                },
            };
        }
        if response.created {
            self.set_start_revision(revision);
            return Ok(NextStep::Listen);
        }
        self.token_was_rejected = false;
        self.backoff.reset();
        self.fragments.extend(response.events);
        if !response.fragment {
            self.deliver(revision).await;
        }
        Ok(NextStep::Listen)
    }

    /// Called when the server has created the watch; `revision` is the store's revision. If the
    /// request has no start revision, sets it to the revision after `revision`. If the stream fails
    /// before events are delivered, the next stream starts at the same start revision. Also signals
    /// that the watch has started.
    fn set_start_revision(&mut self, revision: i64) {
        if self.create.start_revision <= 0 {
            self.create.start_revision = revision + 1;
        }
        if let Some(started) = self.started.take() {
            // If there is no receiver, the task is about to be aborted.
            let _ = started.send(self.create.start_revision);
        }
    }

    /// Delivers a complete message: events, or a progress notice.
    async fn deliver(&mut self, header_revision: i64) {
        let next = self.create.start_revision;
        let events = std::mem::take(&mut self.fragments);
        // While a watch catches up, the header has the store's revision, which is higher than the
        // revisions of the events. So the revision of the last event is used if there are events.
        let revision = match events.last() {
            Some(last) => last.kv.as_ref().map_or(header_revision, |kv| kv.mod_revision),
            None => header_revision,
        };
        if revision < next {
            return;
        }
        // Events that an earlier stream has already delivered are dropped.
        let is_new = |event: &Event| event.revision() >= next;
        let events: Vec<Event> = events.into_iter().map(Event::from).filter(is_new).collect();
        self.create.start_revision = revision + 1;
        // If there is no reader, the task is aborted.
        let _ = self.batches.send(Ok(Batch { revision, events })).await;
    }
}
