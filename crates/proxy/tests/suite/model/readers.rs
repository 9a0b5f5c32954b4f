//! Readers on a few connections. The real [`Caller`], [`Condition`],
//! [`Scope`](clearlane_proxy::cache::scope::Scope) and [`Answer`] decide who is answered, when, and
//! from which state.

use std::sync::Arc;

use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proxy::cache::range::Span;
use clearlane_proxy::cache::read::{Answer, Condition, is_supported};
use clearlane_proxy::cache::scope::{Published, Reached};
use clearlane_proxy::connection::ConnectionState;
use clearlane_proxy::identity::Caller;
use http::HeaderMap;
use rand::RngExt as _;

use super::bugs::Bug;
use super::probes::{Probed, Waiter};
use super::world::{DIRECTORIES, Time};
use super::{Action, EPOCH, Simulation};

const PROBED_WAIT: Time = 300;
const SEEN_WAIT: Time = 50;
/// Few, so that an answer needs several steps.
const KEYS_PER_STEP: u64 = 3;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: ConnectionState,
    pub(super) user: Option<usize>,
    pub(super) caller: Caller,
    /// The revision of the last answer, for reads that follow it.
    last: i64,
}

impl Connection {
    pub(super) fn new(user: Option<usize>) -> Connection {
        let mut head = HeaderMap::new();
        if let Some(user) = user {
            head.insert("token", format!("user-{user}").parse().unwrap());
        }
        let (state, caller) = (ConnectionState::default(), Caller::new(&head, None));
        Connection { state, user, caller, last: 0 }
    }
}

/// A read that the cache may answer.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) connection: usize,
    pub(super) request: RangeRequest,
    pub(super) span: Span,
    pub(super) started: Time,
    /// All writes up to this revision were acknowledged before the read started.
    pub(super) acknowledged: i64,
    /// The connection has seen this revision before the read started.
    pub(super) seen: i64,
    feed: usize,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Probing,
    /// The scope must reach the revision. With the start of the probe, if there was one.
    Reaching(i64, Option<Time>),
    Answering(Box<Answer>),
    /// For a planted bug: the first keys of an answer.
    Torn(RangeResponse),
}

impl Simulation {
    fn random_request(&mut self, last: i64) -> RangeRequest {
        let directory = DIRECTORIES[self.random.random_range(0..2)];
        let number = self.random.random_range(0..10);
        let key = format!("{directory}{number}");
        let (key, range_end) = match self.random.random_range(0..10) {
            0..3 => (key, String::new()),
            3..6 => (directory.to_owned(), directory.replace('/', "0")),
            6..7 => (key, directory.replace('/', "0")),
            _ => ("a/".to_owned(), "c".to_owned()),
        };
        let limit = if self.chance(0.4) { self.random.random_range(1..9) } else { 0 };
        let revision = match self.random.random_range(0..10) {
            0..7 => 0,
            7..9 => last,
            _ => self.random.random_range(0..=self.world.revision),
        };
        RangeRequest {
            key: key.into(),
            range_end: range_end.into(),
            limit,
            revision,
            serializable: self.chance(0.3),
            keys_only: self.chance(0.1),
            count_only: self.chance(0.1),
            ..RangeRequest::default()
        }
    }

    pub(super) fn start_read(&mut self) {
        self.after(1..25, Action::StartRead);
        let number = self.random.random_range(0..self.connections.len());
        let request = self.random_request(self.connections[number].last);
        let connection = &self.connections[number];
        let span = Span::of_request(&request.key, &request.range_end);
        let may_use_cache =
            connection.caller.is_anonymous() || self.bug == Some(Bug::OtherIdentity);
        let seen = connection.state.seen(EPOCH);
        let Some(feed) = self.covering(&span).filter(|_| may_use_cache && is_supported(&request))
        else {
            return self.forward_read(number, &request);
        };
        let is_fresh = self.is_fresh(&self.feeds[feed].scope);
        let condition = Condition::of(&request, is_fresh, seen);
        let phase = match condition {
            Condition::Never => return self.forward_read(number, &request),
            Condition::Has(revision) => Phase::Reaching(revision, None),
            Condition::Probe => Phase::Probing,
        };
        let id = self.next_read;
        self.next_read += 1;
        let (started, acknowledged) = (self.now, self.world.acknowledged);
        let connection = number;
        let read = Read { connection, request, span, started, acknowledged, seen, feed, phase };
        self.reads.insert(id, read);
        if condition == Condition::Probe {
            match self.bug {
                Some(Bug::ProgressAsProbe) => self.feeds[feed].scope.want_progress(),
                _ => self.probe(Waiter::Read(id)),
            }
            self.after(PROBED_WAIT..PROBED_WAIT + 1, Action::ReadDeadline(id));
        } else {
            self.after(SEEN_WAIT..SEEN_WAIT + 1, Action::ReadDeadline(id));
            self.continue_reads();
        }
    }

    /// A member answers: the newest state, or its own one for a serializable read.
    fn forward_read(&mut self, connection: usize, request: &RangeRequest) {
        let member = self.world.pick_member(&mut self.random);
        let revision = match member {
            Some(member) if request.serializable => self.world.members[member].revision,
            _ => self.world.revision,
        };
        self.note_seen(connection, revision);
        self.checker.counts.forwarded_reads += 1;
    }

    pub(super) fn note_seen(&mut self, connection: usize, revision: i64) {
        self.connections[connection].state.note_seen(EPOCH, revision);
        self.seen = self.seen.max(revision);
    }

    pub(super) fn read_probed(&mut self, id: u64, probed: Option<Probed>) {
        let Some(read) = self.reads.get_mut(&id) else { return };
        match probed {
            Some(probed) => read.phase = Phase::Reaching(probed.revision, Some(probed.started)),
            None => self.give_up(id),
        }
    }

    /// For a planted bug: progress of a feed takes the place of the probe.
    pub(super) fn reads_saw_progress(&mut self, feed: usize, revision: i64) {
        for read in self.reads.values_mut() {
            if read.feed == feed && matches!(read.phase, Phase::Probing) {
                read.phase = Phase::Reaching(revision, Some(read.started));
            }
        }
    }

    pub(super) fn read_deadline(&mut self, id: u64) {
        if self
            .reads
            .get(&id)
            .is_some_and(|read| matches!(read.phase, Phase::Probing | Phase::Reaching(..)))
        {
            self.give_up(id);
        }
    }

    /// Forwards a read that the cache could not answer.
    fn give_up(&mut self, id: u64) {
        let read = self.reads.remove(&id).unwrap();
        self.forward_read(read.connection, &read.request);
    }

    /// Starts the answers whose scopes have reached the revision.
    pub(super) fn continue_reads(&mut self) {
        let ids: Vec<u64> = self.reads.keys().copied().collect();
        for id in ids {
            let read = &self.reads[&id];
            let Phase::Reaching(revision, probed) = read.phase else { continue };
            let scope = Arc::clone(&self.feeds[read.feed].scope);
            match scope.reached(revision) {
                Reached::Reset => self.give_up(id),
                Reached::NotYet => scope.want_progress(),
                Reached::Yes(state) => {
                    if let Some(started) = probed {
                        self.mark_fresh(&scope, started);
                    }
                    let oldest = probed.map_or(i64::MAX, |_| revision);
                    self.answer(id, state, oldest);
                }
            }
        }
    }

    fn answer(&mut self, id: u64, state: Arc<Published>, oldest: i64) {
        let read = self.reads.get_mut(&id).unwrap();
        match Answer::new(state, &read.request, oldest, KEYS_PER_STEP) {
            Some(answer) => read.phase = Phase::Answering(Box::new(answer)),
            None => return self.give_up(id),
        }
        self.read_step(id);
    }

    pub(super) fn read_step(&mut self, id: u64) {
        let mut read = self.reads.remove(&id).unwrap();
        let mut response = match std::mem::replace(&mut read.phase, Phase::Probing) {
            Phase::Answering(mut answer) => {
                if !answer.step() {
                    read.phase = match self.bug {
                        Some(Bug::TwoStates) => Phase::Torn(answer.into_response()),
                        _ => Phase::Answering(answer),
                    };
                    self.reads.insert(id, read);
                    return self.after(1..30, Action::ReadStep(id));
                }
                answer.into_response()
            }
            Phase::Torn(first) => self.complete_from_newest(&read, first),
            phase => unreachable!("a read has no step while {phase:?}"),
        };
        if self.bug == Some(Bug::NewerHeader)
            && let Some(header) = &mut response.header
        {
            header.revision = header.revision.max(self.feeds[read.feed].newest_header);
        }
        self.end_read(&read, &response);
    }

    /// For a planted bug: takes the other keys from the newest state.
    fn complete_from_newest(&self, read: &Read, mut response: RangeResponse) -> RangeResponse {
        let Some(state) = self.feeds[read.feed].scope.published() else { return response };
        let mut key = response.kvs.last().unwrap().key.to_vec();
        key.push(0);
        let limit = match read.request.limit {
            0 => 0,
            limit => limit - response.kvs.len() as i64,
        };
        let request = RangeRequest { key: key.into(), limit, revision: 0, ..read.request.clone() };
        let mut answer = Answer::new(state, &request, i64::MAX, 1000).unwrap();
        assert!(answer.step());
        response.kvs.extend(answer.into_response().kvs);
        response
    }

    fn end_read(&mut self, read: &Read, response: &RangeResponse) {
        let revision = response.header.as_ref().unwrap().revision;
        let user = self.connections[read.connection].user;
        self.checker.read(&self.world, self.now, user, read, response);
        self.note_seen(read.connection, revision);
        self.connections[read.connection].last = revision;
    }
}
