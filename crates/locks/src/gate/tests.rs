//! The rules that the scripts of `tests/scripts` do not reach: the turn kept for one who waited too
//! long, the times of the stretches, and the invariants under random use.

use std::collections::BTreeMap;

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::*;

const ACTOR: Actor = Actor::UNNAMED;

fn ticket_of(arrival: Arrival) -> Ticket {
    arrival.ticket
}

#[test]
fn a_running_writer_overtakes_one_that_is_being_woken() {
    let mut gate = Gate::new();
    let first = ticket_of(gate.arrive(ACTOR, Mode::Write, 0));
    let second = ticket_of(gate.arrive(ACTOR, Mode::Write, 10));
    assert_eq!(gate.leave(first, Mode::Write, 20).wake, [second]);

    let third = gate.arrive(ACTOR, Mode::Write, 21);
    assert!(third.inside);
    assert!(!gate.poll(second, 30), "it came too late and keeps its place");
    assert_eq!(gate.leave(third.ticket, Mode::Write, 40).wake, [second]);
    assert!(gate.poll(second, 41));
}

#[test]
fn the_turn_is_kept_for_a_writer_that_queued_too_long() {
    let mut gate = Gate::new();
    let first = ticket_of(gate.arrive(ACTOR, Mode::Write, 0));
    let second = ticket_of(gate.arrive(ACTOR, Mode::Write, 10));
    let leave_ns = 10 + HANDOVER_AFTER_NS;
    gate.leave(first, Mode::Write, leave_ns);

    assert!(!gate.arrive(ACTOR, Mode::Write, leave_ns + 1).inside);
    assert_eq!(gate.try_arrive(ACTOR, Mode::Write, leave_ns + 1), None);
    assert!(gate.poll(second, leave_ns + 2));
}

#[test]
fn readers_go_in_until_the_next_writer_is_awake() {
    let mut gate = Gate::new();
    let first = ticket_of(gate.arrive(ACTOR, Mode::Write, 0));
    let second = ticket_of(gate.arrive(ACTOR, Mode::Write, 0));
    gate.leave(first, Mode::Write, 2 * HANDOVER_AFTER_NS);

    // The turn is kept for the second writer, but it has not taken it yet.
    assert!(gate.arrive(ACTOR, Mode::Read, 2 * HANDOVER_AFTER_NS + 1).inside);
    assert!(!gate.poll(second, 2 * HANDOVER_AFTER_NS + 2), "now it waits for the reader");
    assert!(!gate.arrive(ACTOR, Mode::Read, 2 * HANDOVER_AFTER_NS + 3).inside);
}

/// The picture at the top of the module.
#[test]
fn stretches_tell_who_stood_in_front_and_when() {
    let [r1, w1, r2, w2] = ["r1", "w1", "r2", "w2"].map(Actor::named);
    let mut gate = Gate::new();
    let r1_ticket = ticket_of(gate.arrive(r1, Mode::Read, 1));
    let w1_ticket = ticket_of(gate.arrive(w1, Mode::Write, 2));
    let r2_ticket = ticket_of(gate.arrive(r2, Mode::Read, 3));
    let w2_ticket = ticket_of(gate.arrive(w2, Mode::Write, 4));
    gate.leave(r1_ticket, Mode::Read, 5);
    gate.leave(w1_ticket, Mode::Write, 6);
    assert!(!gate.poll(w2_ticket, 6));
    gate.leave(r2_ticket, Mode::Read, 7);

    let told = gate.take_stretches().into_iter().map(|stretch| {
        let Stretch { waiter, front, start_ns, end_ns, .. } = stretch;
        (waiter, front.actor, front.stance, start_ns, end_ns)
    });
    let expected = [
        (w1, r1, Stance::Holding, 2, 5),
        (r2, w1, Stance::Waiting, 3, 5),
        (w2, w1, Stance::Waiting, 4, 5),
        (r2, w1, Stance::Holding, 5, 6),
        (w2, w1, Stance::Holding, 5, 6),
        (w2, r2, Stance::Holding, 6, 7),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert_eq!(gate.take_stretches(), [], "taken once");
}

#[test]
#[should_panic(expected = "only a reader inside can leave")]
fn a_waiting_reader_cannot_leave() {
    let mut gate = Gate::new();
    gate.arrive(ACTOR, Mode::Write, 0);
    let reader = ticket_of(gate.arrive(ACTOR, Mode::Read, 1));
    gate.leave(reader, Mode::Read, 2);
}

/// Random use by up to twelve parties, with the invariants checked after each step.
#[test]
fn invariants_hold_and_everybody_gets_in() {
    for seed in 0..200 {
        let mut world = World::default();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..300 {
            world.step(&mut random);
            world.check();
        }
        world.finish();
        world.check_stretches();
    }
}

#[derive(Default)]
struct World {
    gate: Gate,
    now_ns: u64,
    /// Everybody at the gate, with the mode and whether they know that they are inside.
    parties: BTreeMap<Ticket, (Mode, bool)>,
    /// Woken and not yet awake.
    woken: Vec<Ticket>,
    /// How long all of them waited together.
    waited_ns: u64,
    arrived: BTreeMap<Ticket, u64>,
    blamed: Vec<Stretch>,
}

impl World {
    fn step(&mut self, random: &mut impl Rng) {
        self.now_ns += random.random_range(1..HANDOVER_AFTER_NS / 2);
        match random.random_range(0..3) {
            0 if self.parties.len() < 12 => self.arrive(random),
            1 => self.wake_one(random),
            _ => self.leave_one(random),
        }
    }

    fn arrive(&mut self, random: &mut impl Rng) {
        let mode = if random.random_bool(0.6) { Mode::Read } else { Mode::Write };
        let Arrival { ticket, inside } = self.gate.arrive(ACTOR, mode, self.now_ns);
        self.parties.insert(ticket, (mode, inside));
        self.arrived.insert(ticket, self.now_ns);
    }

    fn wake_one(&mut self, random: &mut impl Rng) {
        if !self.woken.is_empty() {
            let ticket = self.woken.swap_remove(random.random_range(0..self.woken.len()));
            if self.gate.poll(ticket, self.now_ns) {
                self.waited_ns += self.now_ns - self.arrived[&ticket];
                self.parties.get_mut(&ticket).unwrap().1 = true;
            }
        }
    }

    fn leave_one(&mut self, random: &mut impl Rng) {
        let awake =
            |(ticket, (mode, inside)): (&Ticket, &(Mode, bool))| inside.then_some((*ticket, *mode));
        let inside: Vec<_> = self.parties.iter().filter_map(awake).collect();
        if !inside.is_empty() {
            let (ticket, mode) = inside[random.random_range(0..inside.len())];
            self.parties.remove(&ticket);
            let left = self.gate.leave(ticket, mode, self.now_ns);
            assert_eq!((left.party.ticket, left.party.mode), (ticket, mode));
            self.woken.extend(left.wake);
            self.blamed.extend(self.gate.take_stretches());
        }
    }

    fn check(&self) {
        let inside: Vec<&Party> = self.gate.inside().collect();
        let writers = inside.iter().filter(|party| party.mode == Mode::Write).count();
        assert!(writers == 0 || inside.len() == 1, "a writer is alone: {inside:?}");
        assert!(self.gate.turned_away.is_empty() || self.gate.turn.is_some());
        assert_eq!(inside.len() + self.gate.waiting().count(), self.parties.len());
    }

    /// No one arrives any more: everybody must get in and out, only by the wakings told.
    fn finish(&mut self) {
        let mut random = StdRng::seed_from_u64(0);
        for _ in 0..200 {
            self.now_ns += 1;
            self.wake_one(&mut random);
            self.leave_one(&mut random);
        }
        assert!(self.parties.is_empty(), "left behind: {:?}", self.parties);
    }

    /// What is blamed on others is at most what was waited; the rest is waking up.
    fn check_stretches(&self) {
        let blamed_ns = self.blamed.iter().map(|stretch| stretch.end_ns - stretch.start_ns);
        assert!(blamed_ns.sum::<u64>() <= self.waited_ns);
    }
}
