//! The store of one era, and one window of load on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_backend::{Config, Era};
use clearlane_benches::store::{Store, record_key, value};
use clearlane_contention::{Registry, TaskLabel, waited_ns};
use clearlane_engine::Bucket;
use clearlane_server::observe::request_trace::{RequestTrace, Stage as Part};
use clearlane_server::observe::trace::{LaneKind, StepKind, TraceRecorder};
use hdrhistogram::Histogram;

use crate::bench_config::{BenchConfig, ExpensiveRead};
use crate::load::{Arrivals, Class, Load};
use crate::plot::readable_time;

const VALUE_SIZE: usize = 1024;
const CHEAP_RECORDS: u64 = 10;
/// Times longer than a minute are recorded as a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Number of reads in one measurement of [`ExpensiveRead::Takes`]. The time of the shortest read is
/// used.
const SIZING_READS: u32 = 7;
/// How often the commit thread checks the time. The backend commits every 100 ms.
const COMMIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An era with its store.
#[derive(Debug)]
pub(crate) struct BenchStore {
    pub(crate) era: Era,
    store: Store,
    locks: Registry,
    /// Records the timeline of a window.
    pub(crate) recorder: TraceRecorder,
    /// The newest revision. Only puts change it.
    revision: AtomicU64,
    /// Number of records before the first window.
    records: u64,
    /// Number of records of one expensive read. If the store has fewer records, the read reads some
    /// records repeatedly.
    expensive_records: u64,
    began: Instant,
}

/// The measurements of one class of operations in one window.
#[derive(Debug)]
pub(crate) struct ClassTimes {
    pub(crate) latency: Histogram<u64>,
    pub(crate) lock_wait: Histogram<u64>,
    pub(crate) latencies_ns: Vec<u64>,
    /// Number of completed operations. The other operations were still queued when the window
    /// ended.
    pub(crate) served_count: u64,
    /// The longest time that any lock used by this class was held.
    pub(crate) longest_hold_ns: u64,
}

/// The measurements of one window.
#[derive(Debug)]
pub(crate) struct Window {
    cheap_read: ClassTimes,
    put: ClassTimes,
    /// Number of completed expensive reads.
    pub(crate) expensive_reads: u64,
}

impl ClassTimes {
    fn new() -> ClassTimes {
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are sound");
        ClassTimes {
            latency: histogram(),
            lock_wait: histogram(),
            latencies_ns: Vec::new(),
            served_count: 0,
            longest_hold_ns: 0,
        }
    }

    /// Returns the measurements of two clients together.
    fn merged_with(mut self, other: ClassTimes) -> ClassTimes {
        let same = "all histograms have the same bounds";
        self.latency.add(&other.latency).expect(same);
        self.lock_wait.add(&other.lock_wait).expect(same);
        self.latencies_ns.extend(other.latencies_ns);
        self.served_count += other.served_count;
        self
    }
}

impl Window {
    pub(crate) fn class(&self, class: Class) -> &ClassTimes {
        match class {
            Class::CheapRead => &self.cheap_read,
            Class::Put => &self.put,
        }
    }
}

impl BenchStore {
    /// Opens and fills the store.
    pub(crate) fn open(era: Era, settings: &BenchConfig) -> BenchStore {
        let locks = Registry::new();
        let config = Config { locks: locks.clone(), ..Config::default() };
        let store = Store::open(era, settings.engine, config);
        store.fill(settings.records, VALUE_SIZE);
        let revision = AtomicU64::new(settings.records);
        let recorder = TraceRecorder::new(&locks);
        let (records, began) = (settings.records, Instant::now());
        let expensive_records = 0;
        let mut opened =
            BenchStore { era, store, locks, recorder, revision, records, expensive_records, began };
        opened.expensive_records = match settings.expensive_read {
            ExpensiveRead::Records(records) => records,
            ExpensiveRead::Takes(time) => opened.records_for(time),
        };
        opened
    }

    /// Returns the number of records that a read must have so that it takes `time` in an idle
    /// store.
    fn records_for(&self, time: Duration) -> u64 {
        let mut records = self.records;
        // The first measurement reads all records of the store. The second has nearly the right
        // number of records, so it uses nearly as much memory as the expensive read will.
        for _ in 0..2 {
            let wanted =
                records as f64 * time.as_secs_f64() / self.read_time(records).as_secs_f64();
            records = (wanted as u64).max(CHEAP_RECORDS);
        }
        let took = readable_time(self.read_time(records).as_secs_f64() * 1e6);
        eprintln!("{:9} an expensive read has {records} records: {took} if calm", self.era.name());
        records
    }

    fn read_time(&self, records: u64) -> Duration {
        let read = |_| {
            let begin = Instant::now();
            self.read_records(1, records);
            begin.elapsed()
        };
        (0..SIZING_READS).map(read).min().expect("there are reads")
    }

    /// Runs one window: one thread for each client, one for commits, and one for the load.
    pub(crate) fn run(&self, load: Load, settings: &BenchConfig, seed: u64) -> Window {
        self.store.backend.commit().expect("a healthy store commits");
        self.locks.reset();
        let over = AtomicBool::new(false);
        let start = Instant::now() + Duration::from_millis(5);
        let arrivals = |class, client| Arrivals::new(class, client, start, settings.window, seed);
        std::thread::scope(|threads| {
            threads.spawn(|| self.run_commits(&over));
            let beside = threads.spawn(|| match load {
                Load::Idle => 0,
                Load::Spin => spin(&over),
                Load::Expensive => self.expensive_reads(&over),
            });
            let puts = threads.spawn(|| self.puts(arrivals(Class::Put, 0)));
            let readers: Vec<_> = (0..Class::CheapRead.clients())
                .map(|client| {
                    let arrivals = arrivals(Class::CheapRead, client);
                    threads.spawn(|| self.cheap_reads(arrivals, settings))
                })
                .collect();
            let no_panic = "a measuring thread does not panic";
            let put = puts.join().expect(no_panic);
            let reads = readers.into_iter().map(|reader| reader.join().expect(no_panic));
            let cheap_read = reads.reduce(ClassTimes::merged_with).expect("there are readers");
            over.store(true, Ordering::Relaxed);
            Window {
                put: self.with_holds(put, Class::Put),
                cheap_read: self.with_holds(cheap_read, Class::CheapRead),
                expensive_reads: beside.join().expect(no_panic),
            }
        })
    }

    fn puts(&self, arrivals: Arrivals) -> ClassTimes {
        let value = value(VALUE_SIZE);
        self.measure(Class::Put, arrivals, |_| {
            let revision = self.revision.fetch_add(1, Ordering::Relaxed) + 1;
            self.store.put(revision, Bytes::copy_from_slice(&value));
        })
    }

    fn cheap_reads(&self, arrivals: Arrivals, settings: &BenchConfig) -> ClassTimes {
        self.measure(Class::CheapRead, arrivals, |arrivals| {
            let first = 1 + arrivals.below(settings.records - CHEAP_RECORDS);
            self.read_records(first, CHEAP_RECORDS);
        })
    }

    fn expensive_reads(&self, over: &AtomicBool) -> u64 {
        let actor = TaskLabel::named("expensive_read");
        let mut rounds = 0;
        while !over.load(Ordering::Relaxed) {
            self.run_recorded(actor, LaneKind::Read, || {
                self.read_records(1, self.expensive_records)
            });
            rounds += 1;
        }
        rounds
    }

    /// Runs an operation under this label, and adds it to the timeline if one is recorded.
    fn run_recorded(&self, actor: TaskLabel, kind: LaneKind, work: impl FnOnce()) {
        let number = self.recorder.next_request_number();
        let _as = actor.enter_numbered(number);
        if number == 0 {
            return work();
        }
        let mut card = RequestTrace::start().with_number(number);
        work();
        card.end_stage(Part::Backend);
        self.recorder.record_request(actor.name(), kind, card);
    }

    /// Reads records like the layer above the backend: one look-up for each record that the index
    /// has returned, in one read transaction, and every value is kept for the response. After the
    /// last record, the read continues with the first record.
    fn read_records(&self, first: u64, count: u64) {
        let tx = self.store.backend.begin_read();
        let get = |number| {
            let revision = 1 + number % self.records;
            tx.get(Bucket::Key, &record_key(revision)).expect("a healthy store")
        };
        let answer: Vec<Bytes> = (first - 1..first - 1 + count).filter_map(get).collect();
        assert_eq!(answer.len() as u64, count, "every record that was put is found");
    }

    fn run_commits(&self, over: &AtomicBool) {
        let actor = TaskLabel::named("commit");
        let _as = actor.enter();
        let mut shift = self.recorder.trace_thread(actor);
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(COMMIT_POLL_INTERVAL);
            self.recorder.collect();
            shift.end_step(StepKind::Idle);
            self.store
                .backend
                .commit_if_due(self.began.elapsed())
                .expect("a healthy store commits");
            shift.end_step(StepKind::Running);
        }
    }

    /// Runs an operation at every arrival and records its times, starting at its due time. An
    /// operation that is still queued at the end of the window is recorded with the time that it
    /// has waited so far.
    fn measure(
        &self,
        class: Class,
        mut arrivals: Arrivals,
        operation: impl Fn(&mut Arrivals),
    ) -> ClassTimes {
        let actor = TaskLabel::named(class.name());
        let mut met = ClassTimes::new();
        while let Some(due) = arrivals.next() {
            if !arrivals.are_over() {
                let waited_before = waited_ns();
                self.run_recorded(actor, class.kind(), || operation(&mut arrivals));
                met.lock_wait.saturating_record(waited_ns() - waited_before);
                met.served_count += 1;
            }
            let latency_ns = due.elapsed().as_nanos() as u64;
            met.latency.saturating_record(latency_ns);
            met.latencies_ns.push(latency_ns);
        }
        met
    }

    fn with_holds(&self, mut met: ClassTimes, class: Class) -> ClassTimes {
        let actor = TaskLabel::named(class.name());
        for lock in self.locks.report() {
            let holders = || lock.read.holders.iter().chain(&lock.write.holders);
            if holders().any(|holder| holder.task == actor) {
                let longest = holders().map(|holder| holder.longest_ns).max().unwrap_or(0);
                met.longest_hold_ns = met.longest_hold_ns.max(longest);
            }
        }
        met
    }
}

fn spin(over: &AtomicBool) -> u64 {
    while !over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    0
}
