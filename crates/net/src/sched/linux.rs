//! Linux's calls that read and change how a thread is scheduled. See `docs/head-of-line.md`.
//!
//! We know of no crate that offers these calls with slices, so there is `unsafe` code here. Both
//! calls take a struct that starts with its own size.

#![allow(unsafe_code, reason = "two calls that no safe crate has; see above")]

use std::io;
use std::mem::size_of;

use libc::{SYS_sched_getattr, SYS_sched_setattr, c_long, sched_attr};

/// Slice of a thread that answers requests. It is the shortest slice that Linux grants.
pub(crate) const SHORT_SLICE_NS: u64 = 100_000;
/// Number of nice steps that are added for a thread that computes for a long time. With each step
/// the thread's share falls to about 4/5, so with five steps it has a third of another thread's
/// share.
pub(crate) const BATCH_NICE_STEPS: i32 = 5;
/// The largest nice value, which is the lowest priority.
pub(crate) const NICE_MAX: i32 = 19;

/// Sets the length of this thread's slices. A slice of 0 is the system's default. If `nicer` is
/// above 0, the thread also becomes nicer than the main thread by this number of steps, up to
/// [`NICE_MAX`]; no call makes a thread less nice. Returns false, and changes nothing, if the
/// thread has an unusual scheduling policy. Fails if Linux rejects a call.
pub(crate) fn update(slice_ns: u64, nicer: i32) -> io::Result<bool> {
    let mut attributes = get()?;
    if !is_usual(&attributes) {
        return Ok(false);
    }
    if nicer > 0 {
        // A new thread is as nice as the thread that started it, which may already be nicer than
        // the main thread. So the steps are added to the value of the main thread.
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

/// Reads the attributes of a thread by its ID. The ID of the main thread is the process ID.
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
    // SAFETY: The second argument points to a struct that only we use and whose size is the third
    // argument; the system writes no more than that. Thread 0 is the calling thread.
    let done = unsafe {
        libc::syscall(SYS_sched_getattr, thread, &raw mut attributes, size as c_long, 0 as c_long)
    };
    check_syscall(done).map(|()| attributes)
}

fn set(mut attributes: sched_attr) -> io::Result<()> {
    // SAFETY: The second argument points to a struct that only we use and that starts with its own
    // size. The system reads the struct. If it knows only a smaller struct, it writes that struct's
    // size into the size field.
    let done =
        unsafe { libc::syscall(SYS_sched_setattr, 0 as c_long, &raw mut attributes, 0 as c_long) };
    check_syscall(done)
}

fn check_syscall(done: c_long) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
