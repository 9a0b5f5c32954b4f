//! The loads of a calibration, and what a server has shown while each of them ran.
//!
//! All of them are small: a machine that has nothing to do for most of the time shows what things
//! cost, and not how long they wait for each other.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_loadgen::process::Process;
use clearlane_loadgen::report::ClassReport;
use clearlane_loadgen::workload::Workload;
use clearlane_simulator::calibration::derive::{
    EraMeasurements, FEW, LONG, LoadMeasurement, MANY, MeasuredTimes, OFTEN, PUTS_BESIDE,
    PUTS_OFTEN, PUTS_SELDOM, RARELY, SELDOM, WALKED,
};
use clearlane_simulator::era::Era;
use clearlane_simulator::metrics::Page;
use clearlane_simulator::metrics::buckets::Buckets;

use super::noise::{Noise, ProcessorTime, RetryBudget, stood_ms};
use super::{Program, Server};

const SMALL_KEYS: u64 = 20_000;
const LARGE_KEYS: u64 = 20_000;
const KEY: u64 = 64;
const SMALL_VALUE: u64 = 64;
const LARGE_VALUE: u64 = 1_024;
const PUT_VALUE: u64 = 16_384;

/// A load: of how many requests a second, and what one asks for.
pub(crate) struct Load {
    name: &'static str,
    is_large: bool,
    rate: f64,
    what: String,
    /// Classes beside it, by their names.
    beside: Vec<(&'static str, String)>,
    /// Whether the driver has time to spare.
    is_light: bool,
    /// Its answers take memory that no thread has had before.
    is_long: bool,
    /// How much longer than others it takes.
    times: u64,
}

/// The first long answers take half as long again.
const WARM_UP_SECONDS: u64 = 2;

/// For long, since processor time is counted in hundredths of a second.
const IDLE: Duration = Duration::from_secs(10);

/// Puts show the tail of the disk, and one in a hundred of too few is anything; of long reads there
/// are few a second.
const LONGER: u64 = 2;
/// And of those that come rarely, even fewer.
const LONGEST: u64 = 3;

impl Load {
    fn new(name: &'static str, rate: f64, what: impl Into<String>) -> Load {
        let (is_large, is_light, is_long, times) = (false, true, false, 1);
        let (what, beside) = (what.into(), Vec::new());
        Load { name, is_large, rate, what, beside, is_light, is_long, times }
    }

    fn range(name: &'static str, rate: f64, keys: f64, rest: &str) -> Load {
        let load = Load::new(name, rate, reads(keys, rest));
        Load { is_light: keys <= FEW, ..load }
    }

    /// Small reads of three kinds, at the same time: what one kind takes beyond another is little
    /// beside how much longer all of them take from one minute to the next.
    fn seldom() -> Load {
        let rate = SELDOM / 3.0;
        let fresh = ("fresh-seldom", reads(1.0, ""));
        let few = ("ten-keys-seldom", reads(FEW, SERIALIZABLE));
        let beside = [fresh, few].map(|(name, what)| (name, format!("rate = {rate}\n{what}")));
        let load = Load::range("one-key-seldom", rate, 1.0, SERIALIZABLE);
        Load { beside: beside.to_vec(), times: LONGER, ..load }
    }

    fn rarely() -> Load {
        let load = Load::range("one-key-rarely", RARELY, 1.0, SERIALIZABLE);
        Load { times: LONGEST, ..load }
    }

    fn put(name: &'static str, rate: f64) -> Load {
        Load { times: LONGER, ..Load::new(name, rate, "operation = \"put\"\n") }
    }

    fn large(self) -> Load {
        Load { is_large: true, ..self }
    }

    fn long(self) -> Load {
        Load { is_long: true, ..self }
    }

    /// So long.
    pub(crate) fn workload(&self, seconds: u64) -> Result<Workload, String> {
        let (count, value, prefix) = match self.is_large {
            true => (LARGE_KEYS, LARGE_VALUE, "/large/"),
            false => (SMALL_KEYS, SMALL_VALUE, "/small/"),
        };
        let Load { name, rate, what, .. } = self;
        // Two long answers that meet would wait for each other, and that is not what one of them
        // costs.
        let arrivals = if self.is_light { "poisson" } else { "constant" };
        let mut text = format!("seconds = {seconds}\n[keys]\ncount = {count}\nsize = {KEY}\n");
        let _ = writeln!(text, "value = {value}\nprefix = \"{prefix}\"");
        let _ = writeln!(
            text,
            "[[class]]\nname = \"{name}\"\narrivals = \"{arrivals}\"\nrate = {rate}\n{what}"
        );
        for (name, beside) in &self.beside {
            let _ =
                writeln!(text, "[[class]]\nname = \"{name}\"\narrivals = \"poisson\"\n{beside}");
        }
        Workload::parse(&text).map_err(|error| error.to_string())
    }
}

fn reads(keys: f64, rest: &str) -> String {
    format!("operation = \"range\"\nkeys = {keys:.0}\n{rest}")
}

/// A server under measurement.
struct Bench {
    era: Era,
    server: Server,
    /// What it uses per second without a request.
    idle: f64,
    /// By group, load and class; one for each turn.
    found: Vec<(WindowId, LoadMeasurement)>,
    noise: Noise,
}

const SERIALIZABLE: &str = "consistency = \"serializable\"\n";

/// Has the loads of a calibration, one after the other; those between which costs are differences
/// follow each other.
pub(crate) fn loads() -> Vec<Vec<Load>> {
    let puts = ("puts-beside", format!("operation = \"put\"\nrate = {PUTS_BESIDE}\n"));
    let (one, large) = (SERIALIZABLE, format!("operation = \"put\"\nvalue = {PUT_VALUE}\n"));
    vec![
        vec![
            point(),
            Load::seldom(),
            Load::rarely(),
            Load::range("fresh", OFTEN, 1.0, ""),
            Load::range("ten-keys", OFTEN, FEW, SERIALIZABLE),
            Load::range("one-of-many", 100.0, WALKED, &format!("limit = 1\n{SERIALIZABLE}")),
        ],
        vec![
            Load::range("many", 10.0, MANY, SERIALIZABLE).long(),
            // As seldom as they come where they hurt: at three a second, those of 3.2 take 10 to 20
            // % less.
            Load { times: LONGER, ..Load::range("long", 1.0, LONG, SERIALIZABLE).large().long() },
        ],
        vec![
            Load::put("puts-seldom", PUTS_SELDOM),
            Load::put("puts", PUTS_OFTEN),
            Load::new("large-puts", PUTS_SELDOM, large).large(),
            Load { beside: vec![puts], ..Load::range("beside-puts", 1000.0, 1.0, one) },
        ],
    ]
}

fn point() -> Load {
    Load::range("one-key", OFTEN, 1.0, SERIALIZABLE)
}

/// Which class of which load in which group.
pub(crate) type WindowId = (usize, usize, usize);

/// What an era has shown.
pub(crate) struct EraWindows {
    pub(crate) era: Era,
    pub(crate) measurements: EraMeasurements,
    /// The same, by the places of loads and classes.
    pub(crate) windows: BTreeMap<WindowId, LoadMeasurement>,
    /// What disturbed it.
    pub(crate) noise: Noise,
}

/// Measures a server of each era, with each load in so many turns of so many seconds; `tell` is
/// given how far it is, up to 1.
///
/// Eras take turns, and what counts is the middle: a machine that is lent may be half as quick in
/// the next minute, and that must not look like what tells one era from another.
pub(crate) fn measure_eras(
    program: &Program,
    eras: &[Era],
    (turns, seconds): (u64, u64),
    patience: &mut RetryBudget,
    tell: &mut dyn FnMut(f64),
) -> Result<Vec<EraWindows>, String> {
    let mut benches = Vec::new();
    for era in eras {
        benches.push(Bench::start(program, *era).map_err(of(*era))?);
        tell(0.1 * benches.len() as f64 / eras.len() as f64);
    }
    idle(&mut benches)?;
    let groups = loads();
    let (all, mut done) = (turns as usize * groups.len() * eras.len(), 0);
    for turn in 1..=turns {
        for (number, loads) in groups.iter().enumerate() {
            for bench in &mut benches {
                bench.has_turn(number, loads, turn, seconds, patience).map_err(of(bench.era))?;
                done += 1;
                tell(0.1 + 0.9 * done as f64 / all as f64);
            }
        }
    }
    Ok(benches.into_iter().map(Bench::shown).collect())
}

/// Looks what each of them uses if no request comes.
fn idle(benches: &mut [Bench]) -> Result<(), String> {
    let used = |bench: &Bench| {
        let looked = bench.server.process()?.usage().map_err(|error| error.to_string())?;
        Ok::<_, String>(looked.processor)
    };
    let before = benches.iter().map(used).collect::<Result<Vec<_>, _>>()?;
    let begin = Instant::now();
    thread::sleep(IDLE);
    for (bench, before) in benches.iter_mut().zip(before) {
        bench.idle = (used(bench)? - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    }
    Ok(())
}

fn of(era: Era) -> impl Fn(String) -> String {
    move |error| format!("era {era}: {error}")
}

impl Bench {
    /// Starts one, with its keys.
    fn start(program: &Program, era: Era) -> Result<Bench, String> {
        let server = Server::start(program, era)?;
        for load in [point(), point().large()] {
            server.fill(&load.workload(1)?.space, "the keys")?;
        }
        let (found, noise) = (Vec::new(), Noise::default());
        let bench = Bench { era, server, idle: 0.0, found, noise };
        // Connections, caches and the pages behind them are warm then.
        bench.windows(&point(), 1, 1)?;
        Ok(bench)
    }

    /// A turn of it, with the loads of a group.
    fn has_turn(
        &mut self,
        group: usize,
        loads: &[Load],
        turn: u64,
        seconds: u64,
        patience: &mut RetryBudget,
    ) -> Result<(), String> {
        for (number, load) in loads.iter().enumerate() {
            if load.is_long {
                self.windows(load, WARM_UP_SECONDS, turn)?;
            }
            let (windows, noise) = patience.least_noisy(|| self.windows(load, seconds, turn))?;
            self.noise += noise;
            for (class, window) in windows.into_iter().enumerate() {
                self.found.push(((group, number, class), window));
            }
        }
        Ok(())
    }

    /// What came of all turns.
    fn shown(self) -> EraWindows {
        let mut turns: BTreeMap<WindowId, Vec<LoadMeasurement>> = BTreeMap::new();
        for (place, window) in self.found {
            turns.entry(place).or_default().push(window);
        }
        let windows: BTreeMap<WindowId, LoadMeasurement> = turns
            .into_iter()
            .map(|(place, turns)| (place, LoadMeasurement::middle(&turns)))
            .collect();
        let of = |group, number, class| windows[&(group, number, class)];
        // In the order of `loads`.
        let seen = EraMeasurements {
            point: of(0, 0, 0),
            seldom: of(0, 1, 0),
            fresh_seldom: of(0, 1, 1),
            few_seldom: of(0, 1, 2),
            rarely: of(0, 2, 0),
            fresh: of(0, 3, 0),
            few: of(0, 4, 0),
            walk: of(0, 5, 0),
            many: of(1, 0, 0),
            large: of(1, 1, 0),
            put: of(2, 0, 0),
            puts: of(2, 1, 0),
            large_put: of(2, 2, 0),
            beside: of(2, 3, 0),
        };
        EraWindows { era: self.era, measurements: seen, windows, noise: self.noise }
    }

    /// One for each class. What the server has used, and what it says of itself, is that of all of
    /// them.
    fn windows(
        &self,
        load: &Load,
        seconds: u64,
        seed: u64,
    ) -> Result<(Vec<LoadMeasurement>, Noise), String> {
        let seconds = seconds * load.times;
        let workload = load.workload(seconds)?;
        let own = Process::open(process::id()).map_err(|error| error.to_string())?;
        let client = || own.usage().map(|used| used.processor).map_err(|error| error.to_string());
        let (page, before) = (self.server.metrics()?, client()?);
        let lent = ProcessorTime::read()?;
        let report = self.server.load(&workload, seed, Duration::ZERO)?;
        let stolen = ProcessorTime::read()?.stolen_since(lent);
        let (after, later) = (client()?, self.server.metrics()?);
        let late = report.classes.iter().filter_map(|line| line.metrics.send_delay_ms(0.99));
        let late_ms = if load.is_light { late.fold(0.0, f64::max) } else { 0.0 };
        let stood_ms = stood_ms(&page, &later);
        let noise = Noise { stolen, late_ms, drift: 0.0, stood_ms };
        let answers = report.classes.iter().map(|line| line.metrics.answered()).sum::<u64>() as f64;
        let (first, last) = report.usage.ok_or("what the server uses is not known")?;
        let server = (last.processor - first.processor).as_secs_f64() - self.idle * seconds as f64;
        let seen = Between { page, later };
        let commit = seen.histogram("etcd_disk_backend_commit_duration_seconds");
        let commits = commit.as_ref().map_or(0.0, |commit| commit.count);
        let window = LoadMeasurement {
            server_ns: server.max(0.0) * 1e9 / answers,
            client_ns: (after - before).as_secs_f64() * 1e9 / answers,
            // A driver has a look at the keys before it begins, and of long reads there are only a
            // few.
            store_held_ns: seen.held("store", None).0 / answers,
            read_tx_held_ns: match seen.held("readTx", Some("read")) {
                (_, 0.0) => 0.0,
                (held, times) => held / times,
            },
            applied_ns: seen
                .histogram("etcd_server_apply_duration_seconds")
                .map_or(0.0, |applied| applied.mean_ms() * 1e6),
            sync: seen.histogram("etcd_disk_wal_fsync_duration_seconds").map(measured),
            per_commit: if commits > 0.0 { answers / commits } else { 0.0 },
            commit: commit.map(measured),
            ..LoadMeasurement::default()
        };
        let of_class = |line: &ClassReport| {
            let ns = |quantile| line.metrics.latency_ms(quantile).map(|ms| ms * 1e6);
            let median_and_p99 = ns(0.5).zip(ns(0.99)).ok_or("no answer came")?;
            let (median_ns, p99_ns) = median_and_p99;
            Ok(LoadMeasurement { median_ns, p99_ns, ..window })
        };
        let windows = report.classes.iter().map(of_class).collect::<Result<_, String>>()?;
        Ok((windows, noise))
    }
}

fn measured(buckets: Buckets) -> MeasuredTimes {
    MeasuredTimes { mean_ns: buckets.mean_ms() * 1e6, p99_ns: buckets.quantile_ms(0.99) * 1e6 }
}

/// Two looks at the metrics.
struct Between {
    page: Page,
    later: Page,
}

impl Between {
    fn histogram(&self, name: &str) -> Option<Buckets> {
        Buckets::of(&self.later, name)?.since(Buckets::of(&self.page, name).as_ref())
    }

    /// How long a lock was held in this mode, and how often.
    fn held(&self, lock: &str, mode: Option<&str>) -> (f64, f64) {
        let sum = |page: &Page, part: &str| {
            let name = format!("clearlane_lock_hold_seconds_{part}");
            page.sum(&name, |sample| {
                let is_its = mode.is_none_or(|mode| sample.label("mode") == mode);
                sample.label("lock") == lock && is_its
            })
        };
        let since = |part: &str| {
            sum(&self.later, part).unwrap_or(0.0) - sum(&self.page, part).unwrap_or(0.0)
        };
        (since("sum") * 1e9, since("count"))
    }
}
