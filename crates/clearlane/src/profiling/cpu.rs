//! The CPU profile: it records one stack for each 10 ms of processor time.
//!
//! ```text
//!   ITIMER_PROF ── SIGPROF ──▶ the running thread ──▶ a free slot ──▶ counts by stack
//!                              (signal handler)                      ten times a second
//! ```
//!
//! The handler must not allocate or wait, so it writes into slots that were allocated before. It
//! drops a sample if the next slot is not free, or if the interrupted thread is recording a stack.
//! The profile reports the number of dropped samples. Only one recording runs at a time. The
//! handler stays installed after the first recording, because without it a late signal would end
//! the process.

#![allow(unsafe_code, reason = "a signal handler and a timer that no safe crate has")]

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use super::format::{Profile, ProfileBuilder};
use super::stack::{self, Stack};

const PERIOD: Duration = Duration::from_millis(10);
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);
/// Number of slots. It is about four times the number of samples that a hundred busy cores cause
/// between two collections.
const SLOTS: usize = 4096;

const FREE: u8 = 0;
const CLAIMED: u8 = 1;
const FILLED: u8 = 2;

type ThreadName = [u8; 16];
type Samples = HashMap<(Vec<usize>, ThreadName), i64>;

struct Slot {
    state: AtomicU8,
    sample: UnsafeCell<(Stack, ThreadName)>,
}

struct Slots {
    slots: Box<[Slot]>,
    next: AtomicUsize,
    dropped: AtomicU64,
}

// SAFETY: only the handler that has claimed a slot writes its sample. The recording reads it only
// after the slot is filled.
unsafe impl Sync for Slots {}

static IS_RECORDING: AtomicBool = AtomicBool::new(false);
/// The slots. The first recording allocates them.
static SLOTS_OF_ALL: OnceLock<Slots> = OnceLock::new();

/// The samples of a recording, and the number of dropped samples.
pub(super) struct Recorded {
    samples: Samples,
    dropped: u64,
}

/// Ends the recording when it is dropped. This also happens if the client closes the connection
/// while the recording runs.
struct Recorder;

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = set_timer(Duration::ZERO);
        IS_RECORDING.store(false, Ordering::Release);
    }
}

pub(super) async fn record(time: Duration) -> Result<Recorded, String> {
    if IS_RECORDING.swap(true, Ordering::AcqRel) {
        return Err("Could not enable CPU profiling: cpu profiling already in use".to_owned());
    }
    let recorder = Recorder;
    let slots = SLOTS_OF_ALL.get_or_init(Slots::new);
    slots.collect(&mut Samples::new());
    slots.dropped.store(0, Ordering::Relaxed);
    // Recording the first stack in a process initializes the unwinder. The handler must not do
    // that, so a stack is recorded here.
    let _ = stack::begin().map(|recording| recording.stack(None));
    let failed = |error: io::Error| format!("Could not enable CPU profiling: {error}");
    set_handler().map_err(failed)?;
    set_timer(PERIOD).map_err(failed)?;
    let mut samples = Samples::new();
    let end = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < end {
        let next = tokio::time::Instant::now() + COLLECT_INTERVAL;
        tokio::time::sleep_until(next.min(end)).await;
        slots.collect(&mut samples);
    }
    drop(recorder);
    slots.collect(&mut samples);
    Ok(Recorded { samples, dropped: slots.dropped.load(Ordering::Relaxed) })
}

pub(super) fn profile(recorded: Recorded, begun: SystemTime, time: Duration) -> Profile {
    let period = PERIOD.as_nanos() as i64;
    let mut profile = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    profile.set_period(("cpu", "nanoseconds"), period);
    profile.set_time(begun, time);
    if recorded.dropped > 0 {
        profile.add_comment(&format!("{} samples were dropped", recorded.dropped));
    }
    for ((frames, thread), count) in recorded.samples {
        let name = String::from_utf8_lossy(&thread);
        let name = name.trim_end_matches('\0');
        profile.add_sample(&frames, &[count, count * period], Some(("thread", name)));
    }
    profile.build()
}

impl Slots {
    fn new() -> Slots {
        let slot = || Slot {
            state: AtomicU8::new(FREE),
            sample: UnsafeCell::new((Stack::EMPTY, ThreadName::default())),
        };
        Slots {
            slots: std::iter::repeat_with(slot).take(SLOTS).collect(),
            next: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Records a sample. The signal handler calls this. `interrupted` is the address of the
    /// instruction that the signal has interrupted.
    fn record(&self, interrupted: Option<usize>) {
        let recording = stack::begin();
        let slot = &self.slots[self.next.fetch_add(1, Ordering::Relaxed) % SLOTS];
        let claimed =
            slot.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        match (recording, claimed) {
            (Some(recording), Ok(_)) => {
                let sample = (recording.stack(interrupted), thread_name());
                // SAFETY: this handler has claimed the slot.
                unsafe { *slot.sample.get() = sample };
                slot.state.store(FILLED, Ordering::Release);
            }
            (_, claimed) => {
                if claimed.is_ok() {
                    slot.state.store(FREE, Ordering::Release);
                }
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn collect(&self, samples: &mut Samples) {
        for slot in &self.slots {
            if slot.state.load(Ordering::Acquire) == FILLED {
                // SAFETY: the slot is filled, and no handler claims it before it is free.
                let (stack, thread) = unsafe { *slot.sample.get() };
                slot.state.store(FREE, Ordering::Release);
                *samples.entry((stack.frames().to_vec(), thread)).or_default() += 1;
            }
        }
    }
}

/// Returns the name of the calling thread. A signal handler may call this function.
fn thread_name() -> ThreadName {
    let mut name = ThreadName::default();
    // SAFETY: the call writes at most 16 bytes, including a zero at the end.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: each thread has its own `errno`. The value is restored below, because the interrupted
    // code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    if let Some(slots) = SLOTS_OF_ALL.get()
        && IS_RECORDING.load(Ordering::Acquire)
    {
        slots.record(interrupted_at(context));
    }
    // SAFETY: each thread has its own `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the address of the instruction that the signal has interrupted, or `None` on processors
/// other than x86-64 and ARM64.
fn interrupted_at(context: *mut c_void) -> Option<usize> {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: with SA_SIGINFO the system passes the context.
    #[cfg(target_arch = "x86_64")]
    return Some(unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] } as usize);
    // SAFETY: with SA_SIGINFO the system passes the context.
    #[cfg(target_arch = "aarch64")]
    return Some(unsafe { (*context).uc_mcontext.pc } as usize);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

fn set_handler() -> io::Result<()> {
    // SAFETY: an action of all zeros is valid, and the handler only does what a signal handler may
    // do.
    let status = unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGPROF, &raw const action, null_mut())
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts the timer with this period. A period of zero stops it.
fn set_timer(period: Duration) -> io::Result<()> {
    let interval = libc::timeval { tv_sec: 0, tv_usec: i64::from(period.subsec_micros()) };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the system reads the timer only during the call.
    let status = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, null_mut()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
