//! One client's stream of watches.
//!
//! A task takes the client's requests, the deliveries of scopes, and the responses of direct
//! watches, and sends responses in order. If the client does not read, the task waits. Then the
//! queue fills, and watches of scopes become lagging; nobody else is delayed.
//!
//! * Progress at revision P is sent when every event up to P was sent on this stream. P comes from
//!   the scopes after a probe, and from the member for direct watches.
//! * A direct watch of an anonymous client joins its range's scope when it has caught up with the
//!   scope's history.
//! * The end of the client's requests does not end the stream, as in etcd.

mod progress;
mod upstream;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clearlane_mvcc::watch::{
    INVALID_WATCH_ID, WatchError, WatchIdAllocator, WatchRequest as Check,
};
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse,
};
use clearlane_proto::mvccpb::Event;
use futures_util::future::{Either, pending, select_all};
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout_at};
use tonic::{Code, Status, Streaming};

use super::direct::{DirectEvent, DirectStream};
use super::progress::ProgressRequest;
use super::queue::{Delivery, SessionQueue};
use super::watcher::{CATCH_UP_BYTES, Found, Source, Watcher};
use crate::cache::Cache;
use crate::cache::range::Span;
use crate::cache::scope::Scope;
use crate::connection::ConnectionState;
use crate::identity::Caller;
use crate::namespace::Namespace;
use crate::services::Services;
use crate::small_buffers::Boxed;
use crate::status;

/// Longest time that a new watch waits until its range is cached. Then it goes upstream, and joins
/// the cache later.
const SCOPE_PATIENCE: Duration = Duration::from_millis(500);
/// Number of deliveries after which the client's requests are handled.
const DELIVERIES_PER_TURN: usize = 256;
/// Interval between two attempts of direct watches to join the cache.
const JOIN_INTERVAL: Duration = Duration::from_secs(1);
/// etcd's default of `--watch-progress-notify-interval`.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);
/// A message with events is longer only if its first event is, for clients that accept fragments:
/// etcd's limit of requests and its `grpcOverheadBytes`.
const FRAGMENT_BYTES: usize = (1 << 20) + (1 << 19) + (1 << 19);
const REOPEN_DELAY_MIN: Duration = Duration::from_millis(20);
const REOPEN_DELAY_MAX: Duration = Duration::from_secs(1);

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
static NEXT_STREAM: AtomicU64 = AtomicU64::new(1);

pub(crate) type Responses = mpsc::Sender<Boxed<WatchResponse>>;
type ProgressFuture = Pin<Box<dyn Future<Output = Option<i64>> + Send>>;

pub(crate) struct Session {
    /// The number of the stream in timelines.
    stream: u64,
    cache: Arc<Cache>,
    namespace: Option<Namespace>,
    caller: Caller,
    connection: Arc<ConnectionState>,
    /// The cluster's epoch in which the watches were created.
    epoch: u64,
    epochs: watch::Receiver<u64>,
    responses: Responses,
    queue: Arc<SessionQueue>,
    watchers: HashMap<u64, Watcher>,
    /// The numbers of the watches, by the client's IDs.
    numbers: HashMap<i64, u64>,
    /// The numbers of the direct watches, by their IDs upstream.
    upstream_ids: HashMap<i64, u64>,
    /// The numbers of watches that must read the history of their scope.
    lagging: VecDeque<u64>,
    /// The scopes of the watches, as of the last `refresh_scopes`.
    scopes: Vec<Arc<Scope>>,
    are_scopes_stale: bool,
    ids: WatchIdAllocator,
    direct: Option<DirectStream>,
    reopen_delay: Duration,
    /// True if the last stream upstream has ended because of the login's token.
    is_token_rejected: bool,
    /// When lost direct watches are created again.
    reopen_at: Option<Instant>,
    progress: ProgressRequest,
    /// Waits until the scopes are up to date, and returns the revision that they have reached.
    scopes_reached: Option<ProgressFuture>,
    notices: Option<Interval>,
    last_header: ResponseHeader,
    /// The newest revision of an event that was sent.
    last_event: i64,
}

/// The client has left, or the stream has ended with an error that was sent.
struct Ended;

type Step = Result<(), Ended>;

impl Session {
    pub(crate) fn new(
        services: &Services,
        caller: Caller,
        connection: Arc<ConnectionState>,
        responses: Responses,
    ) -> Session {
        let epochs = services.cache.epochs();
        let epoch = *epochs.borrow();
        Session {
            stream: NEXT_STREAM.fetch_add(1, Ordering::Relaxed),
            cache: Arc::clone(&services.cache),
            namespace: services.namespace.clone(),
            caller,
            connection,
            epoch,
            epochs,
            responses,
            queue: Arc::default(),
            watchers: HashMap::new(),
            numbers: HashMap::new(),
            upstream_ids: HashMap::new(),
            lagging: VecDeque::new(),
            scopes: Vec::new(),
            are_scopes_stale: false,
            ids: WatchIdAllocator::default(),
            direct: None,
            reopen_delay: REOPEN_DELAY_MIN,
            is_token_rejected: false,
            reopen_at: None,
            progress: ProgressRequest::default(),
            scopes_reached: None,
            notices: None,
            last_header: ResponseHeader::default(),
            last_event: 0,
        }
    }

    /// Serves the stream until the client leaves, the stream fails, or `stopped` is ready.
    pub(crate) async fn run(
        mut self,
        requests: Streaming<WatchRequest>,
        stopped: impl Future<Output = ()> + Send,
    ) {
        tokio::select! {
            _ = self.serve(requests) => {}
            () = stopped => {
                // A client that does not read sees only the end of its connection.
                let _ = self.responses.try_send(Err(status::stopped()));
            }
        }
        for watcher in self.watchers.values() {
            if let Source::Scope { scope, handle, .. } = &watcher.source {
                scope.remove(handle);
            }
        }
    }

    async fn serve(&mut self, requests: Streaming<WatchRequest>) -> Step {
        let mut requests = Some(requests);
        let responses = self.responses.clone();
        let mut join = interval_at(Instant::now() + JOIN_INTERVAL, JOIN_INTERVAL);
        join.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.follow_epoch().await?;
            let has_more = self.drain_queue().await?;
            let queue = Arc::clone(&self.queue);
            self.refresh_scopes();
            let leaderless = self.leaderless();
            let reopen = self.reopen_at;
            // Creations would have no limit while the stream upstream is lost.
            let takes_requests =
                reopen.is_none() && self.direct.as_ref().is_none_or(DirectStream::has_room);
            tokio::select! {
                request = next_request(&mut requests), if takes_requests => match request {
                    Ok(request) => self.handle_request(request).await?,
                    Err(status) => return self.end(status).await,
                },
                () = async { if !has_more { queue.filled().await } } => {}
                event = next_event(&mut self.direct) => self.handle_direct(event).await?,
                reached = scopes_reached(&mut self.scopes_reached) => {
                    self.scopes_reached = None;
                    self.progress.scopes_reached(reached);
                }
                () = leaderless => return self.end(status::no_leader()).await,
                () = at(reopen) => self.reopen().await?,
                _ = join.tick() => self.try_to_join().await?,
                // The next turn of the loop follows it. The cache has the sender.
                _ = self.epochs.changed() => {}
                () = tick(&mut self.notices) => self.send_notices().await?,
                () = responses.closed() => return Err(Ended),
            }
        }
    }

    async fn end(&mut self, status: Status) -> Step {
        let _ = self.responses.send(Err(status)).await;
        Err(Ended)
    }

    async fn send(&mut self, mut response: WatchResponse) -> Step {
        if let Some(namespace) = &self.namespace {
            namespace.remove_from_events(&mut response.events);
        }
        if let Some(header) = &response.header {
            self.connection.note_seen(self.epoch, header.revision);
            self.cache.note_seen(self.epoch, header.revision);
            self.last_header = *header;
        }
        if let Some(last) = response.events.last().and_then(|event| event.kv.as_ref()) {
            self.last_event = self.last_event.max(last.mod_revision);
        }
        let traced = self.cache.trace.start_write(self.stream, &response, || {
            self.scope_of(self.numbers.get(&response.watch_id)?).map(|scope| scope.span.clone())
        });
        let sent = self.responses.send(Ok(Box::new(response))).await;
        self.cache.trace.end_write(traced);
        sent.map_err(|_| Ended)
    }

    /// Returns the scope from which the watch with this number has its events.
    fn scope_of(&self, number: &u64) -> Option<&Arc<Scope>> {
        match &self.watchers.get(number)?.source {
            Source::Scope { scope, .. } => Some(scope),
            Source::Direct { .. } => None,
        }
    }

    /// Returns when a client that requires a leader must be told that there is none.
    fn leaderless(&self) -> impl Future<Output = ()> + use<> {
        if !self.caller.requires_leader() {
            return Either::Left(pending());
        }
        let mut waits: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        for scope in &self.scopes {
            let mut leaderless = scope.leaderless();
            waits.push(Box::pin(async move {
                let _ = leaderless.wait_for(|is_leaderless| *is_leaderless).await;
            }));
        }
        if waits.is_empty() {
            return Either::Left(pending());
        }
        Either::Right(async move {
            select_all(waits).await;
        })
    }

    /// Collects the scopes of the watches again, after a watch has joined or left one.
    fn refresh_scopes(&mut self) {
        if !std::mem::take(&mut self.are_scopes_stale) {
            return;
        }
        self.scopes.clear();
        for watcher in self.watchers.values() {
            if let Source::Scope { scope, .. } = &watcher.source
                && !self.scopes.iter().any(|known| Arc::ptr_eq(known, scope))
            {
                self.scopes.push(Arc::clone(scope));
            }
        }
    }

    async fn handle_request(&mut self, request: WatchRequest) -> Step {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create).await,
            Some(RequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => {
                self.request_progress();
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, mut create: WatchCreateRequest) -> Step {
        if let Some(namespace) = &self.namespace {
            namespace.add_to_watch(&mut create);
        }
        let check = Check {
            start_revision: create.start_revision,
            id: create.watch_id,
            ..Check::new(Watcher::keys_of(&create))
        };
        if let Some(error) = check.rejection(|id| self.numbers.contains_key(&id)) {
            return self.reject(create, error).await;
        }
        let numbers = &self.numbers;
        let id = self.ids.allocate(create.watch_id, |id| numbers.contains_key(&id));
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        self.numbers.insert(id, number);
        if create.progress_notify && self.notices.is_none() {
            let mut notices = interval_at(Instant::now() + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
            notices.set_missed_tick_behavior(MissedTickBehavior::Delay);
            self.notices = Some(notices);
        }
        let mut watcher = Watcher::new(id, create);
        let scope = self.usable_scope(&watcher.create).await;
        self.follow_epoch().await?;
        if let Some(scope) = scope
            && let Some((found, created)) = self.attach(number, &mut watcher, &scope)
        {
            watcher.is_created = true;
            self.watchers.insert(number, watcher);
            self.send(WatchResponse { watch_id: id, created: true, ..message(created) }).await?;
            return self.send_caught_up(number, found).await;
        }
        let create = watcher.continuation();
        self.watchers.insert(number, watcher);
        self.create_upstream(number, create);
        Ok(())
    }

    async fn reject(&mut self, create: WatchCreateRequest, error: WatchError) -> Step {
        let header = self.current_header().await;
        if header.revision == 0 && error != WatchError::DuplicateId {
            // The proxy has no header, because it may read nothing without the client's token. So a
            // member rejects the creation.
            let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
            let watcher = Watcher::new(INVALID_WATCH_ID, create);
            let create = watcher.continuation();
            self.watchers.insert(number, watcher);
            self.create_upstream(number, create);
            return Ok(());
        }
        self.send(WatchResponse {
            watch_id: INVALID_WATCH_ID,
            created: true,
            canceled: true,
            cancel_reason: error.to_string(),
            ..message(header)
        })
        .await
    }

    /// Returns a header with a revision that the cluster has reached. The header is empty if the
    /// proxy knows no revision.
    async fn current_header(&mut self) -> ResponseHeader {
        let published = self.cache.scopes().iter().find_map(|scope| scope.published());
        match published {
            Some(state) => state.header,
            None => match self.cache.probe().await {
                Ok(probe) => probe.header,
                Err(_) => self.last_header,
            },
        }
    }

    /// Returns the scope that may serve this watch: the caller is anonymous, and the cluster has no
    /// auth.
    async fn usable_scope(&mut self, create: &WatchCreateRequest) -> Option<Arc<Scope>> {
        if !self.caller.is_anonymous() {
            return None;
        }
        let key = if create.key.is_empty() { vec![0].into() } else { create.key.clone() };
        let span = Span::of_request(&key, &create.range_end);
        let scope = self.cache.scope_for_watch(&span, SCOPE_PATIENCE).await?;
        if !scope.is_fresh(self.cache.config.lag_max) {
            let deadline = Instant::now() + SCOPE_PATIENCE;
            let probe = timeout_at(deadline, self.cache.probe()).await.ok()?.ok()?;
            scope.wait_for(probe.header.revision, deadline).await?;
            scope.mark_fresh(probe.started);
        }
        if create.start_revision > 0 && !create.prev_kv {
            scope.backfill(&self.cache, create.start_revision, SCOPE_PATIENCE).await;
        }
        Some(scope)
    }

    /// Returns the scope that a direct watch can join now.
    fn joinable_scope(&self, create: &WatchCreateRequest) -> Option<Arc<Scope>> {
        let key = if create.key.is_empty() { vec![0].into() } else { create.key.clone() };
        let scope = self.cache.covering(&Span::of_request(&key, &create.range_end))?;
        scope.is_fresh(self.cache.config.lag_max).then_some(scope)
    }

    fn attach(
        &mut self,
        number: u64,
        watcher: &mut Watcher,
        scope: &Arc<Scope>,
    ) -> Option<(Vec<Found>, ResponseHeader)> {
        let (epoch, seen) = (self.epoch, self.cache.seen(self.epoch));
        let attached = watcher.attach(number, scope, &self.queue, epoch, seen, CATCH_UP_BYTES)?;
        if let Source::Scope { is_lagging: true, .. } = watcher.source {
            self.lagging.push_back(number);
        }
        self.are_scopes_stale = true;
        Some(attached)
    }

    async fn cancel(&mut self, id: i64) -> Step {
        let Some(number) = self.numbers.get(&id).copied() else { return Ok(()) };
        let Some(watcher) = self.watchers.get_mut(&number) else { return Ok(()) };
        if watcher.is_canceled {
            return Ok(());
        }
        if let Source::Direct { upstream_id, .. } = watcher.source
            && self.direct.is_some()
            && self.reopen_at.is_none()
        {
            // The member answers, after all events that it has sent.
            watcher.is_canceled = true;
            self.direct().cancel(upstream_id);
            return Ok(());
        }
        self.end_canceled(number).await
    }

    async fn end_canceled(&mut self, number: u64) -> Step {
        let Some(Watcher { id, .. }) = self.forget(number) else { return Ok(()) };
        let header = self.current_header().await;
        self.send(WatchResponse { watch_id: id, canceled: true, ..message(header) }).await
    }

    fn forget(&mut self, number: u64) -> Option<Watcher> {
        let watcher = self.watchers.remove(&number)?;
        // A rejected creation has the invalid ID, which may also be the client's ID of a watch.
        if self.numbers.get(&watcher.id) == Some(&number) {
            self.numbers.remove(&watcher.id);
        }
        match &watcher.source {
            Source::Scope { scope, handle, .. } => {
                scope.remove(handle);
                self.are_scopes_stale = true;
            }
            Source::Direct { upstream_id, .. } => drop(self.upstream_ids.remove(upstream_id)),
        }
        Some(watcher)
    }

    /// Sends what the scopes have delivered, and then what lagging watches have missed. Stops after
    /// a number of deliveries, so that the client's requests are handled meanwhile. Returns true if
    /// it has stopped early.
    async fn drain_queue(&mut self) -> Result<bool, Ended> {
        let mut left = DELIVERIES_PER_TURN;
        loop {
            while let Some(delivery) = self.queue.take() {
                match delivery {
                    Delivery::Events(number, events, picks) => {
                        if let Some(watcher) = self.watchers.get_mut(&number) {
                            let wanted = watcher.take(&events, &picks);
                            self.send_events(number, events.revision, wanted).await?;
                        }
                    }
                    Delivery::Lagging(number, from) => {
                        if let Some(watcher) = self.watchers.get_mut(&number) {
                            watcher.set_lagging(from);
                            self.lagging.push_back(number);
                        }
                    }
                    Delivery::Detached(number, delivered) => {
                        if let Some(watcher) = self.watchers.get_mut(&number) {
                            watcher.set_detached(delivered);
                        }
                        self.detach(number).await?;
                    }
                    Delivery::Ended(number) => self.end_replaced(number).await?,
                }
                left -= 1;
                if left == 0 {
                    return Ok(true);
                }
            }
            match self.lagging.pop_front() {
                Some(number) => self.catch_up(number).await?,
                None => break,
            }
            left -= 1;
            if left == 0 {
                return Ok(true);
            }
        }
        self.send_progress().await?;
        Ok(false)
    }

    async fn send_events(&mut self, number: u64, revision: i64, wanted: Vec<Event>) -> Step {
        let Some(watcher) = self.watchers.get(&number) else { return Ok(()) };
        if wanted.is_empty() {
            return Ok(());
        }
        let (watch_id, in_fragments) = (watcher.id, watcher.create.fragment);
        let mut header = match &watcher.source {
            Source::Scope { scope, .. } => scope.published().map(|state| state.header),
            Source::Direct { .. } => None,
        }
        .unwrap_or(self.last_header);
        header.revision = revision;
        let response = WatchResponse { watch_id, ..message(header) };
        self.send_message(response, wanted, in_fragments).await
    }

    async fn send_message(
        &mut self,
        response: WatchResponse,
        events: Vec<Event>,
        in_fragments: bool,
    ) -> Step {
        if !in_fragments {
            return self.send(WatchResponse { events, ..response }).await;
        }
        let mut events = events.into_iter().peekable();
        while events.peek().is_some() {
            let mut bytes = response.encoded_len();
            let mut part = Vec::new();
            while let Some(event) =
                events.next_if(|it| part.is_empty() || bytes + it.encoded_len() <= FRAGMENT_BYTES)
            {
                bytes += event.encoded_len() + 8;
                part.push(event);
            }
            let fragment = events.peek().is_some();
            self.send(WatchResponse { events: part, fragment, ..response.clone() }).await?;
        }
        Ok(())
    }

    async fn catch_up(&mut self, number: u64) -> Step {
        let Some(watcher) = self.watchers.get_mut(&number) else { return Ok(()) };
        match watcher.catch_up(CATCH_UP_BYTES) {
            Some(found) => {
                if let Source::Scope { is_lagging: true, .. } = watcher.source {
                    self.lagging.push_back(number);
                }
                self.send_caught_up(number, found).await
            }
            None => self.detach(number).await,
        }
    }

    async fn send_caught_up(&mut self, number: u64, found: Vec<Found>) -> Step {
        // The watch has looked at all revisions below this one, also those without an event for it.
        let reached = self.watchers.get(&number).map_or(0, |watcher| watcher.next);
        for (events, picks) in found {
            let Some(watcher) = self.watchers.get_mut(&number) else { break };
            let wanted = watcher.take_missed(&events, &picks);
            self.send_events(number, events.revision, wanted).await?;
        }
        if let Some(watcher) = self.watchers.get_mut(&number) {
            watcher.next = watcher.next.max(reached);
        }
        Ok(())
    }

    /// Continues a watch upstream, from its next revision on. Ends it if this revision is about
    /// another epoch.
    async fn detach(&mut self, number: u64) -> Step {
        self.follow_epoch().await?;
        if let Some(watcher) = self.watchers.get(&number)
            && !watcher.is_direct()
        {
            let create = watcher.continuation();
            self.create_upstream(number, create);
        }
        Ok(())
    }

    /// Ends all watches that the client knows if a new epoch has started. Their revisions mean
    /// nothing to the cluster of the new epoch.
    async fn follow_epoch(&mut self) -> Step {
        let epoch = *self.epochs.borrow_and_update();
        if epoch == self.epoch {
            return Ok(());
        }
        let mut created: Vec<u64> = self.watchers.keys().copied().collect();
        created.retain(|number| self.watchers[number].is_created);
        created.sort_unstable();
        for number in created {
            self.end_replaced(number).await?;
        }
        self.epoch = epoch;
        self.last_event = 0;
        self.last_header = ResponseHeader::default();
        self.scopes_reached = None;
        if self.progress.is_requested() {
            self.progress.clear();
            self.request_progress();
        }
        Ok(())
    }

    async fn end_replaced(&mut self, number: u64) -> Step {
        let Some(watcher) = self.forget(number) else { return Ok(()) };
        if let (Source::Direct { upstream_id, .. }, Some(direct)) = (&watcher.source, &self.direct)
        {
            direct.cancel(*upstream_id);
        }
        let cancel_reason = "clearlane grpc-proxy: the cluster was replaced".to_owned();
        let response = message(self.last_header);
        self.send(WatchResponse { watch_id: watcher.id, canceled: true, cancel_reason, ..response })
            .await
    }
}

fn message(header: ResponseHeader) -> WatchResponse {
    WatchResponse { header: Some(header), ..WatchResponse::default() }
}

/// Returns the next request. At the end of the requests, it waits for ever.
async fn next_request(
    requests: &mut Option<Streaming<WatchRequest>>,
) -> Result<WatchRequest, Status> {
    if let Some(open) = requests {
        match open.message().await {
            Ok(Some(request)) => return Ok(request),
            Ok(None) => *requests = None,
            Err(status) if status.code() == Code::Cancelled => {
                return Err(Status::cancelled("etcdserver: watch canceled"));
            }
            Err(status) => return Err(status),
        }
    }
    pending().await
}

async fn next_event(direct: &mut Option<DirectStream>) -> DirectEvent {
    match direct {
        Some(direct) => direct.next().await,
        None => pending().await,
    }
}

async fn scopes_reached(scopes: &mut Option<ProgressFuture>) -> Option<i64> {
    match scopes {
        Some(scopes) => scopes.await,
        None => pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => pending().await,
    }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => pending().await,
    }
}
