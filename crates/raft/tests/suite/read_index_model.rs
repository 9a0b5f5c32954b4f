//! Runs random histories over a ReadIndex queue and a plain queue, in every mode. The actions of
//! the two queues must be equal. In the modes `read-index` and `log`, no reader may be released by
//! an attempt or entry that was sent before the reader arrived.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::read_index_plain::{Event, PlainQueue};
use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexConfig, ReadIndexQueue, ReadMode, ReadNeed, RequestIdGenerator,
};
use proptest::prelude::*;

const READERS_MAX: usize = 100;

#[derive(Debug, Clone)]
enum Step {
    Read(u64, ReadNeed),
    Cancel(u64),
    /// This number of readers arrive, and the same readers give up again.
    Churn(u64),
    /// The response to an attempt, or the report of an applied entry. `back` is 0 for the newest
    /// attempt or entry, 1 for the one before it.
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
    let need = prop_oneof![3 => Just(ReadNeed::Applied), 1 => Just(ReadNeed::Confirmed)];
    prop_oneof![
        12 => (0..30_u64, need).prop_map(|(reader, need)| Step::Read(reader, need)),
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

/// A ReadIndex queue, the plain queue, and the facts of the history that the checks need.
struct Race {
    mode: ReadMode,
    barrier: ReadIndexQueue<u64>,
    plain: PlainQueue,
    ids: (RequestIdGenerator, RequestIdGenerator),
    now: Duration,
    step: u64,
    /// The step at which each reader last arrived, including readers that no longer wait.
    came: HashMap<u64, u64>,
    needs: HashMap<u64, ReadNeed>,
    /// Each attempt or entry that was sent: its id, and the step when it was sent.
    asked: Vec<(u64, u64)>,
    /// For each index in a response, the last step at which an attempt or entry with this response
    /// was sent.
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
            needs: HashMap::new(),
            asked: Vec::new(),
            answered: HashMap::new(),
            applied: 0,
            done: HashSet::new(),
        }
    }

    fn run(&mut self, step: &Step) {
        self.step += 1;
        match *step {
            Step::Read(reader, need) => self.read(reader, need),
            Step::Cancel(reader) => self.cancel(reader),
            Step::Churn(readers) => {
                let free = READERS_MAX - self.plain.waiting();
                let names = 1_000..1_000 + readers.min(free as u64);
                names.clone().for_each(|reader| self.read(reader, ReadNeed::Applied));
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

    fn read(&mut self, reader: u64, need: ReadNeed) {
        // A caller reuses a name only after the reader of that name was released, was cancelled, or
        // failed.
        if self.came.contains_key(&reader) && !self.done.contains(&reader) {
            let (result, expected) = (self.barrier.cancel(reader), self.plain.cancel(reader));
            assert_eq!(result, expected);
            if !result {
                return;
            }
        }
        let (result, expected) =
            (self.barrier.enqueue(reader, need), self.plain.read(reader, need));
        assert_eq!(result, expected);
        if result.is_ok() {
            self.came.insert(reader, self.step);
            self.needs.insert(reader, need);
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
            // In this test two entries may have the same index, which cannot happen in a real log.
            // Their readers are then released by one action, and their order does not matter.
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
                let asked = self.answered.get(&index).copied().unwrap_or_default();
                for reader in readers {
                    let came = self.came[&reader];
                    let is_applied = index <= self.applied;
                    let waits = self.needs[&reader] == ReadNeed::Applied;
                    assert!(
                        is_applied || !waits,
                        "{reader} was released before {index} was applied"
                    );
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

    /// Lets time pass until no reader waits. Checks that the queue is empty, and that each reader
    /// was released, failed or gave up.
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
