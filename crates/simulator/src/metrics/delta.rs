//! What a server did between two pages of its metrics, whatever its version calls it.

use super::buckets::Buckets;
use super::page::{Page, Sample};

/// What was counted under different names, the newest first: 3.4 took most out of `debugging`.
const PUTS: [&str; 2] = ["etcd_mvcc_put_total", "etcd_debugging_mvcc_put_total"];
const RANGES: [&str; 2] = ["etcd_mvcc_range_total", "etcd_debugging_mvcc_range_total"];
const DELETES: [&str; 2] = ["etcd_mvcc_delete_total", "etcd_debugging_mvcc_delete_total"];
const TXNS: [&str; 2] = ["etcd_mvcc_txn_total", "etcd_debugging_mvcc_txn_total"];
const DB: [&str; 2] =
    ["etcd_mvcc_db_total_size_in_bytes", "etcd_debugging_mvcc_db_total_size_in_bytes"];
const DB_IN_USE: [&str; 2] = [
    "etcd_mvcc_db_total_size_in_use_in_bytes",
    "etcd_debugging_mvcc_db_total_size_in_use_in_bytes",
];
/// What of a commit is spent on the disk, and if that is not known, all of it.
const COMMITS: [&str; 2] = [
    "etcd_debugging_disk_backend_commit_write_duration_seconds",
    "etcd_disk_backend_commit_duration_seconds",
];
const SLOW_APPLIES: &str = "etcd_server_slow_apply_total";

/// Requests per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Reads.
    pub range: f64,
    /// Writes of one key.
    pub put: f64,
    /// Deletions.
    pub delete: f64,
    /// Transactions.
    pub txn: f64,
    /// Keys that were put in any way, at any member: a member applies them all.
    pub puts_applied: Option<f64>,
    /// Whether these are requests, or what the store did for them.
    pub are_requests: bool,
}

/// A distribution, and over which time.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredDistribution {
    /// It.
    pub buckets: Buckets,
    /// Nothing happened between the pages; so it is since the server was started.
    pub is_since_start: bool,
}

/// All that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsDelta {
    /// Between the pages.
    pub seconds: f64,
    /// What the server says it is, such as 3.5.9.
    pub version: Option<String>,
    /// If it is ours: the era of its read path.
    pub era: Option<String>,
    /// What was asked of it.
    pub rates: Rates,
    /// Syncs of the log.
    pub sync: Option<MeasuredDistribution>,
    /// Commits of the backend.
    pub commit: Option<MeasuredDistribution>,
    /// From here to another member and back.
    pub round_trip: Option<MeasuredDistribution>,
    /// Reads, where it measures them.
    pub range: Option<MeasuredDistribution>,
    /// Other members that it knows a way to.
    pub peers: usize,
    /// Whether it leads them.
    pub is_leader: Option<bool>,
    /// Keys there are.
    pub keys: Option<f64>,
    /// Of the file of the backend.
    pub db_bytes: Option<f64>,
    /// Of that, what is not free.
    pub db_in_use_bytes: Option<f64>,
    /// Key and value of what was put, on average.
    pub put_bytes: Option<f64>,
    /// What was sent to clients for each range, about: all that was sent, by the number of ranges.
    pub sent_per_range: Option<f64>,
    /// Watchers, which wait for changes.
    pub watchers: Option<f64>,
    /// Events per second to them.
    pub events: Option<f64>,
    /// Logins with a password, per second.
    pub logins: f64,
    /// Applies that it called slow, between the pages.
    pub slow_applies: Option<f64>,
    /// Of the machine, if it says so.
    pub cores: Option<f64>,
    /// Cores that it kept busy.
    pub cores_busy: Option<f64>,
}

/// Why two pages say nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetricsDeltaError {
    /// Sums since the start of one server, and of another.
    #[error("the server was started anew between the two readings; ask once more")]
    Restarted,
    /// There is no load to make a scenario of.
    #[error("it had no requests in {0:.1} s; ask for longer (--seconds), or while it has a load")]
    NoLoad(f64),
    /// Metrics without those that are needed.
    #[error(
        "it counts neither requests (grpc_server_started_total) nor what the store does (etcd_mvcc_*_total)"
    )]
    NoCounts,
}

/// Two pages, and the time between them.
struct Pages<'p> {
    first: &'p Page,
    second: &'p Page,
    seconds: f64,
}

impl MetricsDelta {
    /// What happened in so many seconds.
    pub fn between(
        first: &Page,
        second: &Page,
        seconds: f64,
    ) -> Result<MetricsDelta, MetricsDeltaError> {
        let pages = Pages { first, second, seconds };
        if pages.are_of_two_servers() {
            return Err(MetricsDeltaError::Restarted);
        }
        let rates = pages.rates().ok_or(MetricsDeltaError::NoCounts)?;
        let Rates { range, put, delete, txn, puts_applied, .. } = rates;
        if range + put + delete + txn + puts_applied.unwrap_or(0.0) <= 0.0 {
            return Err(MetricsDeltaError::NoLoad(seconds));
        }
        let gauge = |names: &[&str]| names.iter().find_map(|name| second.value(name));
        let round_trips = "etcd_network_peer_round_trip_time_seconds";
        Ok(MetricsDelta {
            seconds,
            version: named(second, "etcd_server_version", "server_version"),
            era: named(second, "clearlane_era", "era"),
            rates,
            sync: pages.measured("etcd_disk_wal_fsync_duration_seconds"),
            commit: COMMITS.iter().find_map(|name| pages.measured(name)),
            round_trip: pages.measured(round_trips),
            range: pages.measured("etcd_server_range_duration_seconds"),
            peers: second.all(&format!("{round_trips}_count")).len(),
            is_leader: second.value("etcd_server_is_leader").map(|leads| leads > 0.0),
            keys: gauge(&["etcd_debugging_mvcc_keys_total", "etcd_mvcc_keys_total"]),
            db_bytes: gauge(&DB),
            db_in_use_bytes: gauge(&DB_IN_USE),
            put_bytes: pages.put_bytes(),
            sent_per_range: pages.sent_per_range(),
            watchers: gauge(&["etcd_debugging_mvcc_watcher_total", "etcd_mvcc_watcher_total"]),
            events: pages.rate(&["etcd_debugging_mvcc_events_total", "etcd_mvcc_events_total"]),
            logins: pages.logins(),
            slow_applies: pages.rate(&[SLOW_APPLIES]).map(|rate| rate * seconds),
            cores: gauge(&["go_sched_gomaxprocs_threads"]),
            cores_busy: pages.rate(&["process_cpu_seconds_total"]),
        })
    }
}

/// What a label of a metric says that is there for its label.
fn named(page: &Page, name: &str, label: &str) -> Option<String> {
    let sample = page.all(name).iter().find(|sample| sample.value > 0.0)?;
    Some(sample.label(label).to_owned()).filter(|value| !value.is_empty())
}

impl Pages<'_> {
    /// A sum since a start never falls.
    fn are_of_two_servers(&self) -> bool {
        let counters = ["grpc_server_started_total", "etcd_disk_wal_fsync_duration_seconds_count"];
        let counters = counters.iter().chain(&PUTS).chain(&RANGES);
        let has_fallen = |name: &&str| {
            let sum = |page: &Page| page.sum(name, |_| true);
            sum(self.first).zip(sum(self.second)).is_some_and(|(first, second)| second < first)
        };
        let started = |page: &Page| page.value("process_start_time_seconds");
        let differ = |(first, second): (f64, f64)| (first - second).abs() > 1.0;
        counters.copied().any(|name| has_fallen(&name))
            || started(self.first).zip(started(self.second)).is_some_and(differ)
    }

    /// Per second, under the first of these names that is known.
    fn rate(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| self.rate_of(name, |_| true))
    }

    fn rate_of(&self, name: &str, is_wanted: impl Fn(&Sample) -> bool) -> Option<f64> {
        let after = self.second.sum(name, &is_wanted)?;
        // What was not there was never counted.
        let before = self.first.sum(name, &is_wanted).unwrap_or(0.0);
        Some((after - before).max(0.0) / self.seconds)
    }

    fn rates(&self) -> Option<Rates> {
        let puts_applied = self.rate(&PUTS);
        let names = ["grpc_server_started_total", "grpc_server_handled_total"];
        let counted = names.iter().find(|name| !self.second.all(name).is_empty());
        let Some(counted) = counted else {
            let [range, put, delete, txn] =
                [&RANGES, &PUTS, &DELETES, &TXNS].map(|names| self.rate(names));
            range.or(put)?;
            let [range, put, delete, txn] =
                [range, put, delete, txn].map(Option::unwrap_or_default);
            return Some(Rates { range, put, delete, txn, puts_applied, are_requests: false });
        };
        let [range, put, delete, txn] = ["Range", "Put", "DeleteRange", "Txn"].map(|method| {
            let is_it = |sample: &Sample| {
                sample.label("grpc_service").ends_with(".KV")
                    && sample.label("grpc_method") == method
            };
            self.rate_of(counted, is_it).unwrap_or(0.0)
        });
        Some(Rates { range, put, delete, txn, puts_applied, are_requests: true })
    }

    fn logins(&self) -> f64 {
        let is_it = |sample: &Sample| sample.label("grpc_method") == "Authenticate";
        self.rate_of("grpc_server_started_total", is_it).unwrap_or(0.0)
    }

    fn measured(&self, name: &str) -> Option<MeasuredDistribution> {
        let whole = Buckets::of(self.second, name)?;
        let between = whole.since(Buckets::of(self.first, name).as_ref());
        let is_since_start = between.is_none();
        Some(MeasuredDistribution { buckets: between.unwrap_or(whole), is_since_start })
    }

    /// Of what was put between the pages, or else since the start.
    fn put_bytes(&self) -> Option<f64> {
        let bytes =
            ["etcd_debugging_mvcc_total_put_size_in_bytes", "etcd_mvcc_total_put_size_in_bytes"];
        let between = self.rate(&bytes).zip(self.rate(&PUTS)).filter(|(_, puts)| *puts > 0.0);
        let whole = |names: &[&str]| names.iter().find_map(|name| self.second.value(name));
        let since_start = || whole(&bytes).zip(whole(&PUTS)).filter(|(_, puts)| *puts > 0.0);
        let (bytes, puts) = between.filter(|(bytes, _)| *bytes > 0.0).or_else(since_start)?;
        Some(bytes / puts)
    }

    fn sent_per_range(&self) -> Option<f64> {
        let sent = self.rate(&["etcd_network_client_grpc_sent_bytes_total"])?;
        let ranges = self.rates()?.range;
        (ranges > 0.0).then(|| sent / ranges)
    }
}
