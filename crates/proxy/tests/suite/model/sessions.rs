//! Watch sessions. The queue, each [`Watcher`] and the [`ProgressRequest`] are real. The loop
//! around them does one step at a time, in the order of the real session: first the queue, then
//! lagging watches, then progress, then one input.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchProgressRequest, WatchResponse,
};
use clearlane_proto::mvccpb::Event;
use clearlane_proxy::cache::range::Span;
use clearlane_proxy::cache::scope::Reached;
use clearlane_proxy::watch::progress::ProgressRequest;
use clearlane_proxy::watch::queue::{Delivery, SessionQueue};
use clearlane_proxy::watch::watcher::{Found, Source, Watcher};
use rand::RngExt as _;

use super::bugs::Bug;
use super::probes::{Probed, Waiter};
use super::world::{DIRECTORIES, Time, header};
use super::{Action, EPOCH, Simulation};

/// Longest wait for a scope.
const PATIENCE: Time = 100;
/// A few events.
const QUEUE_BYTES: usize = 1200;
pub(super) const CATCH_UP_BYTES: usize = 500;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) connection: usize,
    /// The session takes a step once in up to this time.
    pace: Time,
    queue: Arc<SessionQueue>,
    pub(super) watchers: BTreeMap<u64, Watcher>,
    pub(super) stream: Option<u64>,
    /// The lost watches are created again later.
    pub(super) is_reopening: bool,
    /// The numbers and upstream IDs of watches whose creation was not answered.
    pub(super) unanswered: VecDeque<(u64, i64)>,
    pub(super) next_id: i64,
    pub(super) progress: ProgressRequest,
    reaching: Option<Reaching>,
    /// The session handles nothing else while it creates a watch.
    creating: Option<Creating>,
    pub(super) inputs: VecDeque<Input>,
}

/// What a session handles after its queue.
#[derive(Debug)]
pub(super) enum Input {
    Create(WatchCreateRequest),
    /// The client cancels a watch.
    Cancel(u64),
    Progress,
    /// A response of this stream.
    Direct(u64, WatchResponse),
    Lost(u64),
    Reopen,
    ScopesReached(Option<i64>),
    /// Requests progress upstream, so that direct watches can join scopes.
    Join,
}

/// The scopes that must have the revision of a probe.
#[derive(Debug)]
struct Reaching {
    feeds: Vec<usize>,
    revision: Option<i64>,
    deadline: Time,
}

#[derive(Debug)]
struct Creating {
    number: u64,
    watcher: Watcher,
    feed: usize,
    started: Time,
    probed: Option<Probed>,
    deadline: Time,
}

impl Session {
    pub(super) fn new(connection: usize, pace: Time) -> Session {
        Session {
            connection,
            pace,
            queue: Arc::new(SessionQueue::new(QUEUE_BYTES)),
            watchers: BTreeMap::new(),
            stream: None,
            is_reopening: false,
            unanswered: VecDeque::new(),
            next_id: 1,
            progress: ProgressRequest::default(),
            reaching: None,
            creating: None,
            inputs: VecDeque::new(),
        }
    }

    pub(super) fn queue(&self) -> &Arc<SessionQueue> {
        &self.queue
    }

    fn has_direct(&self) -> bool {
        self.watchers.values().any(Watcher::is_direct)
    }
}

impl Simulation {
    pub(super) fn session_step(&mut self, number: usize) {
        let pace = self.sessions[number].pace;
        self.after(1..pace.max(2), Action::SessionStep(number));
        let session = &mut self.sessions[number];
        if session.creating.is_some() {
            return;
        }
        if let Some(delivery) = session.queue.take() {
            return self.take_delivery(number, delivery);
        }
        let is_lagging =
            |source: &Source| matches!(source, Source::Scope { is_lagging, .. } if *is_lagging);
        let mut watchers = session.watchers.iter_mut();
        if let Some((watch, watcher)) = watchers.find(|(_, watcher)| is_lagging(&watcher.source)) {
            let watch = *watch;
            match watcher.catch_up(CATCH_UP_BYTES) {
                Some(found) => self.send_missed(number, watch, found),
                None => self.detach(number, watch),
            }
            return;
        }
        self.send_progress(number);
        if let Some(input) = self.sessions[number].inputs.pop_front() {
            self.take_input(number, input);
        }
    }

    /// Cancels one of the client's watches.
    pub(super) fn cancel_watch(&mut self, number: usize) {
        self.after(50..400, Action::CancelWatch(number));
        let watches: Vec<u64> = self.sessions[number].watchers.keys().copied().collect();
        if !watches.is_empty() {
            let watch = watches[self.random.random_range(0..watches.len())];
            self.sessions[number].inputs.push_back(Input::Cancel(watch));
        }
    }

    fn take_delivery(&mut self, number: usize, delivery: Delivery) {
        let watchers = &mut self.sessions[number].watchers;
        match delivery {
            Delivery::Events(watch, events, picks) => {
                let wanted = watchers.get_mut(&watch).map(|it| it.take(&events, &picks));
                self.send_events(number, watch, events.revision, wanted.unwrap_or_default());
            }
            Delivery::Lagging(watch, from) => {
                self.checker.counts.lagging += 1;
                if let Some(watcher) = watchers.get_mut(&watch) {
                    watcher.set_lagging(from);
                }
            }
            Delivery::Detached(watch, delivered) => {
                if let Some(watcher) = watchers.get_mut(&watch) {
                    watcher.set_detached(delivered);
                    self.detach(number, watch);
                }
            }
            Delivery::Ended(watch) => panic!("the cluster was not replaced: {watch}"),
        }
    }

    fn take_input(&mut self, number: usize, input: Input) {
        match input {
            Input::Create(create) => self.create_watch(number, create),
            Input::Cancel(watch) => self.cancel(number, watch),
            Input::Progress => self.request_progress(number),
            Input::Direct(stream, response) => self.direct_response(number, stream, response),
            Input::Lost(stream) if self.sessions[number].stream == Some(stream) => {
                self.direct_lost(number);
            }
            Input::Lost(_) => {}
            Input::Reopen => self.reopen(number),
            Input::ScopesReached(revision) => {
                self.sessions[number].progress.scopes_reached(revision);
            }
            Input::Join => {
                let session = &self.sessions[number];
                let can_join = session.watchers.values().any(Watcher::can_join);
                let is_anonymous = self.connections[session.connection].caller.is_anonymous();
                if let Some(stream) = session.stream.filter(|_| is_anonymous && can_join) {
                    let request = RequestUnion::ProgressRequest(WatchProgressRequest::default());
                    self.send_upstream(stream, request);
                }
            }
        }
    }

    /// Sends a response to the client.
    pub(super) fn send(&mut self, number: usize, response: &WatchResponse) {
        let revision = response.header.as_ref().unwrap().revision;
        self.note_seen(self.sessions[number].connection, revision);
        self.checker.watch_response(&self.world, self.now, number, response);
    }

    fn send_events(&mut self, number: usize, watch: u64, revision: i64, events: Vec<Event>) {
        if !events.is_empty() {
            let watch_id = self.sessions[number].watchers[&watch].id;
            let header = header(0, revision);
            self.send(number, &WatchResponse { watch_id, events, ..message(header) });
        }
    }

    pub(super) fn send_missed(&mut self, number: usize, watch: u64, found: Vec<Found>) {
        for (events, picks) in found {
            let watcher = self.sessions[number].watchers.get_mut(&watch).unwrap();
            let wanted = watcher.take_missed(&events, &picks);
            self.send_events(number, watch, events.revision, wanted);
        }
    }

    // ---- creation ----

    pub(super) fn random_watch(&mut self, number: usize) {
        self.after(20..250, Action::CreateWatch(number));
        let directory = DIRECTORIES[self.random.random_range(0..2)];
        let (key, range_end) = match self.random.random_range(0..10) {
            0..3 => (format!("{directory}{}", self.random.random_range(0..10)), String::new()),
            3..7 => (directory.to_owned(), directory.replace('/', "0")),
            _ => ("a/".to_owned(), "c".to_owned()),
        };
        let newest = self.world.revision;
        let start_revision = match self.random.random_range(0..10) {
            0..4 => 0,
            4..8 => self.random.random_range((newest - 40).max(1)..=newest),
            _ => newest + self.random.random_range(1..10),
        };
        let filters = match self.random.random_range(0..5) {
            filter @ 0..2 => vec![filter],
            _ => Vec::new(),
        };
        self.next_watch += 1;
        let create = WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            start_revision,
            filters,
            prev_kv: self.chance(0.5),
            watch_id: self.next_watch,
            ..WatchCreateRequest::default()
        };
        self.sessions[number].inputs.push_back(Input::Create(create));
    }

    fn create_watch(&mut self, number: usize, create: WatchCreateRequest) {
        self.checker.create_watch(number, &create);
        let span = Span::of_request(&create.key, &create.range_end);
        let watcher = Watcher::new(create.watch_id, create);
        let watch = watcher.id as u64;
        let is_anonymous = self.connections[self.sessions[number].connection].caller.is_anonymous();
        let Some(feed) = self.covering(&span).filter(|_| is_anonymous) else {
            return self.create_direct(number, watch, watcher);
        };
        let (started, deadline) = (self.now, self.now + PATIENCE);
        let creating = Creating { number: watch, watcher, feed, started, probed: None, deadline };
        if self.is_fresh(&self.feeds[feed].scope) {
            return self.attach(number, creating);
        }
        self.sessions[number].creating = Some(creating);
        self.probe(Waiter::Creation(number));
        self.after(PATIENCE..PATIENCE + 1, Action::SessionDeadline(number));
    }

    pub(super) fn creation_probed(&mut self, number: usize, probed: Option<Probed>) {
        let session = &mut self.sessions[number];
        match (&mut session.creating, probed) {
            (Some(creating), Some(_)) => creating.probed = probed,
            (Some(_), None) => self.give_up_creation(number),
            (None, _) => {}
        }
    }

    fn give_up_creation(&mut self, number: usize) {
        let creating = self.sessions[number].creating.take().unwrap();
        self.create_direct(number, creating.number, creating.watcher);
    }

    fn attach(&mut self, number: usize, creating: Creating) {
        let Creating { number: watch, mut watcher, feed, started, .. } = creating;
        let (scope, queue) = (&self.feeds[feed].scope, &self.sessions[number].queue);
        let attached = watcher.attach(watch, scope, queue, EPOCH, self.seen, CATCH_UP_BYTES);
        let Some((found, header)) = attached else {
            return self.create_direct(number, watch, watcher);
        };
        let span = Span::of_request(&watcher.create.key, &watcher.create.range_end);
        self.checker.attach(&self.world, started, self.now, &span);
        watcher.is_created = true;
        let watch_id = watcher.id;
        self.sessions[number].watchers.insert(watch, watcher);
        self.send(number, &WatchResponse { watch_id, created: true, ..message(header) });
        self.send_missed(number, watch, found);
    }

    fn create_direct(&mut self, number: usize, watch: u64, mut watcher: Watcher) {
        let upstream_id = self.create_upstream(number, watch, watcher.continuation());
        watcher.source = Source::direct(upstream_id);
        self.sessions[number].watchers.insert(watch, watcher);
    }

    /// Creates a watch upstream, and returns its ID there.
    pub(super) fn create_upstream(
        &mut self,
        number: usize,
        watch: u64,
        create: WatchCreateRequest,
    ) -> i64 {
        let stream = self.direct_stream(number);
        let session = &mut self.sessions[number];
        let watch_id = session.next_id;
        session.next_id += 1;
        session.unanswered.push_back((watch, watch_id));
        if let Some(stream) = stream {
            let create = WatchCreateRequest { watch_id, ..create };
            self.send_upstream(stream, RequestUnion::CreateRequest(create));
        }
        watch_id
    }

    // ---- progress ----

    fn request_progress(&mut self, number: usize) {
        let session = &mut self.sessions[number];
        if session.reaching.is_some() {
            return;
        }
        let is_used = |scope: &Arc<_>| {
            let mut sources = session.watchers.values().map(|watcher| &watcher.source);
            sources.any(
                |it| matches!(it, Source::Scope { scope: used, .. } if Arc::ptr_eq(used, scope)),
            )
        };
        let feeds = self.feeds.iter().enumerate().filter(|(_, feed)| is_used(&feed.scope));
        let feeds: Vec<usize> = feeds.map(|(feed, _)| feed).collect();
        if session.has_direct() {
            session.progress.request_upstream();
            let stream = session.stream;
            let has_scopes = !feeds.is_empty();
            if let Some(stream) = stream {
                let request = RequestUnion::ProgressRequest(WatchProgressRequest::default());
                self.send_upstream(stream, request);
            }
            if !has_scopes {
                return;
            }
        }
        let session = &mut self.sessions[number];
        session.progress.request_scopes();
        session.reaching = Some(Reaching { feeds, revision: None, deadline: self.now + PATIENCE });
        self.probe(Waiter::Progress(number));
        self.after(PATIENCE..PATIENCE + 1, Action::SessionDeadline(number));
    }

    pub(super) fn progress_probed(&mut self, number: usize, probed: Option<Probed>) {
        let session = &mut self.sessions[number];
        match (&mut session.reaching, probed) {
            (Some(reaching), Some(probed)) => reaching.revision = Some(probed.revision),
            (Some(_), None) => self.end_reaching(number, None),
            (None, _) => {}
        }
    }

    fn end_reaching(&mut self, number: usize, revision: Option<i64>) {
        let session = &mut self.sessions[number];
        session.reaching = None;
        session.inputs.push_back(Input::ScopesReached(revision));
    }

    fn send_progress(&mut self, number: usize) {
        let session = &mut self.sessions[number];
        if session.progress.is_upstream_pending() && !session.has_direct() {
            session.progress.clear();
            self.request_progress(number);
        }
        let session = &mut self.sessions[number];
        let Some(revision) = session.progress.revision() else { return };
        let mut created = session.watchers.values().filter(|watcher| watcher.is_created);
        if self.bug != Some(Bug::UncheckedProgress)
            && !created.all(|watcher| watcher.has_sent(revision))
        {
            session.progress.clear();
            return self.request_progress(number);
        }
        if session.queue.is_empty() {
            session.progress.clear();
            let response = WatchResponse { watch_id: -1, ..message(header(0, revision)) };
            self.send(number, &response);
        }
    }

    /// Lets sessions continue that wait for a revision of a scope.
    pub(super) fn continue_sessions(&mut self) {
        for number in 0..self.sessions.len() {
            let reached = self.sessions[number].reaching.as_ref().and_then(|it| self.reached(it));
            if let Some(revision) = reached {
                self.end_reaching(number, revision);
            }
            let Some(creating) = &self.sessions[number].creating else { continue };
            let Some(probed) = creating.probed else { continue };
            let scope = Arc::clone(&self.feeds[creating.feed].scope);
            match scope.reached(probed.revision) {
                Reached::Yes(_) => {
                    self.mark_fresh(&scope, probed.started);
                    let creating = self.sessions[number].creating.take().unwrap();
                    self.attach(number, creating);
                }
                Reached::NotYet => scope.want_progress(),
                Reached::Reset => self.give_up_creation(number),
            }
        }
    }

    /// Returns the revision that all scopes have reached, or `None` while one has not.
    fn reached(&self, reaching: &Reaching) -> Option<Option<i64>> {
        let needed = reaching.revision?;
        let mut revision = needed;
        for feed in &reaching.feeds {
            let scope = &self.feeds[*feed].scope;
            match scope.reached(needed) {
                Reached::Yes(state) => revision = revision.min(state.snapshot.revision),
                Reached::NotYet => {
                    scope.want_progress();
                    return None;
                }
                Reached::Reset => return Some(None),
            }
        }
        Some(Some(revision))
    }

    pub(super) fn session_deadline(&mut self, number: usize) {
        let (now, session) = (self.now, &self.sessions[number]);
        let is_late = session.creating.as_ref().is_some_and(|it| it.deadline <= now);
        let reaching_is_late = session.reaching.as_ref().is_some_and(|it| it.deadline <= now);
        if is_late {
            self.give_up_creation(number);
        }
        if reaching_is_late {
            self.end_reaching(number, None);
        }
    }

    pub(super) fn set_paces(&mut self, pace: Time) {
        self.sessions.iter_mut().for_each(|session| session.pace = pace);
    }
}

pub(super) fn message(header: ResponseHeader) -> WatchResponse {
    WatchResponse { header: Some(header), ..WatchResponse::default() }
}
