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
//! * [`Turn::Late`] is for who computes for long and holds no lock meanwhile: he also steps back a little, to a third of
//!   the share of the others, if there are more of them than cores.
//!
//! The second must hold no lock that the first may want: who was put off with it in his hands would put off
//! everybody. This is why in an old era, whose readers have locks, no reader is late.
//!
//! # Limits
//!
//! An older Linux takes the wish and does nothing about it; other systems are not asked. Who runs the whole process
//! under a policy of his own (`chrt`) is not contradicted: then nothing is changed.

#[cfg(target_os = "linux")]
mod linux;

/// When a thread wants a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As soon as it wakes, and little of it at a time.
    Soon,
    /// As any other.
    Usual,
    /// After those who answer.
    Late,
}

impl Turn {
    /// From now on this is when the calling thread wants one. Says whether the system has agreed; if it has not,
    /// everything works, and takes longer beside others.
    pub fn take(self) -> bool {
        #[cfg(target_os = "linux")]
        return match self {
            Turn::Soon => linux::change(|turns| turns.slice_ns = linux::SHORT_NS),
            Turn::Usual => Ok(()),
            Turn::Late => linux::change(|turns| {
                turns.nice = (turns.nice + linux::STEPS_BACK).min(linux::NICE_MAX);
            }),
        }
        .is_ok();
        #[cfg(not(target_os = "linux"))]
        return self == Turn::Usual;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::thread;

    use super::*;

    fn told() -> linux::Turns {
        linux::now().unwrap()
    }

    #[test]
    fn a_thread_says_so_for_itself_alone() {
        let before = told();
        let nice = thread::spawn(|| {
            assert!(Turn::Soon.take());
            let soon = told();
            assert!(Turn::Usual.take());
            assert_eq!(told(), soon);
            assert!(Turn::Late.take());
            assert_eq!(told().nice, (soon.nice + linux::STEPS_BACK).min(linux::NICE_MAX));
            // What was said of slices still holds.
            assert_eq!(told().slice_ns, soon.slice_ns);
            soon.nice
        });
        assert_eq!(nice.join().unwrap(), before.nice);
        assert_eq!(told(), before);
    }

    #[test]
    fn nobody_steps_back_for_ever() {
        let steps = || (0..10).all(|_| Turn::Late.take()).then(|| told().nice);
        assert_eq!(thread::spawn(steps).join().unwrap(), Some(linux::NICE_MAX));
    }
}
