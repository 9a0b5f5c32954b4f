//! Who gets a core first: a thread that answers, or one that computes for long?
//!
//! # The problem
//!
//! When no read holds a lock any more, reads and writes still meet in one place: on the cores. A thread that copies
//! twenty thousand records wants a core for 40 ms. A put wants one for some microseconds, but on six occasions, in six
//! threads that wake each other: network, raft, log, raft, network. Linux lets who runs finish his slice, up to 4 ms,
//! before who wakes has his turn. Two or three such turns, and a put beside a long read takes 8 ms and not 1.5. To
//! the put it is the convoy again, with the scheduler for a lock.
//!
//! # The idea
//!
//! Since Linux 6.12 a thread can say how long its slices shall be, and *who asks for shorter ones goes before who
//! has longer ones*. That is no privilege: all get as much of the machine as before, some of them sooner and in
//! smaller pieces.
//!
//! ```text
//!   a long read   ████████████████▌                    a long read   ██████▌    ██████████▌
//!   a put wakes         ┊ ··· waits ···█               a put wakes          █
//!                       for its turn, up to 4 ms                             at once
//! ```
//!
//! * [`Turn::Soon`] is for who answers: he sleeps, wakes, does a little, and sleeps again.
//! * [`Turn::Late`] is for who computes for long and holds no lock for long: he also steps back a little, to a third of
//!   the share of another, if there are more of them than cores.
//! * [`Turn::Usual`] is for all others. Threads inherit what the thread has that starts them: who starts some from a
//!   thread that answers must say so for them.
//!
//! # Between two ticks
//!
//! Who wakes goes before who computes only if he has not just had his share. If he has, he waits for the next tick, 4 ms
//! away with 250 of them a second, and it was seen that the other core had nothing to do meanwhile. So who computes for long says between two [`Steps`] that others may go first. If nobody waits for this
//! core, that is a call of a fraction of a microsecond.
//!
//! # Locks
//!
//! Who is put off with a lock in his hands puts off everybody who wants it. This is why in an old era, whose readers
//! have locks while they read, no reader is late. The engine, the allocator and the queue of the readers have short ones
//! in any era, which is the reason why who is late steps back by so little.
//!
//! # Limits
//!
//! An older Linux takes the wish for slices and does nothing about it; other systems are not asked. Who runs the whole
//! process under another policy than the usual one (`chrt --batch`) is not contradicted: then nothing is changed. Who
//! filters system calls must allow `sched_setattr`, or have it answered with an error.

use std::cell::Cell;
use std::thread;

#[cfg(target_os = "linux")]
mod linux;

thread_local! {
    static IS_LATE: Cell<bool> = const { Cell::new(false) };
}

/// When a thread wants a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As soon as it wakes, and little of it at a time.
    Soon,
    /// As any other, and at a length that the system chooses.
    Usual,
    /// After those who answer.
    Late,
}

impl Turn {
    /// From now on this is when the calling thread wants one. Says whether the system has agreed; if it has not,
    /// everything works, and takes longer beside others.
    pub fn take(self) -> bool {
        IS_LATE.set(self == Turn::Late);
        #[cfg(target_os = "linux")]
        return match self {
            Turn::Soon => linux::change(|turns| turns.slice_ns = linux::SHORT_NS),
            Turn::Usual => linux::change(|turns| turns.slice_ns = 0),
            Turn::Late => linux::change(|turns| {
                turns.slice_ns = 0;
                turns.nice = (turns.nice + linux::STEPS_BACK).min(linux::NICE_MAX);
            }),
        }
        .unwrap_or(false);
        #[cfg(not(target_os = "linux"))]
        return self == Turn::Usual;
    }
}

/// A long computation in pieces, between which a [late](Turn::Late) thread lets others go first. Others that compute do
/// not: they may have locks in their hands.
#[derive(Debug, Default)]
pub struct Steps {
    done: usize,
}

impl Steps {
    /// So many bytes make a step: a tenth of a millisecond to who reads and copies them.
    const BYTES: usize = 64 << 10;

    /// So many bytes have been dealt with.
    pub fn did(&mut self, bytes: usize) {
        if self.ends(bytes) && IS_LATE.get() {
            thread::yield_now();
        }
    }

    /// Whether these bytes end a step.
    fn ends(&mut self, bytes: usize) -> bool {
        self.done += bytes;
        let ends = self.done >= Steps::BYTES;
        if ends {
            self.done = 0;
        }
        ends
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Write;
    use std::thread;

    use super::*;

    /// What holds for this thread, if anybody may say so here.
    fn told() -> Option<linux::Turns> {
        let told = linux::now();
        if told.is_none() {
            // Past the harness, which shows what a test prints only if it fails.
            let words = b"SKIPPED: another policy, or no word of it: no turns were taken\n";
            std::io::stderr().write_all(words).unwrap();
        }
        told
    }

    #[test]
    fn a_thread_says_so_for_itself_alone() {
        let Some(before) = told() else { return };
        thread::spawn(move || {
            assert!(Turn::Soon.take());
            let soon = told().unwrap();
            // Before 6.12 no thread has a slice of its own, and none is told.
            assert!(soon.slice_ns == linux::SHORT_NS || before.slice_ns == 0, "{soon:?}");
            assert_eq!(soon.nice, before.nice);
            assert!(Turn::Usual.take());
            assert_eq!(told().unwrap(), before);
            assert!(Turn::Late.take());
            let nice = (before.nice + linux::STEPS_BACK).min(linux::NICE_MAX);
            assert_eq!(told().unwrap(), linux::Turns { nice, ..before });
        })
        .join()
        .unwrap();
        assert_eq!(told(), Some(before));
    }

    #[test]
    fn a_step_ends_after_its_bytes() {
        let mut steps = Steps::default();
        let ends: Vec<bool> = (0..5).map(|_| steps.ends(Steps::BYTES / 2)).collect();
        assert_eq!(ends, [false, true, false, true, false]);
        assert!(steps.ends(10 * Steps::BYTES));
    }

    #[test]
    fn nobody_steps_back_for_ever() {
        if told().is_none() {
            return;
        }
        let steps = || (0..10).all(|_| Turn::Late.take()).then(|| told().unwrap().nice);
        assert_eq!(thread::spawn(steps).join().unwrap(), Some(linux::NICE_MAX));
    }
}
