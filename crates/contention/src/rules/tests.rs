//! Tests of rules that the scripts in `tests/scripts` do not reach: the turn is kept for a writer
//! that has waited too long, intervals have exact times, and the invariants hold in random use.

use std::collections::BTreeMap;

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::*;

const ACTOR: TaskLabel = TaskLabel::UNNAMED;

#[test]
fn a_running_writer_overtakes_one_that_is_being_woken() {
    let mut state = LockState::default();
    let first = state.acquire(ACTOR, LockMode::Write, 0).ticket;
    let second = state.acquire(ACTOR, LockMode::Write, 10).ticket;
    assert_eq!(state.release(first, LockMode::Write, 20).wake, [second]);

    let third = state.acquire(ACTOR, LockMode::Write, 21);
    assert!(third.is_acquired);
    assert!(!state.poll(second, 30), "it came too late and keeps its place");
    assert_eq!(state.release(third.ticket, LockMode::Write, 40).wake, [second]);
    assert!(state.poll(second, 41));
}

#[test]
fn the_turn_is_kept_for_a_writer_that_queued_too_long() {
    let mut state = LockState::default();
    let first = state.acquire(ACTOR, LockMode::Write, 0).ticket;
    let second = state.acquire(ACTOR, LockMode::Write, 10).ticket;
    let leave_ns = 10 + HANDOVER_AFTER_NS;
    state.release(first, LockMode::Write, leave_ns);

    assert!(!state.acquire(ACTOR, LockMode::Write, leave_ns + 1).is_acquired);
    assert!(state.poll(second, leave_ns + 2));
}

#[test]
fn readers_go_in_until_the_next_writer_is_awake() {
    let mut state = LockState::default();
    let first = state.acquire(ACTOR, LockMode::Write, 0).ticket;
    let second = state.acquire(ACTOR, LockMode::Write, 0).ticket;
    state.release(first, LockMode::Write, 2 * HANDOVER_AFTER_NS);

    // The turn is kept for the second writer, but the writer has not taken it yet.
    assert!(state.acquire(ACTOR, LockMode::Read, 2 * HANDOVER_AFTER_NS + 1).is_acquired);
    assert!(!state.poll(second, 2 * HANDOVER_AFTER_NS + 2), "now it waits for the reader");
    assert!(!state.acquire(ACTOR, LockMode::Read, 2 * HANDOVER_AFTER_NS + 3).is_acquired);
}

/// Runs five long holds of 6 ms, and returns how many short writers enter between each hold and the
/// next. The thread with the long hold requests the lock again as soon as it has released it. There
/// is always a short writer that wants the lock, and it holds the lock for 10 µs. Waking the thread
/// with the long hold takes 100 µs. Waking the short writer takes no time. `docs/head-of-line.md`
/// explains why the mode of the long holds matters.
fn writers_between_long_holds(long: LockMode) -> Vec<usize> {
    const LONG_NS: u64 = 6_000_000;
    const SHORT_NS: u64 = 10_000;
    const WAKE_NS: u64 = 100_000;
    let (mut state, mut now_ns, mut counts) = (LockState::default(), 0, Vec::new());
    let mut holder = state.acquire(ACTOR, long, now_ns).ticket;
    let mut writer = state.acquire(ACTOR, LockMode::Write, now_ns);
    for _ in 0..5 {
        now_ns += LONG_NS;
        state.release(holder, long, now_ns);
        let next = state.acquire(ACTOR, long, now_ns);
        holder = next.ticket;
        assert!(state.poll(writer.ticket, now_ns) && !next.is_acquired);
        // From `awake_ns` on, the thread with the long hold is awake and polls.
        let awake_ns = now_ns + WAKE_NS;
        let mut count = 0;
        writer.is_acquired = true;
        while writer.is_acquired {
            count += 1;
            now_ns += SHORT_NS;
            state.release(writer.ticket, LockMode::Write, now_ns);
            if now_ns >= awake_ns {
                assert!(state.poll(holder, now_ns));
            }
            writer = state.acquire(ACTOR, LockMode::Write, now_ns);
        }
        counts.push(count);
    }
    counts
}

#[test]
fn one_writer_gets_in_between_long_readers_and_several_between_long_writers() {
    assert_eq!(writers_between_long_holds(LockMode::Read), [1; 5]);
    // Ten writers of 10 µs each fit in the 100 µs that a wake-up takes.
    assert_eq!(writers_between_long_holds(LockMode::Write), [10; 5]);
}

#[test]
fn intervals_have_blockers_and_times() {
    let [r1, w1, r2, w2] = ["r1", "w1", "r2", "w2"].map(TaskLabel::named);
    let mut state = LockState::default();
    let r1_ticket = state.acquire(r1, LockMode::Read, 1).ticket;
    let w1_ticket = state.acquire(w1, LockMode::Write, 2).ticket;
    let r2_ticket = state.acquire(r2, LockMode::Read, 3).ticket;
    let w2_ticket = state.acquire(w2, LockMode::Write, 4).ticket;
    state.release(r1_ticket, LockMode::Read, 5);
    state.release(w1_ticket, LockMode::Write, 6);
    assert!(!state.poll(w2_ticket, 6));
    state.release(r2_ticket, LockMode::Read, 7);

    let intervals = state.take_blocked_intervals().into_iter().map(|stretch| {
        let BlockedInterval { waiter, blocker: front, start_ns, end_ns, .. } = stretch;
        (waiter, front.task, front.state, start_ns, end_ns)
    });
    let expected = [
        (w1, r1, BlockerState::Holding, 2, 5),
        (r2, w1, BlockerState::Waiting, 3, 5),
        (w2, w1, BlockerState::Waiting, 4, 5),
        (r2, w1, BlockerState::Holding, 5, 6),
        (w2, w1, BlockerState::Holding, 5, 6),
        (w2, r2, BlockerState::Holding, 6, 7),
    ];
    assert_eq!(intervals.collect::<Vec<_>>(), expected);
    assert_eq!(state.take_blocked_intervals(), [], "taken once");
}

#[test]
#[should_panic(expected = "only a reader inside can leave")]
fn a_waiting_reader_cannot_leave() {
    let mut state = LockState::default();
    state.acquire(ACTOR, LockMode::Write, 0);
    let reader = state.acquire(ACTOR, LockMode::Read, 1).ticket;
    state.release(reader, LockMode::Read, 2);
}

/// Simulates up to twelve threads that arrive, wake up and leave in random order. Checks the
/// invariants after each step, and that every thread has entered and left in the end.
#[test]
fn invariants_hold_and_every_thread_gets_in() {
    for seed in 0..200 {
        let mut world = World::default();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..300 {
            world.step(&mut random);
            world.check();
        }
        world.finish();
        world.check_intervals();
    }
}

#[derive(Default)]
struct World {
    state: LockState,
    now_ns: u64,
    /// The mode of each arrival, and whether its thread knows that it is inside.
    acquisitions: BTreeMap<Ticket, (LockMode, bool)>,
    /// Threads that have been woken and are not awake yet.
    woken: Vec<Ticket>,
    /// The sum of the waits of all threads.
    waited_ns: u64,
    arrived: BTreeMap<Ticket, u64>,
    blamed: Vec<BlockedInterval>,
}

impl World {
    fn step(&mut self, random: &mut impl Rng) {
        self.now_ns += random.random_range(1..HANDOVER_AFTER_NS / 2);
        match random.random_range(0..3) {
            0 if self.acquisitions.len() < 12 => self.arrive(random),
            1 => self.wake_one(random),
            _ => self.leave_one(random),
        }
    }

    fn arrive(&mut self, random: &mut impl Rng) {
        let mode = if random.random_bool(0.6) { LockMode::Read } else { LockMode::Write };
        let AcquireResult { ticket, is_acquired: inside } =
            self.state.acquire(ACTOR, mode, self.now_ns);
        self.acquisitions.insert(ticket, (mode, inside));
        self.arrived.insert(ticket, self.now_ns);
    }

    fn wake_one(&mut self, random: &mut impl Rng) {
        if !self.woken.is_empty() {
            let ticket = self.woken.swap_remove(random.random_range(0..self.woken.len()));
            if self.state.poll(ticket, self.now_ns) {
                self.waited_ns += self.now_ns - self.arrived[&ticket];
                self.acquisitions.get_mut(&ticket).unwrap().1 = true;
            }
        }
    }

    fn leave_one(&mut self, random: &mut impl Rng) {
        let awake = |(ticket, (mode, inside)): (&Ticket, &(LockMode, bool))| {
            inside.then_some((*ticket, *mode))
        };
        let inside: Vec<_> = self.acquisitions.iter().filter_map(awake).collect();
        if !inside.is_empty() {
            let (ticket, mode) = inside[random.random_range(0..inside.len())];
            self.acquisitions.remove(&ticket);
            let left = self.state.release(ticket, mode, self.now_ns);
            assert_eq!((left.acquisition.ticket, left.acquisition.mode), (ticket, mode));
            self.woken.extend(left.wake);
            self.blamed.extend(self.state.take_blocked_intervals());
        }
    }

    fn check(&self) {
        let inside: Vec<&Acquisition> = self.state.holders().collect();
        let writers = inside.iter().filter(|party| party.mode == LockMode::Write).count();
        assert!(writers == 0 || inside.len() == 1, "a writer is alone: {inside:?}");
        assert!(self.state.blocked_readers.is_empty() || self.state.writer.is_some());
        assert_eq!(inside.len() + self.state.waiters().count(), self.acquisitions.len());
    }

    /// Lets no further thread arrive. Every thread must still enter and leave, although only the
    /// threads whose tickets are reported are woken.
    fn finish(&mut self) {
        let mut random = StdRng::seed_from_u64(0);
        for _ in 0..200 {
            self.now_ns += 1;
            self.wake_one(&mut random);
            self.leave_one(&mut random);
        }
        assert!(self.acquisitions.is_empty(), "left behind: {:?}", self.acquisitions);
    }

    /// Checks that the intervals add up to at most the total wait. The rest of the wait has no
    /// blocker, because a thread was not awake yet.
    fn check_intervals(&self) {
        let blamed_ns = self.blamed.iter().map(|stretch| stretch.end_ns - stretch.start_ns);
        assert!(blamed_ns.sum::<u64>() <= self.waited_ns);
    }
}
