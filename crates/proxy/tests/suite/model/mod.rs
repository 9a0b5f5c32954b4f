//! A simulation of the cache in virtual time, with a checker that knows the true history.
//!
//! ```text
//!   world: log, members ─┬─ streams ─▶ feeds ─▶ scopes ─┬─▶ readers ──▶ checker
//!                        ├─ probes ─────────────────────┤
//!                        └─ streams ───────────────────▶ sessions ──▶ checker
//! ```
//!
//! The cluster, the network and the clients are simulated: everything that takes time is an action
//! with a random delay. The decisions of the cache are made by its real code. The checker knows:
//! * A linearizable read returns the state of its header's revision. This revision includes all
//!   writes that were acknowledged before the read, and was committed before the read ended.
//! * A serializable read is not older than `LAG_MAX`. No read is older than what its connection has
//!   seen.
//! * A watch gets exactly the events of the history that it wants, in order and once. Progress
//!   follows all events up to its revision. In the end nothing is missing, and canceled watches
//!   have ended.
//! * The caller was permitted to read the range at some time during the call. For serializable
//!   reads and for the creation of watches, also up to `LAG_MAX` before.
//!
//! The last rule does not say when the data was written: a read that overlaps with the start of
//! auth may return data that was committed after it.
//!
//! `CLEARLANE_SEED=17 cargo test -p clearlane-proxy model` repeats a seed, and
//! `CLEARLANE_SEEDS=10000` runs more of them.

mod bugs;
mod checker;
mod direct;
mod feeds;
mod probes;
mod readers;
mod sessions;
mod streams;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use clearlane_proto::etcdserverpb::WatchResponse;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proxy::cache::feed::Interruption;
use clearlane_proxy::cache::range::Span;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use bugs::Bug;
use checker::{Checker, Counts};
use feeds::{Feed, FeedStep};
use probes::Probes;
use readers::{Connection, Read};
use sessions::{Input, Session};
use streams::{Owner, Stream};
use world::{Auth, Time, World};

const SEEDS: u64 = 300;
/// Writes and faults end at this time.
const ACTIVE: Time = 1200;
const END: Time = 2000;
const LAG_MAX: Time = 150;
/// The cluster is never replaced. The module `replaced` tests that.
const EPOCH: u64 = 0;

#[derive(Debug)]
enum Action {
    Commit,
    Acknowledge(i64),
    Apply(usize),
    Compact,
    ChangeAuth,
    Kill,
    Revive(usize),
    Break,
    Heal,
    ToMember(u64, RequestUnion),
    FromMember(u64, WatchResponse),
    Pump(u64),
    Lost(Owner, u64),
    Feed(usize, FeedStep),
    FeedTick(usize),
    KeepFresh(usize),
    ProbeEffect(u64),
    ProbeEnd(u64),
    StartRead,
    ReadStep(u64),
    ReadDeadline(u64),
    SessionStep(usize),
    SessionDeadline(usize),
    CreateWatch(usize),
    CancelWatch(usize),
    RequestProgress(usize),
    Join(usize),
    Input(usize, Box<Input>),
}

struct Simulation {
    bug: Option<Bug>,
    random: SmallRng,
    now: Time,
    /// The instant of time 0.
    start: Instant,
    actions: BTreeMap<(Time, u64), Action>,
    next_action: u64,
    world: World,
    /// When each member applies the newest entry of the log.
    applied_at: [Time; 3],
    streams: BTreeMap<u64, Stream>,
    next_stream: u64,
    feeds: Vec<Feed>,
    probes: Probes,
    connections: Vec<Connection>,
    /// The newest revision that any client has seen.
    seen: i64,
    reads: BTreeMap<u64, Read>,
    next_read: u64,
    sessions: Vec<Session>,
    next_watch: i64,
    checker: Checker,
}

impl Simulation {
    fn new(seed: u64, bug: Option<Bug>) -> Simulation {
        let mut random = SmallRng::seed_from_u64(seed);
        let revisions_max = random.random_range(5..40);
        let spans = ["a/", "b/", ""].map(|prefix| Span::of_prefix(prefix.as_bytes()));
        let users = [None, None, None, Some(0), Some(1)];
        let paces = [3, random.random_range(3..80), 10, 10];
        Simulation {
            bug,
            random,
            now: 0,
            // Later than the creation of the scopes, whose first contents are not fresh then.
            start: Instant::now() + Duration::from_secs(100_000),
            actions: BTreeMap::new(),
            next_action: 0,
            world: World::new(),
            applied_at: [0; 3],
            streams: BTreeMap::new(),
            next_stream: 0,
            feeds: spans.map(|span| Feed::new(span, revisions_max)).into(),
            probes: Probes::default(),
            connections: users.map(Connection::new).into(),
            seen: 0,
            reads: BTreeMap::new(),
            next_read: 0,
            sessions: paces
                .into_iter()
                .enumerate()
                .map(|(at, pace)| Session::new(at, pace))
                .collect(),
            next_watch: 0,
            checker: Checker::default(),
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    /// Schedules an action after a random delay.
    fn after(&mut self, delay: Range<Time>, action: Action) {
        let time = self.now + self.random.random_range(delay);
        self.at(time, action);
    }

    fn at(&mut self, time: Time, action: Action) {
        self.actions.insert((time, self.next_action), action);
        self.next_action += 1;
    }

    /// Runs until the end, or until the checker has found a violation.
    fn run(mut self) -> (Option<String>, Counts) {
        self.schedule_first_actions();
        while let Some(((time, _), action)) = self.actions.pop_first()
            && time <= END
            && self.checker.violation.is_none()
        {
            self.now = time;
            if self.is_due(&action) {
                self.act(action);
            }
        }
        if self.checker.violation.is_none() {
            self.checker.end(&self.world, self.sessions.len());
        }
        let violation = self.checker.violation.map(|what| format!("at {} ms: {what}", self.now));
        (violation, self.checker.counts)
    }

    fn schedule_first_actions(&mut self) {
        for _ in 0..10 {
            self.act(Action::Commit);
        }
        self.actions.retain(|_, action| !matches!(action, Action::Commit));
        self.after(1..30, Action::Commit);
        self.after(100..400, Action::Compact);
        self.after(50..200, Action::ChangeAuth);
        self.after(100..400, Action::Kill);
        self.after(30..100, Action::Break);
        self.at(ACTIVE, Action::Heal);
        for feed in 0..self.feeds.len() {
            self.after(1..20, Action::Feed(feed, FeedStep::Connect));
            self.after(1..20, Action::FeedTick(feed));
            self.after(1..50, Action::KeepFresh(feed));
        }
        self.after(1..20, Action::StartRead);
        for session in 0..self.sessions.len() {
            self.after(1..50, Action::SessionStep(session));
            self.after(1..50, Action::CreateWatch(session));
            self.after(50..400, Action::CancelWatch(session));
            self.after(20..100, Action::RequestProgress(session));
            self.after(40..80, Action::Join(session));
        }
    }

    /// Returns false for writes and faults after their time.
    fn is_due(&self, action: &Action) -> bool {
        let is_fault = matches!(
            action,
            Action::Commit
                | Action::Compact
                | Action::ChangeAuth
                | Action::Kill
                | Action::Break
                | Action::StartRead
                | Action::CreateWatch(_)
                | Action::CancelWatch(_)
        );
        self.now < ACTIVE || !is_fault
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Feed(feed, step) => self.feed_step(feed, step),
            Action::FeedTick(feed) => self.feed_tick(feed),
            Action::KeepFresh(feed) => self.keep_fresh(feed),
            Action::ProbeEffect(probe) => self.probe_effect(probe),
            Action::ProbeEnd(probe) => self.probe_end(probe),
            Action::StartRead => self.start_read(),
            Action::ReadStep(read) => self.read_step(read),
            Action::ReadDeadline(read) => self.read_deadline(read),
            Action::SessionStep(session) => self.session_step(session),
            Action::SessionDeadline(session) => self.session_deadline(session),
            Action::CreateWatch(session) => self.random_watch(session),
            Action::CancelWatch(session) => self.cancel_watch(session),
            Action::RequestProgress(session) => {
                self.sessions[session].inputs.push_back(Input::Progress);
                self.after(20..100, Action::RequestProgress(session));
            }
            Action::Join(session) => {
                self.sessions[session].inputs.push_back(Input::Join);
                self.after(40..80, Action::Join(session));
            }
            Action::Input(session, input) => self.sessions[session].inputs.push_back(*input),
            action => self.act_in_cluster(action),
        }
    }

    fn act_in_cluster(&mut self, action: Action) {
        match action {
            Action::Commit => {
                self.world.commit(self.now, &mut self.random);
                self.appended();
                self.after(1..10, Action::Acknowledge(self.world.revision));
                self.after(1..30, Action::Commit);
            }
            Action::Acknowledge(revision) => {
                self.world.acknowledged = self.world.acknowledged.max(revision);
                self.checker.acknowledge(self.now, self.world.acknowledged);
            }
            Action::Apply(member) => {
                self.world.apply(member);
                let streams = self.streams.iter().filter(|(_, stream)| stream.member == member);
                for stream in streams.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.after(0..4, Action::Pump(stream));
                }
            }
            Action::Compact => {
                let revision = self.world.revision - self.random.random_range(0..20);
                self.world.compact(revision);
                self.appended();
                self.after(100..400, Action::Compact);
            }
            Action::ChangeAuth => {
                self.world.set_auth(self.now, Auth::random(&mut self.random));
                self.appended();
                self.after(50..200, Action::ChangeAuth);
            }
            Action::Kill => self.kill(),
            Action::Revive(member) => self.world.members[member].is_alive = true,
            Action::Break => {
                let streams: Vec<u64> = self.streams.keys().copied().collect();
                if !streams.is_empty() {
                    let number = self.random.random_range(0..streams.len());
                    self.break_stream(streams[number]);
                }
                self.after(20..80, Action::Break);
            }
            Action::Heal => {
                self.world.turn_auth_off(self.now);
                self.appended();
                self.set_paces(3);
            }
            action => self.act_on_stream(action),
        }
    }

    fn act_on_stream(&mut self, action: Action) {
        match action {
            Action::ToMember(id, request) => {
                let Some(stream) = self.streams.get_mut(&id) else { return };
                let responses = stream.handle(&self.world, request);
                self.respond(id, responses);
                self.after(0..10, Action::Pump(id));
            }
            Action::Pump(id) => {
                let Some(stream) = self.streams.get_mut(&id) else { return };
                let (responses, has_more) = stream.pump(&self.world, &mut self.random);
                self.respond(id, responses);
                if has_more {
                    self.after(1..10, Action::Pump(id));
                }
            }
            Action::FromMember(id, response) => match self.streams.get(&id).map(|it| it.owner) {
                Some(Owner::Feed(feed)) => self.feed_response(feed, response),
                Some(Owner::Session(session)) => {
                    self.sessions[session].inputs.push_back(Input::Direct(id, response));
                }
                None => {}
            },
            Action::Lost(Owner::Feed(feed), id) if self.feeds[feed].stream == Some(id) => {
                self.interrupt(feed, Interruption::Lost("the connection broke".to_owned()));
            }
            Action::Lost(Owner::Session(session), id) => {
                self.sessions[session].inputs.push_back(Input::Lost(id));
            }
            Action::Lost(..) => {}
            action => unreachable!("{action:?}"),
        }
    }

    /// The log has a new entry, which each member applies sooner or later.
    fn appended(&mut self) {
        for member in 0..3 {
            let delay = if self.chance(0.02) { 50..150 } else { 0..10 };
            let time = self.now + self.random.random_range(delay);
            self.applied_at[member] = self.applied_at[member].max(time);
            self.at(self.applied_at[member], Action::Apply(member));
        }
    }

    fn kill(&mut self) {
        self.after(100..400, Action::Kill);
        let member = self.random.random_range(0..3);
        if self.world.members.iter().all(|it| it.is_alive) {
            self.world.members[member].is_alive = false;
            let streams = self.streams.iter().filter(|(_, stream)| stream.member == member);
            for stream in streams.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.break_stream(stream);
            }
            self.after(30..200, Action::Revive(member));
        }
    }

    // ---- streams ----

    fn open_stream(&mut self, owner: Owner, user: Option<usize>) -> Option<u64> {
        let member = self.world.pick_member(&mut self.random)?;
        self.next_stream += 1;
        self.streams.insert(self.next_stream, Stream::new(owner, member, user));
        Some(self.next_stream)
    }

    /// Sends a request to the member, unless the stream is broken.
    fn send_upstream(&mut self, id: u64, request: RequestUnion) {
        let time = self.now + self.random.random_range(0..6);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.last_request = stream.last_request.max(time);
        let time = stream.last_request;
        self.at(time, Action::ToMember(id, request));
    }

    fn respond(&mut self, id: u64, responses: Vec<WatchResponse>) {
        for response in responses {
            let time = self.now + self.random.random_range(0..12);
            let stream = self.streams.get_mut(&id).unwrap();
            stream.last_response = stream.last_response.max(time);
            let time = stream.last_response;
            self.at(time, Action::FromMember(id, response));
        }
    }

    /// Loses all messages that have not arrived.
    fn break_stream(&mut self, id: u64) {
        let stream = self.streams.remove(&id).unwrap();
        self.after(0..20, Action::Lost(stream.owner, id));
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn nothing_is_wrong_without_a_bug() {
    let seeds = match from_environment("CLEARLANE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("CLEARLANE_SEEDS").unwrap_or(SEEDS),
    };
    let started = Instant::now();
    let mut sum = Counts::default();
    for seed in seeds.clone() {
        let (violation, counts) = Simulation::new(seed, None).run();
        if let Some(violation) = violation {
            panic!("CLEARLANE_SEED={seed}: {violation}");
        }
        sum.add(counts);
    }
    println!("{sum:?} in {:?}", started.elapsed());
    if seeds.contains(&(SEEDS - 1)) {
        sum.check_least();
    }
}

#[test]
fn planted_bugs_are_found() {
    for (bug, seeds) in Bug::ALL {
        let found = (0..seeds).find_map(|seed| {
            let (violation, _) = Simulation::new(seed, Some(bug)).run();
            violation.map(|violation| (seed, violation))
        });
        let Some((seed, mut violation)) = found else {
            panic!("{bug:?} is not found in {seeds} seeds")
        };
        violation.truncate(150);
        println!("{bug:?} is found with seed {seed}: {violation}");
    }
}
