//! Did the machine have time for what was measured on it?
//!
//! A virtual machine has no cores but is lent them. When its host has others to serve, a thread
//! that computes for a millisecond takes two, and one that wakes comes late; and what was measured
//! then is true of that minute only. Four signs tell: the host's own word for what it has
//! [withheld](ProcessorTime), how late the driver of a load sent what was due, if it had nothing
//! else to do, how far the machine is after a long load from [how it was](Noise::drift) before it,
//! and for how long its [disk stood still](DiskStalls).
//!
//! Such times last for seconds or for minutes. So what was disturbed is measured again when they
//! are over, which [`RetryBudget`] waits for: with a thread that takes naps, and looks how late it
//! wakes.

use std::fmt;
use std::fs;
use std::ops::AddAssign;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_simulator::metrics::Page;
use clearlane_simulator::metrics::buckets::Buckets;
use clearlane_simulator::model::Stalls;

/// Beyond it, a p99 says more of the host than of the program: a share of the time that was wanted.
const STOLEN_MAX: f64 = 0.03;
/// A machine with time to spare sends 99 of 100 requests of a small load sooner.
const LATE_MAX_MS: f64 = 1.5;
/// A share by which a small read may take longer, or less long, than it did.
const DRIFT_MAX: f64 = 0.15;

/// A disk that takes a millisecond or less for a sync, and then so long for one, did something
/// else.
const STOOD_MAX_MS: f64 = 16.0;
/// For a disk that is slow, so many times as long as for most.
const STOOD_TIMES: f64 = 20.0;

/// It goes on before it stands still again.
const STOOD_SHARE_MAX: f64 = 0.8;

/// What is disturbed still is kept.
const REPEATS: usize = 2;

/// Naps enough for a 99th percentile, and work enough to be disturbed.
const NAPS: usize = 400;
const NAP: Duration = Duration::from_millis(4);
const WORK: Duration = Duration::from_micros(500);
/// A look that comes too often is a disturbance itself.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);

/// What the host has lent to this machine since it started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProcessorTime {
    worked: u64,
    stolen: u64,
}

impl ProcessorTime {
    /// Up to now.
    pub(crate) fn read() -> Result<ProcessorTime, String> {
        let text =
            fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
        ProcessorTime::parse(&text).ok_or_else(|| "/proc/stat is not as on Linux".to_owned())
    }

    /// The first line: user, nice, system, idle, waiting for disks, interrupts of two kinds,
    /// stolen.
    fn parse(text: &str) -> Option<ProcessorTime> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, _, _, hard, soft, stolen, ..] = ticks[..] else { return None };
        Some(ProcessorTime { worked: user + nice + system + hard + soft, stolen })
    }

    /// Which share of the time that was wanted since then was withheld.
    pub(crate) fn stolen_since(self, before: ProcessorTime) -> f64 {
        let of = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let (worked, stolen) = (of(self.worked, before.worked), of(self.stolen, before.stolen));
        // A tick says only that there was something.
        let stolen = stolen - 1.0;
        if stolen > 0.0 { stolen / (worked + stolen) } else { 0.0 }
    }
}

/// What disturbed a measurement, or the worst of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(crate) struct Noise {
    /// The share of the time that was wanted and not given.
    pub(crate) stolen: f64,
    /// How late the driver was at most for 99 of 100 requests; 0 if its own work would have kept
    /// it.
    pub(crate) late_ms: f64,
    /// By which share a small read took longer, or less long, after it than before.
    pub(crate) drift: f64,
    /// For how long the disk stood still.
    pub(crate) stood_ms: f64,
}

impl Noise {
    /// Whether what was measured is worth keeping.
    pub(crate) fn is_little(self) -> bool {
        self.loudness() <= 1.0
    }

    /// How far it is beyond what is bearable, by the worst of the signs.
    pub(crate) fn loudness(self) -> f64 {
        let Noise { stolen, late_ms, drift, stood_ms } = self;
        let cores = (stolen / STOLEN_MAX).max(late_ms / LATE_MAX_MS).max(drift / DRIFT_MAX);
        cores.max(stood_ms / STOOD_MAX_MS)
    }
}

/// Syncs of a server's log that took far longer than all others, between two looks at its metrics.
/// A disk that is shared stands still for a tenth of a second now and then, whatever is asked of
/// it. A commit of the backend would not do as a sign: it waits for readers, too, and that is what
/// is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DiskStalls {
    count: f64,
    mean_ms: f64,
    /// To the next power of two.
    pub(crate) longest_ms: f64,
}

impl DiskStalls {
    /// If it stood still at all.
    pub(crate) fn between(before: &Page, after: &Page) -> Option<DiskStalls> {
        let syncs = Buckets::of(after, SYNCS)?.since(Buckets::of(before, SYNCS).as_ref())?;
        let most_ms = syncs.quantile_ms(0.5);
        let (count, mean_ms) = syncs.beyond(STOOD_MAX_MS.max(STOOD_TIMES * most_ms))?;
        Some(DiskStalls { count, mean_ms, longest_ms: syncs.quantile_ms(1.0) })
    }

    /// How the model's disk is to behave, if the two looks were so far apart. Like the pace of
    /// threads this is given and not predicted. Which requests it keeps waiting is not given.
    pub(crate) fn stalls(self, apart: Duration) -> Stalls {
        let every_ns = apart.as_nanos() as f64 / self.count;
        let length_ns = (self.mean_ms * 1e6).min(STOOD_SHARE_MAX * every_ns);
        Stalls { every_ns: every_ns as u64, length_ns: length_ns as u64 }
    }
}

/// For how long it stood still.
pub(crate) fn stood_ms(before: &Page, after: &Page) -> f64 {
    DiskStalls::between(before, after).map_or(0.0, |stood| stood.longest_ms)
}

/// In the metrics; nothing but the call is in it.
const SYNCS: &str = "etcd_disk_wal_fsync_duration_seconds";

/// How long one may still wait for calm.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    left: Duration,
}

impl RetryBudget {
    pub(crate) fn new(left: Duration) -> RetryBudget {
        RetryBudget { left }
    }

    /// Measures, and if that was disturbed and there is patience left, waits for calm and measures
    /// again, twice at most, so that one bad minute does not take the patience of all others. The
    /// calmest counts, whatever it has shown.
    pub(crate) fn least_noisy<T>(
        &mut self,
        mut once: impl FnMut() -> Result<(T, Noise), String>,
    ) -> Result<(T, Noise), String> {
        let mut best = once()?;
        for _ in 0..REPEATS {
            if best.1.is_little() || self.left.is_zero() {
                break;
            }
            let begin = Instant::now();
            if self.waits()? {
                let again = once()?;
                if again.1.loudness() < best.1.loudness() {
                    best = again;
                }
            }
            self.left = self.left.saturating_sub(begin.elapsed());
        }
        Ok(best)
    }

    /// Until it is calm, or for as long as there is patience.
    fn waits(&self) -> Result<bool, String> {
        let begin = Instant::now();
        while begin.elapsed() < self.left {
            if naps()?.is_little() {
                return Ok(true);
            }
            thread::sleep(BETWEEN_LOOKS.min(self.left.saturating_sub(begin.elapsed())));
        }
        Ok(false)
    }
}

/// What the machine is like now, for a thread that has little to do.
fn naps() -> Result<Noise, String> {
    let before = ProcessorTime::read()?;
    let mut late: Vec<Duration> = (0..NAPS).map(|_| nap()).collect();
    late.sort();
    let late_ms = late[NAPS * 99 / 100].as_secs_f64() * 1e3;
    Ok(Noise { stolen: ProcessorTime::read()?.stolen_since(before), late_ms, ..Noise::default() })
}

/// How late one wakes, and ends a little work.
fn nap() -> Duration {
    let begin = Instant::now();
    thread::sleep(NAP);
    let work = Instant::now();
    while work.elapsed() < WORK {}
    begin.elapsed().saturating_sub(NAP + WORK)
}

impl AddAssign for Noise {
    fn add_assign(&mut self, other: Noise) {
        let Noise { stolen, late_ms, drift, stood_ms } = other;
        self.stolen = self.stolen.max(stolen);
        self.late_ms = self.late_ms.max(late_ms);
        self.drift = self.drift.max(drift);
        self.stood_ms = self.stood_ms.max(stood_ms);
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Noise { stolen, late_ms, drift, stood_ms } = *self;
        write!(f, "the host withheld up to {:.1} % of the time that was wanted", 100.0 * stolen)?;
        if late_ms > 0.0 {
            write!(f, ", and small loads were sent up to {late_ms:.1} ms late (p99)")?;
        }
        if drift > 0.0 {
            let percent = 100.0 * drift;
            write!(
                f,
                ", and a small read took up to {percent:.0} % more or less after a run than before it"
            )?;
        }
        if stood_ms > 0.0 {
            write!(f, ", and its disk stood still for up to {stood_ms:.0} ms")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_withheld_is_a_share_of_what_was_wanted() {
        let at = |text: &str| ProcessorTime::parse(text);
        let before = at("cpu  100 10 20 5000 30 1 2 40 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, ProcessorTime { worked: 133, stolen: 40 });
        let later = at("cpu  150 10 60 9000 30 1 2 51 0 0\n").unwrap();
        assert!((later.stolen_since(before) - 0.1).abs() < 1e-9);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!((at(""), at("cpu 1 2 3"), at("intr 1 2 3 4 5 6 7 8")), (None, None, None));
    }

    #[test]
    fn what_was_disturbed_is_measured_until_it_was_not_or_patience_ends() {
        let noise = |stolen| Noise { stolen, ..Noise::default() };
        let mut runs = [(1, noise(0.5)), (2, noise(0.01)), (3, noise(0.9))].into_iter();
        let first = RetryBudget::new(Duration::ZERO).least_noisy(|| Ok(runs.next().unwrap()));
        assert_eq!(first, Ok((1, noise(0.5))), "no patience");
        let second = RetryBudget::new(Duration::ZERO).least_noisy(|| Ok(runs.next().unwrap()));
        assert_eq!(second, Ok((2, noise(0.01))), "none is needed");
        let third = RetryBudget::new(Duration::from_secs(3)).least_noisy(|| Ok((3, noise(0.9))));
        assert_eq!(third, Ok((3, noise(0.9))), "it ends");
    }

    #[test]
    fn one_sign_is_enough() {
        let of = |stolen, late_ms, drift, stood_ms| Noise { stolen, late_ms, drift, stood_ms };
        assert!(of(0.01, 0.2, 0.1, 16.0).is_little());
        let [stolen, late] = [of(0.06, 0.0, 0.0, 0.0), of(0.0, 2.0, 0.0, 0.0)];
        let all = [stolen, late, of(0.0, 0.0, 0.2, 0.0), of(0.0, 0.0, 0.0, 32.0)];
        assert!(all.iter().all(|noise| !noise.is_little()));
        let mut worst = Noise::default();
        all.into_iter().for_each(|noise| worst += noise);
        assert_eq!(worst, of(0.06, 2.0, 0.2, 32.0));
        let words = worst.to_string();
        let parts = ["up to 6.0 %", "2.0 ms", "up to 20 %", "up to 32 ms"];
        assert!(parts.iter().all(|part| words.contains(part)), "{words}");
    }

    #[test]
    fn a_disk_that_is_slow_does_not_stand_still() {
        let page = |fast: u32, slow: u32| {
            let (name, all) = (SYNCS, fast + slow);
            let text = format!(
                "{name}_bucket{{le=\"0.001\"}} {fast}\n{name}_bucket{{le=\"0.064\"}} {all}\n\
                 {name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum 1\n{name}_count {all}\n"
            );
            Page::parse(&text).unwrap()
        };
        let before = page(100, 7);
        assert_eq!(stood_ms(&before, &page(200, 8)), 64.0);
        assert_eq!(stood_ms(&before, &page(200, 7)), 0.0, "what was before does not count");
        assert_eq!(stood_ms(&before, &page(110, 107)), 0.0, "most take so long");
        assert_eq!(stood_ms(&before, &before), 0.0);
        // Thousands of 0.15 ms, two of some 40 ms and one of 100.
        let page = |sum: f64| {
            let buckets = [(1, 5_000), (16, 5_000), (32, 5_000), (64, 5_002), (128, 5_003)];
            let mut text = format!("{SYNCS}_sum {sum}\n{SYNCS}_count 5003\n");
            for (ms, count) in buckets {
                let seconds = f64::from(ms) / 1e3;
                text += &format!("{SYNCS}_bucket{{le=\"{seconds}\"}} {count}\n");
            }
            Page::parse(&text).unwrap()
        };
        let none = Page::parse("etcd_another 1\n").unwrap();
        let stood = DiskStalls::between(&none, &page(0.93)).unwrap();
        assert_eq!(stood, DiskStalls { count: 3.0, mean_ms: 64.0, longest_ms: 128.0 });
        let stalls = stood.stalls(Duration::from_secs(12));
        assert_eq!(stalls, Stalls { every_ns: 4_000_000_000, length_ns: 64_000_000 });
        let always = DiskStalls { count: 1e3, ..stood }.stalls(Duration::from_secs(12));
        assert!(always.length_ns < always.every_ns, "{always:?}");
    }
}
