//! The loads of a calibration, and what a server has shown while each of them ran.
//!
//! All of them are small: a machine that has nothing to do for most of the time shows what things cost, and not
//! how long they wait for each other.

use std::fmt::Write as _;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_load::process::Process;
use clearlane_load::workload::Workload;
use clearlane_simulator::calibration::derive::{
    LONG, MANY, Measured, OFTEN, PUTS_BESIDE, SELDOM, Seen, WALKED, Window,
};
use clearlane_simulator::era::Era;
use clearlane_simulator::metrics::Page;
use clearlane_simulator::metrics::buckets::Buckets;

use super::noise::{Lent, Noise, Patience};
use super::{Program, Server};

const SMALL_KEYS: u64 = 20_000;
const LARGE_KEYS: u64 = 20_000;
const KEY: u64 = 64;
const SMALL_VALUE: u64 = 64;
const LARGE_VALUE: u64 = 1_024;
const PUT_VALUE: u64 = 16_384;

/// A load: of how many requests a second, and what one asks for.
struct Load {
    is_large: bool,
    rate: f64,
    what: String,
    /// A class beside it, which is not looked at.
    beside: Option<String>,
    /// Whether the driver has time to spare.
    is_light: bool,
    /// Its answers take memory that no thread has had before.
    is_long: bool,
    /// How much longer than others it takes.
    times: u64,
}

/// The first long answers take half as long again.
const WARM_UP_SECONDS: u64 = 3;

/// Puts show the tail of the disk, and one in a hundred of too few is anything; of long reads there are few a second.
const LONGER: u64 = 3;

impl Load {
    fn new(rate: f64, what: impl Into<String>) -> Load {
        let (is_large, is_light, is_long, times) = (false, true, false, 1);
        Load { is_large, rate, what: what.into(), beside: None, is_light, is_long, times }
    }

    fn range(rate: f64, keys: f64, rest: &str) -> Load {
        let load = Load::new(rate, format!("operation = \"range\"\nkeys = {keys:.0}\n{rest}"));
        Load { is_light: keys <= 1.0, ..load }
    }

    fn put(rate: f64) -> Load {
        Load { times: LONGER, ..Load::new(rate, "operation = \"put\"\n") }
    }

    fn large(self) -> Load {
        Load { is_large: true, ..self }
    }

    fn long(self) -> Load {
        Load { is_long: true, ..self }
    }

    fn workload(&self, seconds: u64) -> Result<Workload, String> {
        let (count, value, prefix) = match self.is_large {
            true => (LARGE_KEYS, LARGE_VALUE, "/large/"),
            false => (SMALL_KEYS, SMALL_VALUE, "/small/"),
        };
        let (rate, what) = (self.rate, &self.what);
        // Two long answers that meet would wait for each other, and that is not what one of them costs.
        let arrivals = if self.is_light { "poisson" } else { "constant" };
        let mut text = format!("seconds = {seconds}\n[keys]\ncount = {count}\nsize = {KEY}\n");
        let _ = writeln!(text, "value = {value}\nprefix = \"{prefix}\"");
        let _ = writeln!(
            text,
            "[[class]]\nname = \"it\"\narrivals = \"{arrivals}\"\nrate = {rate}\n{what}"
        );
        if let Some(beside) = &self.beside {
            let _ =
                writeln!(text, "[[class]]\nname = \"beside\"\narrivals = \"poisson\"\n{beside}");
        }
        Workload::parse(&text).map_err(|error| error.to_string())
    }
}

/// A server under measurement.
struct Bench {
    server: Server,
    /// What it uses per second without a request.
    idle: f64,
}

const SERIALIZABLE: &str = "consistency = \"serializable\"\n";

/// Measures a server of an era, with each load for so long; `tell` hears how far it is, up to 1. Says what disturbed
/// it, too.
pub(crate) fn seen(
    program: &Program,
    era: Era,
    seconds: u64,
    patience: &mut Patience,
    tell: &mut dyn FnMut(f64),
) -> Result<(Seen, Noise), String> {
    let server = Server::start(program, era)?;
    for load in [Load::put(1.0), Load::put(1.0).large()] {
        server.fill(&load.workload(1)?.space, "the keys")?;
    }
    tell(0.1);
    let mut bench = Bench { server, idle: 0.0 };
    // Connections, caches and the pages behind them are warm then.
    let point = || Load::range(OFTEN, 1.0, SERIALIZABLE);
    bench.window(&point(), 1)?;
    bench.idle = bench.idle(seconds)?;
    let beside = format!("operation = \"put\"\nrate = {PUTS_BESIDE}\n");
    let loads = [
        point(),
        Load::range(SELDOM, 1.0, SERIALIZABLE),
        Load::range(OFTEN, 1.0, ""),
        Load::range(SELDOM, 1.0, ""),
        Load::range(100.0, WALKED, &format!("limit = 1\n{SERIALIZABLE}")),
        Load::range(10.0, MANY, SERIALIZABLE).long(),
        // As seldom as they come where they hurt: at three a second, those of 3.2 take 10 to 20 % less.
        Load { times: LONGER, ..Load::range(1.0, LONG, SERIALIZABLE).large().long() },
        Load::put(100.0),
        Load::put(1000.0),
        Load::new(100.0, format!("operation = \"put\"\nvalue = {PUT_VALUE}\n")).large(),
        Load { beside: Some(beside), ..Load::range(1000.0, 1.0, SERIALIZABLE) },
    ];
    let (mut windows, mut worst) = (Vec::new(), Noise::default());
    for (number, load) in loads.iter().enumerate() {
        if load.is_long {
            bench.window(load, WARM_UP_SECONDS)?;
        }
        let (window, noise) = patience.calmest(|| bench.window(load, seconds))?;
        windows.push(window);
        worst += noise;
        tell(0.1 + 0.9 * (number + 1) as f64 / loads.len() as f64);
    }
    let [point, seldom, fresh, fresh_seldom, walk, many, large, put, puts, large_put, beside] =
        windows.try_into().expect("a window for each load");
    let seen = Seen {
        point,
        seldom,
        fresh,
        fresh_seldom,
        walk,
        many,
        large,
        put,
        puts,
        large_put,
        beside,
    };
    Ok((seen, worst))
}

impl Bench {
    /// Processor time per second.
    fn idle(&self, seconds: u64) -> Result<f64, String> {
        let process = self.server.process()?;
        let used = || process.look().map_err(|error| error.to_string());
        let (before, begin) = (used()?.processor, Instant::now());
        thread::sleep(Duration::from_secs(seconds));
        Ok((used()?.processor - before).as_secs_f64() / begin.elapsed().as_secs_f64())
    }

    fn window(&self, load: &Load, seconds: u64) -> Result<(Window, Noise), String> {
        let seconds = seconds * load.times;
        let workload = load.workload(seconds)?;
        let own = Process::of(process::id()).map_err(|error| error.to_string())?;
        let client = || own.look().map(|used| used.processor).map_err(|error| error.to_string());
        let (page, before) = (self.server.metrics()?, client()?);
        let lent = Lent::look()?;
        let report = self.server.load(&workload, 1, Duration::ZERO)?;
        let stolen = Lent::look()?.stolen_since(lent);
        let (after, later) = (client()?, self.server.metrics()?);
        let tally = &report.lines[0].tally;
        let late = tally.late_ms(0.99).filter(|_| load.is_light);
        let noise = Noise { stolen, late_ms: late.unwrap_or(0.0), drift: 0.0 };
        let answers = report.lines.iter().map(|line| line.tally.answered()).sum::<u64>() as f64;
        let (first, last) = report.used.ok_or("what the server uses is not known")?;
        let server = (last.processor - first.processor).as_secs_f64() - self.idle * seconds as f64;
        let ns = |quantile| tally.latency_ms(quantile).map(|ms| ms * 1e6).ok_or("no answer came");
        let seen = Between { page, later };
        let commit = seen.histogram("etcd_disk_backend_commit_duration_seconds");
        let commits = commit.as_ref().map_or(0.0, |commit| commit.count);
        let window = Window {
            server_ns: server.max(0.0) * 1e9 / answers,
            client_ns: (after - before).as_secs_f64() * 1e9 / answers,
            median_ns: ns(0.5)?,
            p99_ns: ns(0.99)?,
            store_held_ns: seen.held("store", None),
            read_tx_held_ns: seen.held("readTx", Some("read")),
            applied_ns: seen
                .histogram("etcd_server_apply_duration_seconds")
                .map_or(0.0, |applied| applied.mean_ms() * 1e6),
            sync: seen.histogram("etcd_disk_wal_fsync_duration_seconds").map(measured),
            per_commit: if commits > 0.0 { answers / commits } else { 0.0 },
            commit: commit.map(measured),
        };
        Ok((window, noise))
    }
}

fn measured(buckets: Buckets) -> Measured {
    Measured { mean_ns: buckets.mean_ms() * 1e6, p99_ns: buckets.quantile_ms(0.99) * 1e6 }
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

    /// How long a lock was held each time, in this mode.
    fn held(&self, lock: &str, mode: Option<&str>) -> f64 {
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
        let count = since("count");
        if count > 0.0 { since("sum") * 1e9 / count } else { 0.0 }
    }
}
