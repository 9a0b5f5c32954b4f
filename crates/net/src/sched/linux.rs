//! Linux's calls that read and change how a thread is scheduled: `docs/head-of-line.md`.
//!
//! No crate that we know of has them for slices, so there is `unsafe` here. Both take a struct that
//! begins with its own size.

#![allow(unsafe_code, reason = "two calls that no safe crate has; see above")]

use std::io;
use std::mem::size_of;

use libc::{SYS_sched_getattr, SYS_sched_setattr, c_long, sched_attr};

/// Slices of a thread that answers: the shortest that Linux gives.
pub(crate) const SHORT_SLICE_NS: u64 = 100_000;
/// How much nicer a thread that computes for long is: with each step its share is to that of
/// another as 4 is to 5, with five a third.
pub(crate) const BATCH_NICE_STEPS: i32 = 5;
/// The lowest priority.
pub(crate) const NICE_MAX: i32 = 19;

/// Sets the length of this thread's slices (0: the system's default), and makes it nicer. Returns
/// whether it did: not if the thread has been given another policy than the usual one.
pub(crate) fn update(slice_ns: u64, nicer: i32) -> io::Result<bool> {
    let mut attributes = get()?;
    if !is_usual(&attributes) {
        return Ok(false);
    }
    if nicer > 0 {
        // A new thread is as nice as the one that has started it, which may be so by this.
        let main = get_of(std::process::id() as c_long);
        let base = main.map_or(attributes.sched_nice, |main| main.sched_nice);
        attributes.sched_nice = attributes.sched_nice.max((base + nicer).min(NICE_MAX));
    }
    attributes.sched_runtime = slice_ns;
    set(attributes).map(|()| true)
}

pub(super) fn is_usual(attributes: &sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER as u32
}

pub(super) fn get() -> io::Result<sched_attr> {
    get_of(0)
}

/// Of a thread by its id. That of the main thread is the process's.
fn get_of(thread: c_long) -> io::Result<sched_attr> {
    let size = size_of::<sched_attr>() as u32;
    let mut attributes = sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: The second argument points to a struct that is ours alone and has the size that the
    // third one says; no more is written. Thread 0 is the one that calls.
    let done = unsafe {
        libc::syscall(SYS_sched_getattr, thread, &raw mut attributes, size as c_long, 0 as c_long)
    };
    check_syscall(done).map(|()| attributes)
}

fn set(mut attributes: sched_attr) -> io::Result<()> {
    // SAFETY: The second argument points to a struct that is ours alone and begins with its own
    // size. It is read, and at most that size is written, by a system that knows only of smaller
    // ones.
    let done =
        unsafe { libc::syscall(SYS_sched_setattr, 0 as c_long, &raw mut attributes, 0 as c_long) };
    check_syscall(done)
}

fn check_syscall(done: c_long) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
