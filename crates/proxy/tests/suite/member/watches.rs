//! The watches of a [`Member`].

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::watch_server::Watch;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use clearlane_proxy::cache::range::Span;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Answer, Member};

type Responses = mpsc::Sender<Result<WatchResponse, Status>>;

/// The time between two revisions of a slow history.
const SLOW_INTERVAL: Duration = Duration::from_millis(20);

/// A stream of watches.
struct Stream {
    member: Member,
    token: Option<String>,
    responses: Responses,
    /// The range and the next revision of each watch.
    watches: BTreeMap<i64, (Span, i64)>,
}

/// The client has left.
struct Left;

#[tonic::async_trait]
impl Watch for Member {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Answer<Self::WatchStream> {
        let token = request.metadata().get("token").map(|it| it.to_str().unwrap().to_owned());
        self.state.counts.watch_streams.fetch_add(1, Ordering::SeqCst);
        let (responses, receiver) = mpsc::channel(16);
        if self.state.refuses_watches.load(Ordering::SeqCst) {
            return Ok(Response::new(ReceiverStream::new(receiver)));
        }
        let watches = BTreeMap::new();
        let stream = Stream { member: self.clone(), token, responses, watches };
        tokio::spawn(stream.serve(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

impl Stream {
    async fn serve(mut self, mut requests: Streaming<WatchRequest>) {
        let mut revision = self.member.state.revision.subscribe();
        let mut generation = self.member.state.watch_generation.subscribe();
        let mut ignored = self.member.state.ignores_watches.subscribe();
        loop {
            if ignored.wait_for(|ignored| !*ignored).await.is_err() {
                return;
            }
            let done = tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => self.handle(request).await,
                    _ => return,
                },
                _ = revision.changed() => Ok(()),
                _ = generation.changed() => return,
                () = tokio::time::sleep(SLOW_INTERVAL), if self.is_slow() => Ok(()),
            };
            if done.is_err() || self.send_events().await.is_err() {
                return;
            }
        }
    }

    /// Returns true while a watch gets its older events slowly.
    fn is_slow(&self) -> bool {
        let newest = *self.member.state.revision.borrow();
        self.member.state.has_slow_history.load(Ordering::SeqCst)
            && self.watches.values().any(|(_, next)| *next <= newest)
    }

    async fn handle(&mut self, request: WatchRequest) -> Result<(), Left> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create).await,
            Some(RequestUnion::CancelRequest(cancel)) => {
                self.watches.remove(&cancel.watch_id);
                let watch_id = cancel.watch_id;
                self.send(WatchResponse { watch_id, canceled: true, ..Default::default() }).await
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                self.send_events().await?;
                if self.is_slow() {
                    return Ok(());
                }
                self.send(WatchResponse { watch_id: -1, ..Default::default() }).await
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, create: WatchCreateRequest) -> Result<(), Left> {
        self.member.state.counts.creates.fetch_add(1, Ordering::SeqCst);
        if let Err(status) = self.member.check_token(self.token.as_deref()) {
            let (code, why) = (status.code(), status.message());
            let cancel_reason = format!("rpc error: code = {code:?} desc = {why}");
            let (created, canceled) = (true, true);
            let response = WatchResponse { created, canceled, cancel_reason, ..Default::default() };
            return self.send(WatchResponse { watch_id: -1, ..response }).await;
        }
        let span = Span::of_request(&create.key, &create.range_end);
        if create.start_revision < 0 || span.is_empty() {
            let cancel_reason = "the member rejects it".to_owned();
            let (created, canceled) = (true, true);
            let response = WatchResponse { created, canceled, cancel_reason, ..Default::default() };
            return self.send(WatchResponse { watch_id: -1, ..response }).await;
        }
        if self.member.state.is_compacted.load(Ordering::SeqCst) {
            let compact_revision = *self.member.state.revision.borrow() + 1;
            let (created, canceled, watch_id) = (false, true, create.watch_id);
            let response = WatchResponse { created, watch_id, ..Default::default() };
            return self.send(WatchResponse { canceled, compact_revision, ..response }).await;
        }
        let next = match create.start_revision {
            0 => *self.member.state.revision.borrow() + 1,
            start => start,
        };
        let watch_id = create.watch_id;
        self.watches.insert(watch_id, (span, next));
        self.send(WatchResponse { watch_id, created: true, ..Default::default() }).await
    }

    async fn send_events(&mut self) -> Result<(), Left> {
        let mut found = Vec::new();
        {
            let is_slow = self.is_slow();
            let store = self.member.state.store.lock();
            for (watch_id, (span, next)) in &mut self.watches {
                let last = if is_slow { store.revision.min(*next) } else { store.revision };
                let events = store.events.iter().filter(|event| {
                    let record = event.kv.as_ref().unwrap();
                    let key = &record.key[..];
                    let is_inside =
                        key >= &span.from[..] && span.to.as_ref().is_none_or(|to| key < &to[..]);
                    record.mod_revision >= *next && record.mod_revision <= last && is_inside
                });
                let events: Vec<_> = events.cloned().collect();
                *next = (*next).max(last + 1);
                if !events.is_empty() {
                    found.push((*watch_id, events));
                }
            }
        }
        for (watch_id, events) in found {
            self.send(WatchResponse { watch_id, events, ..Default::default() }).await?;
        }
        Ok(())
    }

    async fn send(&self, response: WatchResponse) -> Result<(), Left> {
        let response = WatchResponse { header: Some(self.member.header()), ..response };
        self.responses.send(Ok(response)).await.map_err(|_| Left)
    }
}
