//! Random histories over a ReadIndex queue and a plain one, in every mode: they must agree.
//! No reader may be released by a question that was asked before it came.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod read_index_plain;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexConfig, ReadIndexQueue, ReadMode, RequestIdGenerator,
};
use proptest::prelude::*;
use read_index_plain::{Event, PlainQueue};

const READERS_MAX: usize = 100;

#[derive(Debug, Clone)]
enum Step {
    Read(u64),
    Cancel(u64),
    /// This number of readers come, and the same give up again.
    Churn(u64),
    /// The answer to the question that was asked this number of questions ago.
    Answer {
        back: usize,
        index: u64,
    },
    Event(Event),
    Pass(u64),
    SetBack(u64),
    Poll,
}

fn step() -> impl Strategy<Value = Step> {
    let leader = (prop::option::of(1..4_u64), 1..4_u64)
        .prop_map(|(leader, term)| Step::Event(Event::Leader { leader, term }));
    let leads = (1..4_u64).prop_map(|term| Event::Leader { leader: Some(1), term });
    prop_oneof![
        12 => (0..30_u64).prop_map(Step::Read),
        4 => (0..30_u64).prop_map(Step::Cancel),
        1 => (0..90_u64).prop_map(Step::Churn),
        8 => (0..4_usize, 0..20_u64).prop_map(|(back, index)| Step::Answer { back, index }),
        2 => (0..20_u64).prop_map(|index| Step::Event(Event::Applied { index })),
        2 => (0..20_u64).prop_map(|index| Step::Event(Event::Committed { index })),
        1 => Just(Step::Event(Event::FirstCommit)),
        1 => leader,
        1 => leads.prop_map(Step::Event),
        1 => Just(Step::Event(Event::TransferStarted)),
        4 => prop::sample::select(vec![1, 100, 400, 500, 800, 6_500]).prop_map(Step::Pass),
        1 => (1..900_u64).prop_map(Step::SetBack),
        8 => Just(Step::Poll),
    ]
}

/// A ReadIndex queue and the plain one, and what is known of the history.
struct Race {
    mode: ReadMode,
    barrier: ReadIndexQueue<u64>,
    plain: PlainQueue,
    ids: (RequestIdGenerator, RequestIdGenerator),
    now: Duration,
    step: u64,
    /// The step at which each waiting reader came.
    came: HashMap<u64, u64>,
    /// Questions and entries: id, and the step.
    asked: Vec<(u64, u64)>,
    /// By index: when the latest question or entry was asked that was answered with it.
    answered: HashMap<u64, u64>,
    applied: u64,
    done: HashSet<u64>,
}

impl Race {
    fn new(mode: ReadMode) -> Race {
        let config = ReadIndexConfig { readers_max: READERS_MAX, ..ReadIndexConfig::new(1) };
        Race {
            mode,
            barrier: ReadIndexQueue::new(mode, config),
            plain: PlainQueue::new(mode, config),
            ids: (RequestIdGenerator::new(1, 0), RequestIdGenerator::new(1, 0)),
            now: Duration::from_secs(10),
            step: 0,
            came: HashMap::new(),
            asked: Vec::new(),
            answered: HashMap::new(),
            applied: 0,
            done: HashSet::new(),
        }
    }

    fn run(&mut self, step: &Step) {
        self.step += 1;
        match *step {
            Step::Read(reader) => self.read(reader),
            Step::Cancel(reader) => self.cancel(reader),
            Step::Churn(readers) => {
                let free = READERS_MAX - self.plain.waiting();
                let names = 1_000..1_000 + readers.min(free as u64);
                names.clone().for_each(|reader| self.read(reader));
                names.for_each(|reader| self.cancel(reader));
            }
            Step::Answer { back, index } => {
                if let Some((context, at)) = self.asked.iter().rev().nth(back).copied() {
                    let latest = self.answered.entry(index).or_default();
                    *latest = at.max(*latest);
                    self.handle_event(Event::Answered { context, index });
                }
            }
            Step::Event(event) => self.handle_event(event),
            Step::Pass(ms) => self.now += Duration::from_millis(ms),
            Step::SetBack(ms) => self.now = self.now.saturating_sub(Duration::from_millis(ms)),
            Step::Poll => self.poll(),
        }
        let figures = self.barrier.metrics();
        assert_eq!(figures.waiting, self.plain.waiting());
        assert!(figures.queue_entries <= 2 * READERS_MAX + 65, "{figures:?}");
    }

    fn read(&mut self, reader: u64) {
        // A caller gives a name again only after the reader of that name was released or failed.
        if self.came.contains_key(&reader) && !self.done.contains(&reader) {
            let (told, expected) = (self.barrier.cancel(reader), self.plain.cancel(reader));
            assert_eq!(told, expected);
            if !told {
                return;
            }
        }
        let (told, expected) = (self.barrier.enqueue(reader), self.plain.read(reader));
        assert_eq!(told, expected);
        if told.is_ok() {
            self.came.insert(reader, self.step);
            self.done.remove(&reader);
        }
    }

    fn cancel(&mut self, reader: u64) {
        let cancelled = self.barrier.cancel(reader);
        assert_eq!(cancelled, self.plain.cancel(reader));
        if cancelled {
            self.done.insert(reader);
            let figures = self.barrier.metrics();
            assert!(figures.queue_entries <= 2 * figures.waiting + 65, "{figures:?}");
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Answered { context, index } => self.barrier.on_answer(context, index),
            Event::Leader { leader, term } => self.barrier.on_leader(leader, term),
            Event::TransferStarted => self.barrier.on_transfer_started(),
            Event::FirstCommit => self.barrier.on_first_commit(),
            Event::Committed { index } => self.barrier.on_committed(index),
            Event::Applied { index } => {
                self.applied = self.applied.max(index);
                self.barrier.on_applied(index);
            }
        }
        self.plain.handle_event(event);
    }

    fn poll(&mut self) {
        let mut actions = self.barrier.poll(self.now, &mut self.ids.0);
        let mut expected = self.plain.poll(self.now, &mut self.ids.1);
        if self.mode == ReadMode::Log {
            // Here two entries may have one index, which no log has. Then the order does not
            // matter.
            actions.iter_mut().chain(&mut expected).for_each(sort);
        }
        assert_eq!(actions, expected, "{:?}", self.mode);
        for action in actions {
            self.check(action);
        }
    }

    fn check(&mut self, action: ReadIndexAction<u64>) {
        match action {
            ReadIndexAction::RequestReadIndex { context, .. }
            | ReadIndexAction::Propose { context, .. } => {
                assert!(self.asked.iter().all(|(asked, _)| *asked != context), "an id twice");
                self.asked.push((context, self.step));
            }
            ReadIndexAction::Release { index, readers } => {
                assert!(index <= self.applied, "let go before it was applied");
                let asked = self.answered.get(&index).copied().unwrap_or_default();
                for reader in readers {
                    let came = self.came[&reader];
                    let by_a_round = matches!(self.mode, ReadMode::ReadIndex | ReadMode::Log);
                    assert!(!by_a_round || asked > came, "{reader} came at {came}: {asked}");
                    self.finish_reader(reader);
                }
            }
            ReadIndexAction::Fail { readers, .. } => {
                readers.into_iter().for_each(|reader| self.finish_reader(reader))
            }
        }
    }

    fn finish_reader(&mut self, reader: u64) {
        assert!(self.done.insert(reader), "{reader} was released twice, or after it had given up");
    }

    /// Time passes until no reader waits.
    fn drain(&mut self) {
        self.handle_event(Event::Leader { leader: None, term: 9 });
        for _ in 0..2 {
            self.poll();
            self.now += ReadIndexConfig::new(1).request_timeout();
        }
        self.poll();
        self.handle_event(Event::Applied { index: 20 });
        self.poll();
        let figures = self.barrier.metrics();
        assert_eq!((figures.waiting, figures.queue_entries), (0, 0), "{:?} {figures:?}", self.mode);
        assert!(self.came.keys().all(|reader| self.done.contains(reader)));
    }
}

fn sort(action: &mut ReadIndexAction<u64>) {
    if let ReadIndexAction::Release { readers, .. } = action {
        readers.sort_unstable();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_queue_does_what_a_plain_one_does(steps in prop::collection::vec(step(), 1..200)) {
        for mode in ReadMode::ALL {
            let mut race = Race::new(mode);
            steps.iter().for_each(|step| race.run(step));
            race.drain();
        }
    }
}
