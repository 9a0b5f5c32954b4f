//! The latencies of the requests of a run, the resources that they waited for, and the tasks that
//! caused these waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::{self, Write as _};

use clearlane_contention::rules::BlockerState;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::account::{Account, TimeKind};
use crate::lock::LockAccounting;
use crate::timeline::Timeline;
use clearlane_backend::Era;

/// Number of the slowest requests of a class whose accounts are kept. The results explain the
/// requests beyond the 99th percentile.
const SLOWEST: usize = 4096;

/// The quantiles in tables and JSON.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

#[derive(Clone, Debug)]
pub struct Results {
    pub era: Era,
    pub(crate) names: BTreeMap<TimeKind, &'static str>,
    /// The results by class, in the order of the workload, and then the results of background jobs.
    pub classes: Vec<ClassResults>,
    /// The locks that were acquired at least once.
    pub locks: Vec<LockResults>,
    /// Average number of busy cores, at the member that used the most CPU time.
    pub cores_used: f64,
    /// The largest gap between committed and applied entries.
    pub gap_max: u64,
    pub steps: u64,
    /// The start and end of the longest wait. `None` if no request waited for another task, or if
    /// the run did not [search for it](crate::recorder::Recorded).
    pub longest_wait: Option<(u64, u64)>,
    pub timeline: Timeline,
}

#[derive(Clone, Debug)]
pub struct ClassResults {
    pub name: String,
    /// Number of requests that were due.
    pub due: u64,
    pub refused: u64,
    latency: Histogram<u64>,
    /// The sum of the accounts of all requests.
    pub account: Account,
    /// The latency, a unique number, and the account of each of the slowest requests.
    slowest: BinaryHeap<Reverse<(u64, u64, Account)>>,
}

/// A part of the time of slow requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    pub name: &'static str,
    /// The share of the time, between 0 and 1.
    pub share: f64,
    /// The average time per request.
    pub each_ms: f64,
    /// For a lock, the task that caused the largest part of the waiting time.
    pub blocked_by: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub struct LockResults {
    /// The lock's name in the real code.
    pub name: &'static str,
    pub accounting: LockAccounting,
}

impl ClassResults {
    pub(crate) fn new(name: &str) -> ClassResults {
        let latency = Histogram::new_with_bounds(1000, 3_600_000_000_000, 3);
        ClassResults {
            name: name.to_owned(),
            due: 0,
            refused: 0,
            latency: latency.expect("the bounds are sound"),
            account: Account::default(),
            slowest: BinaryHeap::new(),
        }
    }

    pub(crate) fn answered(&mut self, took_ns: u64, account: Account) {
        let number = self.answers();
        self.latency.saturating_record(took_ns);
        self.account += account;
        self.slowest.push(Reverse((took_ns, number, account)));
        if self.slowest.len() > SLOWEST {
            self.slowest.pop();
        }
    }

    pub fn answers(&self) -> u64 {
        self.latency.len()
    }

    /// Returns a quantile of the latency, or `None` if there was no response. `quantile` is between
    /// 0 and 1.
    pub fn latency_ms(&self, quantile: f64) -> Option<f64> {
        let ns = (!self.latency.is_empty()).then(|| self.latency.value_at_quantile(quantile))?;
        Some(ns as f64 / 1e6)
    }

    /// Returns the sum of the accounts of the slowest hundredth of the requests, as far as they
    /// were kept.
    pub fn slowest_account(&self) -> Account {
        let mut slowest: Vec<_> = self.slowest.iter().map(|Reverse(kept)| kept).collect();
        slowest.sort_by_key(|(took_ns, number, _)| (Reverse(*took_ns), *number));
        let mut sum = Account::default();
        for (_, _, account) in slowest.into_iter().take((self.answers() as usize).div_ceil(100)) {
            sum += *account;
        }
        sum
    }
}

impl Results {
    pub fn table(&self) -> String {
        let mut table = format!("era {}\n", self.era);
        let widest = self.classes.iter().map(|class| class.name.chars().count()).max();
        let width = widest.unwrap_or(0).max(5);
        let counts = ["answered", "refused"].map(str::to_owned);
        let times = QUANTILES.map(|(name, _)| format!("{name} ms"));
        let columns = counts.into_iter().chain(times);
        let columns: String = columns.map(|column| format!(" {column:>9}")).collect();
        let why = "the slowest 1 % spend their time on";
        let _ = writeln!(table, "  {:width$}{columns}   {why}", "class");
        for class in &self.classes {
            let (answered, refused) = (class.answers().to_string(), class.refused.to_string());
            let times = QUANTILES.map(|(_, quantile)| number(class.latency_ms(quantile)));
            let columns: String =
                [answered, refused].iter().chain(&times).map(|it| format!(" {it:>9}")).collect();
            let _ = writeln!(table, "  {:width$}{columns}   {}", class.name, self.blame(class));
        }
        for lock in &self.locks {
            let _ = writeln!(table, "  {}", lock.line());
        }
        let _ = writeln!(
            table,
            "  {:.2} cores were busy; at most {} entries were committed and not applied",
            self.cores_used, self.gap_max
        );
        table
    }

    /// Returns the three largest parts of the time of slow requests.
    fn blame(&self, class: &ClassResults) -> String {
        let shares = self.shares(class).into_iter().take(3).map(|share| share.to_string());
        shares.collect::<Vec<_>>().join(", ")
    }

    /// Returns the parts of the time of the slowest hundredth of the requests. The largest part is
    /// first.
    pub fn shares(&self, class: &ClassResults) -> Vec<Share> {
        let account = class.slowest_account();
        let total_ns = account.total_ns().max(1) as f64;
        let requests = (class.answers() as usize).div_ceil(100).clamp(1, SLOWEST) as f64;
        let share = |(kind, ns): (TimeKind, u64)| {
            let name = self.names.get(&kind).copied().unwrap_or_default();
            let lock = self.locks.iter().find(|lock| lock.name == name);
            Share {
                name,
                share: ns as f64 / total_ns,
                each_ms: ns as f64 / 1e6 / requests,
                blocked_by: lock.and_then(|lock| lock.culprit(&class.name, class.account[kind])),
            }
        };
        account.entries().into_iter().map(share).collect()
    }

    pub fn json(&self) -> Value {
        let classes = self.classes.iter().map(|class| {
            let quantiles =
                QUANTILES.map(|(name, at)| (name.to_owned(), json!(class.latency_ms(at))));
            json!({
                "name": class.name,
                "due": class.due,
                "answered": class.answers(),
                "refused": class.refused,
                "latency_ms": Value::Object(quantiles.into_iter().collect()),
                "slowest": self.shares(class).iter().map(Share::json).collect::<Vec<_>>(),
            })
        });
        let locks = self.locks.iter().map(LockResults::json);
        json!({
            "era": self.era.name(),
            "classes": classes.collect::<Vec<_>>(),
            "locks": locks.collect::<Vec<_>>(),
            "cores_busy": self.cores_used,
            "apply_gap_max": self.gap_max,
            "steps": self.steps,
        })
    }
}

impl Share {
    fn json(&self) -> Value {
        let Share { name, share, each_ms, blocked_by } = self;
        json!({ "on": name, "share": share, "ms": each_ms, "held_by": blocked_by })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} % {}", 100.0 * self.share, self.name)?;
        self.blocked_by.map_or(Ok(()), |holder| write!(f, " (held by {holder})"))
    }
}

pub(crate) fn number(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"))
}

impl LockResults {
    /// Returns the task that caused the largest part of the time that the class `class` waited for
    /// the lock. `spent_ns` is the time that the accounts of this class show for the lock. If the
    /// class itself waited for less than half of `spent_ns`, it mainly waited for a worker that
    /// needed the lock. Then the result is the task that caused the largest part of the waits of
    /// all tasks. Returns `None` if no task that held the lock is known.
    fn culprit(&self, class: &str, spent_ns: u64) -> Option<&'static str> {
        let mut to_class = BTreeMap::<&'static str, f64>::new();
        for ((waiter, _, front, stance), blame) in &self.accounting.blame {
            if waiter.name() == class {
                let ns = blame.ns as f64;
                match stance {
                    BlockerState::Holding => *to_class.entry(front.name()).or_default() += ns,
                    // A waiting task is not blamed. The tasks that block it are blamed.
                    _ => {
                        let behind = self.holders(Some(front.name()));
                        let all: f64 = behind.values().sum();
                        for (holder, its) in behind {
                            *to_class.entry(holder).or_default() += ns * its / all;
                        }
                    }
                }
            }
        }
        let is_own = to_class.values().sum::<f64>() >= 0.5 * spent_ns as f64;
        let most = |by_holder: BTreeMap<&'static str, f64>| {
            by_holder.into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other))
        };
        most(if is_own { to_class } else { self.holders(None) }).map(|(name, _)| name)
    }

    /// Returns, for each task that held the lock, how long the class `waiting` waited for it. If
    /// `waiting` is `None`, the waits of all classes are counted.
    fn holders(&self, waiting: Option<&str>) -> BTreeMap<&'static str, f64> {
        let mut by_holder = BTreeMap::new();
        for ((waiter, _, front, stance), blame) in &self.accounting.blame {
            let is_meant = waiting.is_none_or(|name| name == waiter.name());
            if is_meant && *stance == BlockerState::Holding {
                *by_holder.entry(front.name()).or_default() += blame.ns as f64;
            }
        }
        by_holder
    }

    fn json(&self) -> Value {
        let (accounting, ms) = (&self.accounting, |ns: u64| ns as f64 / 1e6);
        json!({
            "name": self.name,
            "entries": accounting.entries,
            "waited_ms": ms(accounting.waited_ns),
            "held_ms": ms(accounting.held_ns),
            "longest_hold": accounting.longest.map(|hold| json!({ "ms": ms(hold.ns), "by": hold.label.name() })),
        })
    }

    fn line(&self) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let accounting = &self.accounting;
        let longest = accounting.longest.map_or_else(String::new, |hold| {
            format!("; held for {:.2} ms at the longest, by {}", ms(hold.ns), hold.label.name())
        });
        format!(
            "{}: taken {} times, waited for {:.1} ms, held {:.1} ms in all{longest}",
            self.name,
            accounting.entries,
            ms(accounting.waited_ns),
            ms(accounting.held_ns)
        )
    }
}
