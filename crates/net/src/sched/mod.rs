//! Decides which thread gets a core first: a thread that answers requests, or a thread that
//! computes for a long time.
//!
//! Linux may let a running thread finish its slice, up to 4 ms, before a woken thread runs. Since
//! Linux 6.12 a thread can set the length of its slices without a privilege, and threads with
//! shorter slices run first.
//!
//! * A [`SchedClass`] is inherited. Code that starts a thread from a thread of another class must
//!   set the class of the new thread. The new thread inherits the nice value and the slices, but
//!   `offer_core` does nothing there until the class is applied.
//! * A preempted lock holder delays all threads that want the lock. In an old era readers hold
//!   locks while they read, so no reader of an old era is [`Batch`](SchedClass::Batch).
//! * An older Linux ignores the length of slices, and on other systems nothing is set. A thread
//!   with an unusual policy is not changed. A seccomp filter must allow `sched_setattr`, or make it
//!   fail with an error.
//!
//! See `docs/head-of-line.md` and `docs/decisions/net-long-reads-yield.md`.

use std::cell::Cell;
use std::thread;

#[cfg(target_os = "linux")]
mod linux;

thread_local! {
    static IS_BATCH: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedClass {
    /// The class of a thread that answers requests. The thread has the shortest slices, so it runs
    /// soon after it wakes.
    Latency,
    Normal,
    /// The class of a thread that computes for a long time and never holds a lock for long. The
    /// thread runs after the threads that answer requests. If there are more threads than cores,
    /// its share is a third of another thread's share. A smaller share would be harmful: such a
    /// thread takes short locks of the engine, the allocator and the readers' queue, and other
    /// threads wait for them.
    Batch,
}

impl SchedClass {
    /// Sets the class of this thread. Returns false if the system has not accepted the class. In
    /// that case some threads wait longer for a core. On systems other than Linux the result is
    /// true only for `Normal`. `Normal` and `Latency` do not take back the nice steps of `Batch`,
    /// so a thread that once had the class `Batch` keeps a smaller share.
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

/// Lets a thread that waits for this core run first, if this thread is of class
/// [`SchedClass::Batch`]. In a thread of another class this does nothing, because the thread may
/// hold locks.
///
/// Without this call Linux prefers a woken thread to a computing thread only if the woken thread
/// has not just had its share. Otherwise the woken thread waits for the next tick, up to 4 ms. We
/// have seen such waits while another core was idle. If no thread waits for this core, a call costs
/// a fraction of a microsecond.
pub fn offer_core() {
    if IS_BATCH.get() {
        thread::yield_now();
    }
}

/// Number of tasks that a thread runs before it checks its sockets. tokio's default is 61. While
/// large responses are being sent, each run of a connection's task sends a chunk, and 61 such runs
/// take milliseconds.
pub const EVENT_INTERVAL: u32 = 16;

/// Sets the class `Normal`. A runtime calls this in each thread that it starts for blocking calls.
/// Without this call, such a thread would inherit the class of the thread that starts it.
pub fn reset_sched_class() {
    SchedClass::Normal.apply_to_thread();
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Write;
    use std::thread;

    use super::*;

    /// Returns the nice value and the slice length; `None` if the policy is unusual or unreadable.
    fn current_attributes() -> Option<(i32, u64)> {
        let usual = linux::get().ok().filter(linux::is_usual);
        let usual = usual.map(|attributes| (attributes.sched_nice, attributes.sched_runtime));
        if usual.is_none() {
            // Write past the test harness, which shows the output of a test only if the test fails.
            let words = b"SKIPPED: another policy, or no word of it: no turns were taken\n";
            std::io::stderr().write_all(words).unwrap();
        }
        usual
    }

    #[test]
    fn a_thread_says_so_for_itself_alone() {
        let Some(before) = current_attributes() else { return };
        thread::spawn(move || {
            assert!(SchedClass::Latency.apply_to_thread());
            let (nice, slice_ns) = current_attributes().unwrap();
            // Before Linux 6.12 a thread cannot set its slice, and the length is reported as 0.
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

    /// A thread of class `Batch` starts another thread, which applies the class again. The nice
    /// steps must not be added twice.
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
