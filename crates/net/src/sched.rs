//! Which thread gets a core first: a thread that answers, or one that computes for long?
//!
//! # The problem
//!
//! When no read holds a lock any more, reads and writes still meet in one place: on the cores. A thread that copies
//! twenty thousand records wants a core for 40 ms. A put wants one for some microseconds, but on six occasions, in
//! six threads that wake each other: network, raft, log, raft, network. Linux lets a running thread finish its slice,
//! up to 4 ms, before a woken thread has its turn. Two or three such turns, and a put beside a long read takes 8 ms
//! and not 1.5. To the put it is the convoy again, with the scheduler for a lock.
//!
//! # The idea
//!
//! Since Linux 6.12 a thread can say how long its slices shall be, and *a thread that asks for shorter ones goes
//! before one that has longer ones*. That is no privilege: all get as much of the machine as before, some of them
//! sooner and in smaller pieces.
//!
//! ```text
//!   a long read   ████████████████▌                    a long read   ██████▌    ██████████▌
//!   a put wakes         ┊ ··· waits ···█               a put wakes          █
//!                       for its turn, up to 4 ms                             at once
//! ```
//!
//! * [`SchedClass::Latency`] is for a thread that answers: it sleeps, wakes, does a little, and sleeps again.
//! * [`SchedClass::Batch`] is for a thread that computes for long and holds no lock for long: it also steps back a
//!   little, to a third of the share of another, if there are more of them than cores.
//! * [`SchedClass::Normal`] is for all others. Threads inherit what the thread has that starts them: code that starts
//!   some from a thread that answers must set their class.
//!
//! # Between two ticks
//!
//! A woken thread goes before one that computes only if it has not just had its share. If it has, it waits for the
//! next tick, 4 ms away with 250 of them a second, and it was seen that the other core had nothing to do meanwhile.
//! So a thread that computes for long says between two [`YieldPoints`] that others may go first. If no thread waits
//! for this core, that is a call of a fraction of a microsecond.
//!
//! # Locks
//!
//! A lock holder that is put off puts off each thread that wants the lock. This is why in an old era, whose readers
//! have locks while they read, no reader is late. The engine, the allocator and the queue of the readers have short ones
//! in any era, which is the reason why a batch thread steps back by so little.
//!
//! # Limits
//!
//! An older Linux takes the wish for slices and does nothing about it; other systems are not asked. If the whole
//! process runs under another policy than the usual one (`chrt --batch`), nothing is changed. A filter of system
//! calls must allow `sched_setattr`, or answer it with an error.

use std::cell::Cell;
use std::thread;

#[cfg(target_os = "linux")]
mod linux;

thread_local! {
    static IS_BATCH: Cell<bool> = const { Cell::new(false) };
}

/// When a thread wants a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedClass {
    /// As soon as it wakes, and little of it at a time.
    Latency,
    /// As any other, and at a length that the system chooses.
    Normal,
    /// After the threads that answer.
    Batch,
}

impl SchedClass {
    /// From now on this is when the calling thread wants one. Says whether the system has agreed; if it has not,
    /// everything works, and takes longer beside others.
    pub fn apply_to_thread(self) -> bool {
        IS_BATCH.set(self == SchedClass::Batch);
        #[cfg(target_os = "linux")]
        return match self {
            SchedClass::Latency => linux::update(|turns| turns.slice_ns = linux::SHORT_SLICE_NS),
            SchedClass::Normal => linux::update(|turns| turns.slice_ns = 0),
            SchedClass::Batch => linux::update(|turns| {
                turns.slice_ns = 0;
                turns.nice = (turns.nice + linux::BATCH_NICE_STEPS).min(linux::NICE_MAX);
            }),
        }
        .unwrap_or(false);
        #[cfg(not(target_os = "linux"))]
        return self == SchedClass::Normal;
    }
}

/// A long computation in pieces, between which a [late](SchedClass::Batch) thread lets others go first. Others that compute do
/// not: they may have locks in their hands.
#[derive(Debug, Default)]
pub struct YieldPoints {
    bytes_in_step: usize,
}

impl YieldPoints {
    /// So many bytes make a step: a tenth of a millisecond to a thread that reads and copies them.
    const BYTES_PER_STEP: usize = 64 << 10;

    /// So many bytes have been dealt with.
    pub fn advance(&mut self, bytes: usize) {
        if self.is_step_done(bytes) && IS_BATCH.get() {
            thread::yield_now();
        }
    }

    /// Whether these bytes end a step.
    fn is_step_done(&mut self, bytes: usize) -> bool {
        self.bytes_in_step += bytes;
        let ends = self.bytes_in_step >= YieldPoints::BYTES_PER_STEP;
        if ends {
            self.bytes_in_step = 0;
        }
        ends
    }
}

/// After so many tasks a thread looks for what has arrived. Left to itself it would do so after 61, and
/// while a few connections send large answers, a piece in each turn, that is milliseconds.
pub const EVENT_INTERVAL: u32 = 16;

/// A thread for what blocks is started by one that answers, and would inherit its turns.
pub fn reset_sched_class() {
    SchedClass::Normal.apply_to_thread();
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Write;
    use std::thread;

    use super::*;

    /// What holds for this thread, if it can be read here.
    fn current_attributes() -> Option<linux::SchedAttributes> {
        let told = linux::current();
        if told.is_none() {
            // Past the harness, which shows what a test prints only if it fails.
            let words = b"SKIPPED: another policy, or no word of it: no turns were taken\n";
            std::io::stderr().write_all(words).unwrap();
        }
        told
    }

    #[test]
    fn a_thread_says_so_for_itself_alone() {
        let Some(before) = current_attributes() else { return };
        thread::spawn(move || {
            assert!(SchedClass::Latency.apply_to_thread());
            let soon = current_attributes().unwrap();
            // Before 6.12 no thread has a slice of its own, and none is told.
            assert!(soon.slice_ns == linux::SHORT_SLICE_NS || before.slice_ns == 0, "{soon:?}");
            assert_eq!(soon.nice, before.nice);
            assert!(SchedClass::Normal.apply_to_thread());
            assert_eq!(current_attributes().unwrap(), before);
            assert!(SchedClass::Batch.apply_to_thread());
            let nice = (before.nice + linux::BATCH_NICE_STEPS).min(linux::NICE_MAX);
            assert_eq!(current_attributes().unwrap(), linux::SchedAttributes { nice, ..before });
        })
        .join()
        .unwrap();
        assert_eq!(current_attributes(), Some(before));
    }

    #[test]
    fn a_step_ends_after_its_bytes() {
        let mut steps = YieldPoints::default();
        let ends: Vec<bool> =
            (0..5).map(|_| steps.is_step_done(YieldPoints::BYTES_PER_STEP / 2)).collect();
        assert_eq!(ends, [false, true, false, true, false]);
        assert!(steps.is_step_done(10 * YieldPoints::BYTES_PER_STEP));
    }

    #[test]
    fn nobody_steps_back_for_ever() {
        if current_attributes().is_none() {
            return;
        }
        let steps = || {
            (0..10)
                .all(|_| SchedClass::Batch.apply_to_thread())
                .then(|| current_attributes().unwrap().nice)
        };
        assert_eq!(thread::spawn(steps).join().unwrap(), Some(linux::NICE_MAX));
    }
}
