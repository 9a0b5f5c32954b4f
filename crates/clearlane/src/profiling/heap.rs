//! The heap profile: which call stacks have allocated the memory that is in use. It samples one
//! allocation for each 512 KiB on average.
//!
//! Each thread counts down a random number of bytes, so a large allocation is sampled more often
//! than a small one. The profile estimates the totals from the samples. The address of a sampled
//! allocation is kept until the memory is freed. Most freed addresses are not kept, and a table of
//! counters shows this without a lock.
//!
//! The allocator calls [`allocated`] and [`freed`]. Until [`start`] is called, each of these calls
//! costs one load of a flag.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::format::{Profile, ProfileBuilder};
use super::stack;

const SAMPLE_BYTES: f64 = 524_288.0;
const COUNTERS: usize = 1 << 16;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Number of kept addresses for each hash value. If the number is 0, no address with this hash
/// value is kept.
static KEPT: [AtomicU32; COUNTERS] = [const { AtomicU32::new(0) }; COUNTERS];
static SAMPLES: LazyLock<Mutex<Samples>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Number of bytes that this thread may allocate until the next sample. Negative before its
    /// first allocation.
    static BYTES_LEFT: Cell<i64> = const { Cell::new(-1) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

#[derive(Default)]
struct Samples {
    by_stack: HashMap<Box<[usize]>, usize>,
    counts: Vec<StackCounts>,
    /// The sampled allocations that are not freed: for each address the index of its stack in
    /// `counts`, and its size.
    live: HashMap<usize, (usize, usize)>,
}

#[derive(Clone, Copy, Default)]
struct StackCounts {
    allocations: u64,
    bytes: u64,
    freed: u64,
    freed_bytes: u64,
}

pub(super) fn start() {
    // Initializes the samples before an allocation needs them.
    drop(SAMPLES.lock());
    IS_ON.store(true, Ordering::Release);
}

#[inline]
pub(crate) fn allocated(memory: *mut u8, bytes: usize) {
    if IS_ON.load(Ordering::Relaxed) {
        count(memory, bytes);
    }
}

/// Records that an allocation was freed, if it was sampled. Must be called before the memory is
/// given back, because another thread may get the same address afterwards.
#[inline]
pub(crate) fn freed(memory: *mut u8) {
    if IS_ON.load(Ordering::Relaxed) && counter_of(memory).load(Ordering::Relaxed) > 0 {
        forget(memory);
    }
}

fn counter_of(memory: *mut u8) -> &'static AtomicU32 {
    let hash = (memory as usize >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
    &KEPT[hash % COUNTERS]
}

#[inline(never)]
fn count(memory: *mut u8, bytes: usize) {
    let left = BYTES_LEFT.get();
    let after = left - bytes as i64;
    if left >= 0 && after >= 0 {
        BYTES_LEFT.set(after);
        return;
    }
    BYTES_LEFT.set(next_interval());
    if left >= 0 && !memory.is_null() {
        keep(memory, bytes);
    }
}

/// Returns the number of bytes until the next sample. It is exponentially distributed, so that each
/// byte is equally likely to be sampled.
fn next_interval() -> i64 {
    let mut random = RANDOM.get();
    if random == 0 {
        random = (&raw const random as u64) | 1;
    }
    // The random numbers are from xorshift64.
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    RANDOM.set(random);
    let uniform = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (-uniform.ln() * SAMPLE_BYTES) as i64
}

#[inline(never)]
fn keep(memory: *mut u8, bytes: usize) {
    // An allocation that is made while a sample is recorded is not sampled.
    let Some(recording) = stack::begin() else { return };
    let stack = recording.stack(None);
    let mut samples = SAMPLES.lock();
    let samples = &mut *samples;
    let at = match samples.by_stack.get(stack.frames()) {
        Some(at) => *at,
        None => {
            samples.counts.push(StackCounts::default());
            samples.by_stack.insert(stack.frames().into(), samples.counts.len() - 1);
            samples.counts.len() - 1
        }
    };
    samples.counts[at].allocations += 1;
    samples.counts[at].bytes += bytes as u64;
    samples.live.insert(memory as usize, (at, bytes));
    counter_of(memory).fetch_add(1, Ordering::Relaxed);
}

#[inline(never)]
fn forget(memory: *mut u8) {
    let Some(_recording) = stack::begin() else { return };
    let mut samples = SAMPLES.lock();
    if let Some((at, bytes)) = samples.live.remove(&(memory as usize)) {
        samples.counts[at].freed += 1;
        samples.counts[at].freed_bytes += bytes as u64;
        counter_of(memory).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Estimates the number of allocations and of bytes that the samples of a stack represent.
fn scaled(count: u64, bytes: u64) -> [i64; 2] {
    if count == 0 {
        return [0, 0];
    }
    let average = bytes as f64 / count as f64;
    let factor = 1.0 / (1.0 - (-average / SAMPLE_BYTES).exp());
    [count, bytes].map(|value| (value as f64 * factor) as i64)
}

/// Returns the profile. `shown` is the value that pprof shows by default.
pub(super) fn profile(shown: &str) -> Profile {
    let mut profile = ProfileBuilder::new(&[
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ]);
    profile.set_period(("space", "bytes"), SAMPLE_BYTES as i64);
    profile.show_first(shown);
    for (frames, counts) in copy_of_samples() {
        let live = counts.allocations - counts.freed;
        let [objects, space] = scaled(counts.allocations, counts.bytes);
        let [live_objects, live_space] = scaled(live, counts.bytes - counts.freed_bytes);
        let frames = profile.without_own(&frames);
        profile.add_sample(frames, &[objects, space, live_objects, live_space], None);
    }
    profile.build()
}

fn copy_of_samples() -> Vec<(Box<[usize]>, StackCounts)> {
    let Some(_recording) = stack::begin() else { return Vec::new() };
    let samples = SAMPLES.lock();
    samples.by_stack.iter().map(|(frames, at)| (frames.clone(), samples.counts[*at])).collect()
}
