//! Which thread gets a core first: one that answers, or one that computes for long. See
//! `docs/head-of-line.md` and `docs/decisions/net-long-reads-yield.md`.
//!
//! Linux lets a running thread finish its slice, up to 4 ms, before a woken thread runs. Since
//! Linux 6.12 a thread can set the length of its slices without a privilege, and shorter ones go
//! first.
//!
//! * A [`SchedClass`] is inherited: code that starts threads from a thread of another class sets
//!   theirs.
//! * A preempted lock holder delays all that want the lock. So in an old era, whose readers hold
//!   locks while they read, no reader is [`Batch`](SchedClass::Batch).
//! * An older Linux ignores the setting; other systems are not asked. An unusual policy is left
//!   unchanged. A seccomp filter must allow `sched_setattr`, or answer it with an error.

use std::cell::Cell;
use std::thread;

#[cfg(target_os = "linux")]
mod linux;

thread_local! {
    static IS_BATCH: Cell<bool> = const { Cell::new(false) };
    static YIELD_HOOK: Cell<Option<fn()>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedClass {
    /// For a thread that answers: as soon as it wakes, and for a short time.
    Latency,
    Normal,
    /// After the threads that answer: for a thread that computes for long and holds no lock for
    /// long. If there are more threads than cores it gets a third of the share of another. Not
    /// less, because the engine, the allocator and the queue of the readers have short locks.
    Batch,
}

impl SchedClass {
    /// Returns whether the system agrees. If not, waits beside other threads are longer.
    pub fn apply_to_thread(self) -> bool {
        IS_BATCH.set(self == SchedClass::Batch);
        #[cfg(target_os = "linux")]
        return match self {
            SchedClass::Latency => linux::update(linux::SHORT_SLICE_NS, 0),
            SchedClass::Normal => linux::update(0, 0),
            SchedClass::Batch => linux::update(0, linux::BATCH_NICE_STEPS),
        }
        .unwrap_or(false);
        #[cfg(not(target_os = "linux"))]
        return self == SchedClass::Normal;
    }
}

/// The pieces of a long computation, between which a thread of class [`SchedClass::Batch`] yields
/// its core. Threads of other classes do not, because they may hold locks. A thread may do more
/// there: [`set_yield_hook`].
///
/// A woken thread goes before one that computes only if it has not just had its share. Else it
/// waits for the next tick, up to 4 ms, and was seen to do so while the other core was idle. If no
/// thread waits for this core, a yield costs a fraction of a microsecond.
#[derive(Debug, Default)]
pub struct YieldPoints {
    bytes_in_step: usize,
}

impl YieldPoints {
    /// Number of bytes of a step: a tenth of a millisecond to a thread that reads and copies them.
    pub const BYTES_PER_STEP: usize = 64 << 10;

    /// Yields at the end of a step. The hook of the thread may unwind from here, or block: the
    /// caller holds no lock.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        if self.is_step_done(bytes) {
            yield_at_step();
        }
    }

    fn is_step_done(&mut self, bytes: usize) -> bool {
        self.bytes_in_step += bytes;
        let ends = self.bytes_in_step >= YieldPoints::BYTES_PER_STEP;
        if ends {
            self.bytes_in_step = 0;
        }
        ends
    }
}

fn yield_at_step() {
    if let Some(hook) = YIELD_HOOK.get() {
        hook();
    }
    if IS_BATCH.get() {
        thread::yield_now();
    }
}

/// What this thread calls at each of its [`YieldPoints`], before it offers its core.
pub fn set_yield_hook(hook: fn()) {
    YIELD_HOOK.set(Some(hook));
}

/// Number of tasks after which a thread looks for what has arrived. tokio's default is 61, and
/// while a few connections send large answers, a piece in each turn, that is milliseconds.
pub const EVENT_INTERVAL: u32 = 16;

/// For a thread for blocking calls: it is started by one that answers, and would inherit its class.
pub fn reset_sched_class() {
    SchedClass::Normal.apply_to_thread();
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Write;
    use std::thread;

    use super::*;

    /// The nice value, and the length of slices; `None` where they cannot be read.
    fn current_attributes() -> Option<(i32, u64)> {
        let told = linux::get().ok().filter(linux::is_usual);
        let told = told.map(|attributes| (attributes.sched_nice, attributes.sched_runtime));
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
            let (nice, slice_ns) = current_attributes().unwrap();
            // Before 6.12 no thread has a slice of its own, and none is shown.
            assert!(slice_ns == linux::SHORT_SLICE_NS || before.1 == 0, "{slice_ns}");
            assert_eq!(nice, before.0);
            assert!(SchedClass::Normal.apply_to_thread());
            assert_eq!(current_attributes().unwrap(), before);
            assert!(SchedClass::Batch.apply_to_thread());
            let nice = (before.0 + linux::BATCH_NICE_STEPS).min(linux::NICE_MAX);
            assert_eq!(current_attributes(), Some((nice, before.1)));
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

    /// Threads of the class start others.
    #[test]
    fn a_class_that_was_inherited_is_not_added_to() {
        let Some((before, _)) = current_attributes() else { return };
        let batch = || {
            assert!(SchedClass::Batch.apply_to_thread());
            current_attributes().unwrap().0
        };
        let both = move || (batch(), thread::spawn(batch).join().unwrap());
        let expected = (before + linux::BATCH_NICE_STEPS).min(linux::NICE_MAX);
        assert_eq!(thread::spawn(both).join().unwrap(), (expected, expected));
    }
}
