//! A plain ReadIndex queue: one list of readers, each with the condition that it waits for. Every
//! event scans the whole list.
//!
//! The plain queue is written from the rules, and not from the code of the real queue: it has no
//! reader numbers, no groups, no map by index and no sweeps. Its actions must equal the actions of
//! the real queue.

use std::collections::HashSet;
use std::time::Duration;

use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexConfig, ReadIndexError, ReadMode, ReadNeed, RequestIdGenerator,
};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    Answered { context: u64, index: u64 },
    Leader { leader: Option<u64>, term: u64 },
    TransferStarted,
    FirstCommit,
    Committed { index: u64 },
    Applied { index: u64 },
}

const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const LARGE_REQUEST_READERS: usize = 8;
const BATCH_WAIT_MAX: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    Queued,
    InRound,
    Proposed {
        context: u64,
        deadline: Duration,
    },
    /// The index is known, and the reader waits until it is applied.
    Behind {
        index: u64,
    },
}

#[derive(Debug, Default)]
struct PlainRequest {
    /// The attempts: the id and the send time of each. The send time is `None` if the clock has
    /// gone back since the attempt was sent.
    attempts: Vec<(u64, Option<Duration>)>,
    started: Duration,
    last: Duration,
    retries_now: bool,
}

#[derive(Debug)]
pub(crate) struct PlainQueue {
    mode: ReadMode,
    config: ReadIndexConfig,
    /// The readers, in the order of their arrival.
    readers: Vec<(u64, ReaderState)>,
    /// Readers that need only a confirmation, and do not wait for the applied index.
    only_confirmed: HashSet<u64>,
    round: Option<PlainRequest>,
    /// The send time of the attempt that got the last response, if its request served many readers
    /// and there has been no poll since the response. `None` otherwise.
    large_request_sent_at: Option<Duration>,
    batch_until: Duration,
    leader: (Option<u64>, u64),
    applied: u64,
    committed: u64,
    last_reading: Duration,
    now: Duration,
    lease_until: Option<Duration>,
    is_transferring: bool,
    actions: Vec<ReadIndexAction<u64>>,
}

impl PlainQueue {
    pub(crate) fn new(mode: ReadMode, config: ReadIndexConfig) -> PlainQueue {
        PlainQueue {
            mode,
            config,
            readers: Vec::new(),
            only_confirmed: HashSet::new(),
            round: None,
            large_request_sent_at: None,
            batch_until: Duration::ZERO,
            leader: (None, 0),
            applied: 0,
            committed: 0,
            last_reading: Duration::ZERO,
            now: Duration::ZERO,
            lease_until: None,
            is_transferring: false,
            actions: Vec::new(),
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.readers.len()
    }

    pub(crate) fn read(&mut self, reader: u64, need: ReadNeed) -> Result<(), ReadIndexError> {
        if self.readers.len() >= self.config.readers_max {
            return Err(ReadIndexError::TooManyReaders);
        }
        if self.readers.iter().any(|(name, _)| *name == reader) {
            return Err(ReadIndexError::ReaderIsWaiting);
        }
        self.readers.push((reader, ReaderState::Queued));
        match need {
            ReadNeed::Applied => self.only_confirmed.remove(&reader),
            ReadNeed::Confirmed => self.only_confirmed.insert(reader),
        };
        Ok(())
    }

    pub(crate) fn cancel(&mut self, reader: u64) -> bool {
        let before = self.readers.len();
        self.readers.retain(|(name, _)| *name != reader);
        self.readers.len() < before
    }

    /// Removes and returns the readers whose state satisfies `is`.
    fn take_in_state(&mut self, is: impl Fn(ReaderState) -> bool) -> Vec<u64> {
        let taken = self.readers.iter().filter(|(_, state)| is(*state)).map(|(name, _)| *name);
        let taken = taken.collect();
        self.readers.retain(|(_, state)| !is(*state));
        taken
    }

    fn change(&mut self, is: impl Fn(ReaderState) -> bool, to: ReaderState) {
        let found = self.readers.iter_mut().filter(|(_, state)| is(*state));
        found.for_each(|(_, state)| *state = to);
    }

    fn fail(&mut self, error: ReadIndexError, is: impl Fn(ReaderState) -> bool) {
        let readers = self.take_in_state(is);
        if !readers.is_empty() {
            self.actions.push(ReadIndexAction::Fail { error, readers });
        }
    }

    fn release_confirmed(&mut self) {
        let found = self.readers.iter().find_map(|(name, state)| match state {
            ReaderState::Behind { index } if self.only_confirmed.contains(name) => Some(*index),
            _ => None,
        });
        let Some(index) = found else { return };
        let is = |(name, state): &(u64, ReaderState)| {
            *state == ReaderState::Behind { index } && self.only_confirmed.contains(name)
        };
        let released: Vec<_> = self.readers.extract_if(.., |reader| is(reader)).collect();
        let readers = released.into_iter().map(|(name, _)| name).collect();
        self.actions.push(ReadIndexAction::Release { index, readers });
    }

    fn release_applied(&mut self) {
        self.release_confirmed();
        let mut indexes: Vec<u64> = self
            .readers
            .iter()
            .filter_map(|(_, state)| match state {
                ReaderState::Behind { index } if *index <= self.applied => Some(*index),
                _ => None,
            })
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        for index in indexes {
            let readers = self.take_in_state(|state| state == ReaderState::Behind { index });
            self.actions.push(ReadIndexAction::Release { index, readers });
        }
    }

    fn is_leader(&self) -> bool {
        self.leader.0 == Some(self.config.member_id)
    }

    pub(crate) fn handle_event(&mut self, event: Event) {
        match event {
            Event::Answered { context, index } => self.on_answer(context, index),
            Event::Leader { leader, term } => {
                if self.leader == (leader, term) {
                    return;
                }
                self.leader = (leader, term);
                (self.lease_until, self.is_transferring) = (None, false);
                if leader.is_some() && self.round.take().is_some() {
                    self.fail(ReadIndexError::LeaderChanged, |state| state == ReaderState::InRound);
                }
            }
            Event::TransferStarted => (self.lease_until, self.is_transferring) = (None, true),
            Event::FirstCommit => self.round.iter_mut().for_each(|round| round.retries_now = true),
            Event::Committed { index } => self.committed = self.committed.max(index),
            Event::Applied { index } => self.applied = self.applied.max(index),
        }
        self.release_applied();
    }

    fn on_answer(&mut self, context: u64, index: u64) {
        self.committed = self.committed.max(index);
        let proposed = |state: ReaderState| matches!(state, ReaderState::Proposed { context: its, .. } if its == context);
        self.change(proposed, ReaderState::Behind { index });
        let asked = self.round.as_ref().and_then(|round| {
            round.attempts.iter().find(|(its, _)| *its == context).map(|(_, asked)| *asked)
        });
        if let Some(asked) = asked {
            self.round = None;
            let in_round = self.readers.iter().filter(|(_, state)| *state == ReaderState::InRound);
            self.large_request_sent_at =
                asked.filter(|_| in_round.count() >= LARGE_REQUEST_READERS);
            self.change(|state| state == ReaderState::InRound, ReaderState::Behind { index });
            if let Some(asked) = asked.filter(|_| self.is_leader() && !self.is_transferring) {
                self.lease_until = self.lease_until.max(Some(asked + self.config.lease_length()));
            }
        }
    }

    pub(crate) fn poll(
        &mut self,
        reading: Duration,
        ids: &mut RequestIdGenerator,
    ) -> Vec<ReadIndexAction<u64>> {
        if reading < self.last_reading {
            self.lease_until = None;
            (self.large_request_sent_at, self.batch_until) = (None, self.now);
            let asked = self.round.iter_mut().flat_map(|round| &mut round.attempts);
            asked.for_each(|(_, at)| *at = None);
        }
        self.now += reading.saturating_sub(self.last_reading);
        self.last_reading = reading;
        match self.mode {
            ReadMode::Log => self.poll_log(ids),
            ReadMode::Serializable => {
                let index = self.applied;
                self.change(|state| state == ReaderState::Queued, ReaderState::Behind { index });
            }
            ReadMode::Lease if self.lease_until.is_some_and(|until| self.now < until) => {
                let index = self.committed;
                self.change(|state| state == ReaderState::Queued, ReaderState::Behind { index });
                self.release_applied();
                self.poll_round(ids);
            }
            ReadMode::Lease | ReadMode::ReadIndex => self.poll_round(ids),
        }
        self.release_applied();
        std::mem::take(&mut self.actions)
    }

    fn poll_log(&mut self, ids: &mut RequestIdGenerator) {
        let now = self.now;
        let late =
            |state| matches!(state, ReaderState::Proposed { deadline, .. } if deadline <= now);
        self.fail(ReadIndexError::TimedOut, late);
        let deadline = now + self.config.request_timeout();
        for (reader, state) in &mut self.readers {
            if *state == ReaderState::Queued {
                let context = ids.next();
                *state = ReaderState::Proposed { context, deadline };
                self.actions.push(ReadIndexAction::Propose { context, reader: *reader });
            }
        }
    }

    fn poll_round(&mut self, ids: &mut RequestIdGenerator) {
        let now = self.now;
        if let Some(asked) = self.large_request_sent_at.take() {
            self.batch_until = now + (now - asked).min(BATCH_WAIT_MAX);
        }
        let timeout = self.config.request_timeout();
        if self.round.take_if(|round| now - round.started >= timeout).is_some() {
            self.fail(ReadIndexError::TimedOut, |state| state == ReaderState::InRound);
        }
        let due =
            |round: &mut PlainRequest| round.retries_now || now - round.last >= RETRY_INTERVAL;
        if let Some(round) = self.round.take_if(due) {
            self.send_attempt(round, ids);
        }
        let has_queue = self.readers.iter().any(|(_, state)| *state == ReaderState::Queued);
        if self.round.is_none() && has_queue && self.batch_until <= now {
            self.change(|state| state == ReaderState::Queued, ReaderState::InRound);
            self.send_attempt(PlainRequest { started: now, ..PlainRequest::default() }, ids);
        }
    }

    fn send_attempt(&mut self, mut round: PlainRequest, ids: &mut RequestIdGenerator) {
        if !self.readers.iter().any(|(_, state)| *state == ReaderState::InRound) {
            return;
        }
        let context = ids.next();
        round.attempts.push((context, Some(self.now)));
        (round.last, round.retries_now) = (self.now, false);
        self.actions.push(ReadIndexAction::RequestReadIndex {
            context,
            attempt: round.attempts.len() as u32,
        });
        self.round = Some(round);
    }
}
