//! Measures which parts of this member make no progress. The replica
//! [decides](clearlane_replica::Part) from these measurements whether a part is stalled; `/readyz`
//! and the metrics publish the stalls.
//!
//! * Log: each write, sync, creation, resizing, renaming or removal of a file that succeeds is
//!   progress, so a batch of many slow syncs is not a stall.
//! * Apply: an applied entry is progress, and so are a finished system call `read` and processor
//!   time of the apply thread: a slow entry must not cost this member its leadership. The apply
//!   thread may wait for the commit thread, so processor time of the commit thread is also
//!   progress. In the old eras the apply loop may wait for locks, as in etcd, and is never
//!   considered stalled.
//! * Network: each network thread must answer a probe about every half election time-out. Processor
//!   time of a thread that has not answered is progress.
//!
//! Processor time includes the wait for a processor. It is read from Linux's `schedstat`: on other
//! systems the apply loop and the network threads are never considered stalled.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clearlane_replica::{Part, Replica, StallEvent};

use super::ServerState;
use super::completions::CompletionQueue;

/// Minimum processor time in one tick, in nanoseconds, that is considered progress. A blocked
/// thread uses less.
const BUSY_NS_MIN: u64 = 1_000_000;

#[derive(Debug, Default)]
pub struct Stalls {
    parts: [PartStatus; Part::ALL.len()],
    leaderships_given_up: AtomicU64,
    /// The time of the last tick, on the clock of
    /// [`ServerThreads::now`](super::ServerThreads::now).
    last_tick_ns: AtomicU64,
    /// Number of successful operations on files of the log.
    pub(super) log_operations: AtomicU64,
    pub(super) apply_thread: OnceLock<ThreadClock>,
    pub(super) commit_thread: OnceLock<ThreadClock>,
}

#[derive(Debug, Default)]
struct PartStatus {
    /// The start of the stall, or 0 while the part is not stalled.
    since_ns: AtomicU64,
    stalls: AtomicU64,
}

impl Stalls {
    /// Returns how long the part has made no progress, or `None` if it is not stalled.
    pub fn stalled_for(&self, part: Part, now: Duration) -> Option<Duration> {
        let since = self.parts[part as usize].since_ns.load(Relaxed);
        (since > 0).then(|| now.saturating_sub(Duration::from_nanos(since)))
    }

    /// Returns how long the raft loop has not ticked, or `None` if that time is not longer than
    /// `limit`.
    pub fn raft_loop_stalled_for(&self, now: Duration, limit: Duration) -> Option<Duration> {
        let idle = now.saturating_sub(Duration::from_nanos(self.last_tick_ns.load(Relaxed)));
        Some(idle).filter(|idle| *idle > limit)
    }

    /// Returns the number of stalls since the start.
    pub fn count(&self, part: Part) -> u64 {
        self.parts[part as usize].stalls.load(Relaxed)
    }

    /// Returns how many times this member, as the leader, started to transfer leadership because of
    /// a stall, whether or not the transfer succeeded.
    pub fn leaderships_given_up(&self) -> u64 {
        self.leaderships_given_up.load(Relaxed)
    }

    pub(super) fn record(&self, event: StallEvent, now: Duration, tick: Duration) {
        let elapsed = |ticks: usize| tick * u32::try_from(ticks).unwrap_or(u32::MAX);
        match event {
            StallEvent::Stalled(part, ticks) => {
                let status = &self.parts[part as usize];
                let since = now.saturating_sub(elapsed(ticks));
                status.since_ns.store(nanoseconds(since).max(1), Relaxed);
                status.stalls.fetch_add(1, Relaxed);
            }
            StallEvent::Recovered(part, _) => {
                self.parts[part as usize].since_ns.store(0, Relaxed);
            }
            StallEvent::TransfersLeadership(_) => {
                self.leaderships_given_up.fetch_add(1, Relaxed);
            }
            StallEvent::StepsDown(_) | StallEvent::KeepsLeadership => {}
        }
        log(event, elapsed);
    }
}

fn log(event: StallEvent, elapsed: impl Fn(usize) -> Duration) {
    match event {
        StallEvent::Stalled(part, ticks) => tracing::warn!(
            part = part.name(),
            "without-progress" = ?elapsed(ticks),
            "{} makes no progress; this member does not campaign until it recovers",
            description(part),
        ),
        StallEvent::Recovered(part, ticks) => tracing::info!(
            part = part.name(),
            stalled = ?elapsed(ticks),
            "{} makes progress again",
            description(part),
        ),
        StallEvent::TransfersLeadership(to) => tracing::warn!(
            to = format!("{to:x}"),
            "this leader makes no progress and transfers leadership to another member",
        ),
        StallEvent::StepsDown(to) => tracing::warn!(
            to = format!("{to:x}"),
            "the transfer of leadership was not completed in time; this leader steps down, stops \
             its heartbeats and requests another member to campaign",
        ),
        StallEvent::KeepsLeadership => tracing::warn!(
            "this leader makes no progress and keeps leading: without it, too few voters \
             acknowledge entries in time"
        ),
    }
}

fn description(part: Part) -> &'static str {
    match part {
        Part::Log => "the disk of the write-ahead log",
        Part::Apply => "the apply loop",
        Part::Network => "a network thread",
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Shows the processor time and the read calls of a thread to other threads. Contains the path of
/// the thread's directory in `/proc`.
#[derive(Debug)]
pub(super) struct ThreadClock(PathBuf);

impl ThreadClock {
    /// Returns the clock of the calling thread, or `None` if the system does not provide it.
    pub(super) fn of_this_thread() -> Option<ThreadClock> {
        let thread = std::fs::read_link("/proc/thread-self").ok()?;
        let clock = ThreadClock(Path::new("/proc").join(thread));
        clock.read_ns()?;
        Some(clock)
    }

    /// Returns the time that the thread has run on a processor or waited for one, in nanoseconds.
    /// `None` if the system does not provide it.
    fn read_ns(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.0.join("schedstat")).ok()?;
        let mut numbers = text.split_whitespace().map_while(|number| number.parse::<u64>().ok());
        Some(numbers.next()? + numbers.next()?)
    }

    /// Returns the number of read calls that the thread has completed. `None` if the system does
    /// not provide it.
    fn read_calls(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.0.join("io")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("syscr:"))?.trim().parse().ok()
    }
}

/// A probe by which the raft loop checks one network thread.
#[derive(Debug, Default)]
pub(super) struct ThreadProbe {
    /// If true, the thread is serving its queue.
    is_running: AtomicBool,
    is_asked: AtomicBool,
    clock: OnceLock<ThreadClock>,
}

impl ThreadProbe {
    pub(super) fn start(&self) -> RunningProbe<'_> {
        if let Some(clock) = ThreadClock::of_this_thread() {
            // A queue is served by one thread, so the first clock is the right one.
            let _ = self.clock.set(clock);
            self.is_running.store(true, Relaxed);
        }
        RunningProbe(self)
    }

    pub(super) fn answer(&self) {
        if self.is_asked.load(Relaxed) {
            self.is_asked.store(false, Relaxed);
        }
    }

    fn is_awaited(&self) -> bool {
        self.is_running.load(Relaxed) && self.is_asked.load(Relaxed)
    }
}

/// While this value exists, the thread must answer the probes of the raft loop.
pub(super) struct RunningProbe<'p>(&'p ThreadProbe);

impl Drop for RunningProbe<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Relaxed);
        self.0.is_asked.store(false, Relaxed);
    }
}

/// Measures the progress of each part. The raft loop owns the monitor, and calls it before each
/// tick.
#[derive(Debug)]
pub(super) struct ProgressMonitor {
    log_operations: u64,
    apply_ns: u64,
    apply_reads: u64,
    network_ns: u64,
    /// Number of ticks between two probes of the network threads.
    probe_interval: usize,
    ticks_until_probe: usize,
    is_apply_checked: bool,
}

impl ProgressMonitor {
    pub(super) fn new(election_ticks: usize, is_apply_checked: bool) -> ProgressMonitor {
        let probe_interval = election_ticks.div_ceil(2);
        ProgressMonitor {
            log_operations: 0,
            apply_ns: 0,
            apply_reads: 0,
            network_ns: 0,
            probe_interval,
            ticks_until_probe: probe_interval,
            is_apply_checked,
        }
    }

    pub(super) fn before_tick(&mut self, replica: &mut Replica, shared: &ServerState) {
        let stalls = &shared.stalls;
        stalls.last_tick_ns.store(nanoseconds(shared.start.elapsed()), Relaxed);
        let operations = stalls.log_operations.load(Relaxed);
        if std::mem::replace(&mut self.log_operations, operations) != operations {
            replica.record_progress(Part::Log);
        }
        if replica.has_unapplied() && self.is_apply_busy(stalls) {
            replica.record_progress(Part::Apply);
        }
        self.probe_network(replica, &shared.completion_queues.lock());
    }

    fn is_apply_busy(&mut self, stalls: &Stalls) -> bool {
        let threads = [stalls.apply_thread.get(), stalls.commit_thread.get()];
        let clocks: Option<Vec<u64>> =
            threads.into_iter().map(|clock| clock.and_then(ThreadClock::read_ns)).collect();
        let Some(clocks) = clocks.filter(|_| self.is_apply_checked) else { return true };
        let reads = stalls.apply_thread.get().and_then(ThreadClock::read_calls).unwrap_or_default();
        let has_read = std::mem::replace(&mut self.apply_reads, reads) != reads;
        is_busy(&mut self.apply_ns, clocks.iter().sum()) || has_read
    }

    fn probe_network(&mut self, replica: &mut Replica, queues: &[std::sync::Arc<CompletionQueue>]) {
        let awaited = || queues.iter().filter(|queue| queue.probe.is_awaited());
        let is_waiting = awaited().next().is_some();
        replica.set_network_waiting(is_waiting);
        if is_waiting {
            let clocks = awaited().filter_map(|queue| queue.probe.clock.get()?.read_ns());
            if is_busy(&mut self.network_ns, clocks.sum()) {
                replica.record_progress(Part::Network);
            }
            return;
        }
        self.ticks_until_probe = self.ticks_until_probe.saturating_sub(1);
        if self.ticks_until_probe == 0 {
            self.ticks_until_probe = self.probe_interval;
            for queue in queues.iter().filter(|queue| queue.probe.is_running.load(Relaxed)) {
                queue.probe.is_asked.store(true, Relaxed);
                queue.arrived.notify_one();
            }
        }
    }
}

/// Replaces an earlier reading of a clock. Returns whether the clock has moved by at least
/// [`BUSY_NS_MIN`].
fn is_busy(earlier_ns: &mut u64, now_ns: u64) -> bool {
    std::mem::replace(earlier_ns, now_ns).saturating_add(BUSY_NS_MIN) <= now_ns
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_that_computes_is_busy_and_a_blocked_one_is_not() {
        let (clocks, clock) = channel();
        let (starts, start) = channel::<()>();
        let worker = thread::spawn(move || {
            clocks.send(ThreadClock::of_this_thread()).unwrap();
            start.recv().unwrap();
            let begin = Instant::now();
            let mut sum = 0u64;
            while begin.elapsed() < Duration::from_millis(20) {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
            clocks.send(None).unwrap();
            start.recv().unwrap();
        });
        let Some(thread_clock) = clock.recv().unwrap() else {
            eprintln!("SKIPPED: this system has no /proc/thread-self/schedstat");
            drop(starts);
            drop(worker.join());
            return;
        };
        let mut earlier = 0;
        is_busy(&mut earlier, thread_clock.read_ns().unwrap());
        starts.send(()).unwrap();
        clock.recv().unwrap();
        assert!(is_busy(&mut earlier, thread_clock.read_ns().unwrap()));
        // The worker is about to block. When it has blocked, its clock does not move.
        let begin = Instant::now();
        while is_busy(&mut earlier, thread_clock.read_ns().unwrap()) {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        starts.send(()).unwrap();
        worker.join().unwrap();
    }

    #[test]
    fn a_stall_is_shown_until_the_part_recovers() {
        let (stalls, tick) = (Stalls::default(), Duration::from_millis(100));
        let seconds = Duration::from_secs;
        stalls.record(StallEvent::Stalled(Part::Log, 10), seconds(5), tick);
        stalls.record(StallEvent::TransfersLeadership(2), seconds(5), tick);
        stalls.record(StallEvent::StepsDown(2), seconds(6), tick);
        assert_eq!(stalls.stalled_for(Part::Log, seconds(7)), Some(seconds(3)));
        assert_eq!(stalls.stalled_for(Part::Apply, seconds(7)), None);
        stalls.record(StallEvent::Recovered(Part::Log, 30), seconds(7), tick);
        assert_eq!(stalls.stalled_for(Part::Log, seconds(8)), None);
        assert_eq!((stalls.count(Part::Log), stalls.leaderships_given_up()), (1, 1));
    }
}
