//! A plain barrier: one list of readers with what each waits for, walked for everything.
//!
//! It is written from the rules and not from the code: no seats, no groups, no map by index, nothing that
//! is swept. It must say the same, action by action.

use std::time::Duration;

use clearlane_read_index::{Action, Config, Error, Event, ReadMode, RequestIds};

const RETRY: Duration = Duration::from_millis(500);
const CROWD: usize = 8;
const GATHER_MAX: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    InRound,
    Proposed { context: u64, deadline: Duration },
    Behind { index: u64 },
}

#[derive(Debug, Default)]
struct Round {
    /// Ids, and when they were asked as far as the clock can be trusted.
    asked: Vec<(u64, Option<Duration>)>,
    begun: Duration,
    last: Duration,
    hurry: bool,
}

#[derive(Debug)]
pub(crate) struct Plain {
    mode: ReadMode,
    config: Config,
    /// In the order in which they came.
    readers: Vec<(u64, State)>,
    round: Option<Round>,
    /// When the last round was asked, if it has served many and nobody has polled since.
    crowd: Option<Duration>,
    gathers_until: Duration,
    leader: (Option<u64>, u64),
    applied: u64,
    committed: u64,
    told: Duration,
    now: Duration,
    lease: Option<Duration>,
    barred: bool,
    stopped: bool,
    actions: Vec<Action<u64>>,
}

impl Plain {
    pub(crate) fn new(mode: ReadMode, config: Config) -> Plain {
        Plain {
            mode,
            config,
            readers: Vec::new(),
            round: None,
            crowd: None,
            gathers_until: Duration::ZERO,
            leader: (None, 0),
            applied: 0,
            committed: 0,
            told: Duration::ZERO,
            now: Duration::ZERO,
            lease: None,
            barred: false,
            stopped: false,
            actions: Vec::new(),
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.readers.len()
    }

    pub(crate) fn read(&mut self, reader: u64) -> Result<(), Error> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        if self.readers.len() >= self.config.readers_max {
            return Err(Error::TooManyReaders);
        }
        if self.readers.iter().any(|(name, _)| *name == reader) {
            return Err(Error::ReaderIsWaiting);
        }
        self.readers.push((reader, State::Queued));
        Ok(())
    }

    pub(crate) fn cancel(&mut self, reader: u64) -> bool {
        let before = self.readers.len();
        self.readers.retain(|(name, _)| *name != reader);
        self.readers.len() < before
    }

    /// Takes out those in such a state.
    fn take(&mut self, is: impl Fn(State) -> bool) -> Vec<u64> {
        let taken = self.readers.iter().filter(|(_, state)| is(*state)).map(|(name, _)| *name);
        let taken = taken.collect();
        self.readers.retain(|(_, state)| !is(*state));
        taken
    }

    fn change(&mut self, is: impl Fn(State) -> bool, to: State) {
        let found = self.readers.iter_mut().filter(|(_, state)| is(*state));
        found.for_each(|(_, state)| *state = to);
    }

    fn fail(&mut self, error: Error, is: impl Fn(State) -> bool) {
        let readers = self.take(is);
        if !readers.is_empty() {
            self.actions.push(Action::Fail { error, readers });
        }
    }

    fn let_go(&mut self) {
        let mut indexes: Vec<u64> = self
            .readers
            .iter()
            .filter_map(|(_, state)| match state {
                State::Behind { index } if *index <= self.applied => Some(*index),
                _ => None,
            })
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        for index in indexes {
            let readers = self.take(|state| state == State::Behind { index });
            self.actions.push(Action::Go { index, readers });
        }
    }

    fn leads(&self) -> bool {
        self.leader.0 == Some(self.config.member)
    }

    pub(crate) fn hear(&mut self, event: Event) {
        match event {
            Event::Answered { context, index } => self.answered(context, index),
            Event::Leader { leader, term } => {
                if self.leader == (leader, term) {
                    return;
                }
                self.leader = (leader, term);
                (self.lease, self.barred) = (None, false);
                if leader.is_some() && self.round.take().is_some() {
                    self.fail(Error::LeaderChanged, |state| state == State::InRound);
                }
            }
            Event::TransferBegan => (self.lease, self.barred) = (None, true),
            Event::FirstCommit => self.round.iter_mut().for_each(|round| round.hurry = true),
            Event::Committed { index } => self.committed = self.committed.max(index),
            Event::Applied { index } => self.applied = self.applied.max(index),
            Event::Stopped => {
                self.stopped = true;
                self.round = None;
                // Everybody at once; in which order is nobody's business.
                self.fail(Error::Stopped, |_| true);
            }
        }
        self.let_go();
    }

    fn answered(&mut self, context: u64, index: u64) {
        self.committed = self.committed.max(index);
        let proposed =
            |state: State| matches!(state, State::Proposed { context: its, .. } if its == context);
        self.change(proposed, State::Behind { index });
        let asked = self.round.as_ref().and_then(|round| {
            round.asked.iter().find(|(its, _)| *its == context).map(|(_, asked)| *asked)
        });
        if let Some(asked) = asked {
            self.round = None;
            let in_round = self.readers.iter().filter(|(_, state)| *state == State::InRound);
            self.crowd = asked.filter(|_| in_round.count() >= CROWD);
            self.change(|state| state == State::InRound, State::Behind { index });
            if let Some(asked) = asked.filter(|_| self.leads() && !self.barred) {
                self.lease = self.lease.max(Some(asked + self.config.lease_length()));
            }
        }
    }

    pub(crate) fn poll(&mut self, told: Duration, ids: &mut RequestIds) -> Vec<Action<u64>> {
        if told < self.told {
            self.lease = None;
            (self.crowd, self.gathers_until) = (None, self.now);
            let asked = self.round.iter_mut().flat_map(|round| &mut round.asked);
            asked.for_each(|(_, at)| *at = None);
        }
        self.now += told.saturating_sub(self.told);
        self.told = told;
        match self.mode {
            ReadMode::Log => self.poll_log(ids),
            ReadMode::Serializable => {
                let index = self.applied;
                self.change(|state| state == State::Queued, State::Behind { index });
            }
            ReadMode::Lease if self.lease.is_some_and(|until| self.now < until) => {
                let index = self.committed;
                self.change(|state| state == State::Queued, State::Behind { index });
                self.let_go();
                self.poll_round(ids);
            }
            ReadMode::Lease | ReadMode::ReadIndex => self.poll_round(ids),
        }
        self.let_go();
        std::mem::take(&mut self.actions)
    }

    fn poll_log(&mut self, ids: &mut RequestIds) {
        let now = self.now;
        let late = |state| matches!(state, State::Proposed { deadline, .. } if deadline <= now);
        self.fail(Error::TimedOut, late);
        let deadline = now + self.config.request_timeout();
        for (reader, state) in &mut self.readers {
            if *state == State::Queued {
                let context = ids.next();
                *state = State::Proposed { context, deadline };
                self.actions.push(Action::Propose { context, reader: *reader });
            }
        }
    }

    fn poll_round(&mut self, ids: &mut RequestIds) {
        let now = self.now;
        if let Some(asked) = self.crowd.take() {
            self.gathers_until = now + (now - asked).min(GATHER_MAX);
        }
        let timeout = self.config.request_timeout();
        if self.round.take_if(|round| now - round.begun >= timeout).is_some() {
            self.fail(Error::TimedOut, |state| state == State::InRound);
        }
        let due = |round: &mut Round| round.hurry || now - round.last >= RETRY;
        if let Some(round) = self.round.take_if(due) {
            self.ask(round, ids);
        }
        let has_queue = self.readers.iter().any(|(_, state)| *state == State::Queued);
        if self.round.is_none() && has_queue && self.gathers_until <= now {
            self.change(|state| state == State::Queued, State::InRound);
            self.ask(Round { begun: now, ..Round::default() }, ids);
        }
    }

    fn ask(&mut self, mut round: Round, ids: &mut RequestIds) {
        if !self.readers.iter().any(|(_, state)| *state == State::InRound) {
            return;
        }
        let context = ids.next();
        round.asked.push((context, Some(self.now)));
        (round.last, round.hurry) = (self.now, false);
        self.actions.push(Action::Ask { context, attempt: round.asked.len() as u32 });
        self.round = Some(round);
    }
}
