//! A disk that stands still now and then.
//!
//! A disk that several machines share answers within a millisecond, and then for a tenth of a
//! second not at all, whatever is asked of it. A request that waits for it waits for so much
//! longer: the log, and the backend beside it.
//!
//! ```text
//!   log       ├ sync ┤   ├─ syn ░░░░░░░░░░░░░░░ c ─┤
//!   backend                  ├─ ░░░░░░░░░░░░░░░ sync ──┤
//!                               └ stands still ┘
//! ```
//!
//! It does so once in each stretch of time, at a random moment.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::model::Stalls;
use crate::{Rng, World};

/// The numbers of chance that disks begin with. Members have those below, and links begin far
/// above.
const DISKS: u64 = 1_000;

/// The disk of a member.
#[derive(Debug)]
pub(crate) struct Disk {
    world: World,
    stalls: Stalls,
    known: RefCell<Known>,
}

/// When it stands still, as far as a caller has asked.
#[derive(Debug)]
struct Known {
    rng: Rng,
    /// Stretches of time that have been looked at.
    stretches: u64,
    /// From when to when. Those that are over are forgotten.
    stalls: VecDeque<(u64, u64)>,
}

impl Disk {
    /// Of the member at this place.
    pub(crate) fn new(world: &World, stalls: Stalls, seed: u64, place: usize) -> Disk {
        let chance = Rng::new(seed, DISKS + place as u64);
        let known = RefCell::new(Known { rng: chance, stretches: 0, stalls: VecDeque::new() });
        Disk { world: world.clone(), stalls, known }
    }

    /// How long something takes that begins now, and would take so long if the disk never stood
    /// still.
    pub(crate) fn takes_ns(&self, ns: u64) -> u64 {
        let now_ns = self.world.now_ns();
        if self.stalls.every_ns == 0 {
            return ns;
        }
        let mut known = self.known.borrow_mut();
        while known.stalls.pop_front_if(|(_, end_ns)| *end_ns <= now_ns).is_some() {}
        let (mut done_ns, mut place) = (now_ns + ns, 0);
        loop {
            let (begin_ns, end_ns) = known.stall(place, self.stalls);
            if begin_ns >= done_ns {
                return done_ns - now_ns;
            }
            done_ns += end_ns.saturating_sub(begin_ns.max(now_ns));
            place += 1;
        }
    }
}

impl Known {
    /// The one at this place, of those that are not over; no caller asks for one without those
    /// before it.
    fn stall(&mut self, place: usize, stalls: Stalls) -> (u64, u64) {
        if let Some(stall) = self.stalls.get(place) {
            return *stall;
        }
        let Stalls { every_ns, length_ns } = stalls;
        // As a whole within its stretch, or it would meet the next one.
        let begin_ns = self.stretches * every_ns + self.rng.below(every_ns - length_ns);
        self.stretches += 1;
        let stall = (begin_ns, begin_ns + length_ns);
        self.stalls.push_back(stall);
        stall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_waits_for_it_waits_until_it_goes_on() {
        let world = World::new();
        let disk = Disk::new(&world, Stalls { every_ns: 100 * MS, length_ns: 30 * MS }, 1, 0);
        let (begin_ns, end_ns) = disk.known.borrow_mut().stall(0, disk.stalls);
        assert_eq!(end_ns, begin_ns + 30 * MS);
        let at = |ns: u64, takes_ns: u64| {
            world.run(ns);
            assert_eq!(world.now_ns(), ns);
            disk.takes_ns(takes_ns)
        };
        assert_eq!(at(begin_ns - 2 * MS, MS), MS, "done before");
        assert_eq!(at(begin_ns - 2 * MS, 2 * MS), 2 * MS, "done when it begins");
        assert_eq!(at(begin_ns - 2 * MS, 3 * MS), 33 * MS);
        assert_eq!(at(begin_ns + 10 * MS, MS), 21 * MS, "what is left of it");
        assert_eq!(at(begin_ns + 10 * MS, 0), 20 * MS);
        assert_eq!(at(end_ns, MS), MS, "over");
        // One in each stretch: a task that works for seventy stretches' worth meets about a hundred
        // of them.
        let long = at(end_ns, 7_000 * MS) / MS;
        assert!((9_900..10_100).contains(&long), "{long}");
        // Far behind it, there is nothing to catch up with.
        assert!(at(end_ns + 50_000 * MS, MS) <= 31 * MS);
    }

    #[test]
    fn each_member_has_its_own() {
        let of = |seed, place| {
            let stalls = Stalls { every_ns: 100 * MS, length_ns: MS };
            let disk = Disk::new(&World::new(), stalls, seed, place);
            disk.known.into_inner().stall(0, stalls)
        };
        assert_eq!(of(1, 0), of(1, 0));
        assert!(of(1, 0) != of(1, 1) && of(1, 0) != of(2, 0));
    }

    #[test]
    fn one_that_never_does_takes_what_it_takes() {
        let disk = Disk::new(&World::new(), Stalls::default(), 1, 0);
        assert_eq!(disk.takes_ns(7), 7);
    }
}
