//! The real server, for a measurement: a process with a directory of its own.

mod disk;
mod leftovers;
pub(crate) mod noise;
pub(crate) mod windows;

use std::env;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, value_parser};
use clearlane_loadgen::connection;
use clearlane_loadgen::fill::fill;
use clearlane_loadgen::keys::KeySpace;
use clearlane_loadgen::process::Process;
use clearlane_loadgen::report::Report;
use clearlane_loadgen::run::{RunOptions, run};
use clearlane_loadgen::workload::Workload;
use clearlane_simulator::era::Era;
use clearlane_simulator::metrics::Page;

use self::leftovers::ServerDirectory;
use crate::from_metrics::page;
use crate::text::print_progress;

/// A member that is alone leads within a second.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How to start one.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    directory: PathBuf,
    /// How long to wait for calm.
    pub(crate) retry_budget: Duration,
}

/// What [`Program::of`] reads.
pub(crate) fn arguments() -> [Arg; 3] {
    let path = |name: &'static str| {
        Arg::new(name).long(name).value_name("PATH").value_parser(value_parser!(PathBuf))
    };
    [
        path("server").help("The program `clearlane`; the one beside this one, if left out"),
        path("dir").help("Where it keeps its data, and so which disk counts; if left out, where temporary files are"),
        Arg::new("patience")
            .long("patience")
            .value_name("MINUTES")
            .default_value("10")
            .value_parser(value_parser!(u64).range(0..=1440))
            .help("So long in all, what the host had no time for is run again; the calmest counts"),
    ]
}

impl Program {
    pub(crate) fn of(matches: &ArgMatches) -> Result<Program, String> {
        if !Path::new("/proc/self/stat").exists() {
            return Err(
                "this system has no /proc, so what a server uses is not known: it takes a Linux"
                    .to_owned(),
            );
        }
        let directory = matches.get_one("dir").cloned().unwrap_or_else(env::temp_dir);
        let path = match matches.get_one::<PathBuf>("server") {
            Some(path) => path.clone(),
            None => beside_this_one()?,
        };
        let minutes: u64 = *matches.get_one("patience").expect("it has a default");
        let patience = Duration::from_secs(60 * minutes);
        if !path.is_file() {
            return Err(format!(
                "{}: there is no such program; `cargo build --release -p clearlane` makes it, and \
                 --server says where it is",
                path.display()
            ));
        }
        if let Some(warning) = disk::warning(&directory) {
            print_progress(&warning);
        }
        Ok(Program { path, directory, retry_budget: patience })
    }

    /// What a sync computes where its servers keep their data.
    pub(crate) fn sync_ns(&self) -> Result<f64, String> {
        disk::sync_ns(&self.directory)
    }
}

fn beside_this_one() -> Result<PathBuf, String> {
    let here = env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
    Ok(here.with_file_name(format!("clearlane{}", env::consts::EXE_SUFFIX)))
}

/// One that runs, until this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    place: ServerDirectory,
    id: u32,
    url: String,
}

impl Server {
    /// Starts one, alone, and waits until it is ready.
    pub(crate) fn start(program: &Program, era: Era) -> Result<Server, String> {
        let here = |error: std::io::Error| format!("{}: {error}", program.directory.display());
        let place = ServerDirectory::new(&program.directory).map_err(here)?;
        let (client, peer) = free_ports()?;
        let url = format!("http://127.0.0.1:{client}");
        let log = File::create(place.path().join("log")).map_err(here)?;
        let mut command = Command::new(&program.path);
        command
            .args(["--name", "measured", "--era", era.name()])
            .arg("--data-dir")
            .arg(place.path().join("data"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://127.0.0.1:{peer}")])
            .args(["--initial-cluster", &format!("measured=http://127.0.0.1:{peer}")])
            .args(["--quota-backend-bytes", "8589934592"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let wrong = |error| format!("{}: {error}", program.path.display());
        let id = place.start(&mut command).map_err(wrong)?;
        let server = Server { place, id, url };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&self) -> Result<(), String> {
        let begin = Instant::now();
        while page(&format!("{}/readyz", self.url)).is_err() {
            if let Some(status) = self.place.has_ended() {
                return Err(format!("the server has ended ({status}): {}", self.last_words()));
            }
            if begin.elapsed() > START_TIMEOUT {
                let seconds = START_TIMEOUT.as_secs();
                return Err(format!(
                    "the server is not ready after {seconds} s: {}",
                    self.last_words()
                ));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.place.path().join("log")).unwrap_or_default();
        log.lines().next_back().unwrap_or("it has said nothing").to_owned()
    }

    /// What it tells of itself.
    pub(crate) fn metrics(&self) -> Result<Page, String> {
        let text = page(&format!("{}/metrics", self.url))?;
        Page::parse(&text).map_err(|error| error.to_string())
    }

    /// For its use of the machine.
    pub(crate) fn process(&self) -> Result<Process, String> {
        Process::open(self.id).map_err(|error| error.to_string())
    }

    /// Puts keys into it.
    pub(crate) fn fill(&self, space: &KeySpace, what: &str) -> Result<(), String> {
        let endpoint = connection::endpoint(&self.url).map_err(|error| error.to_string())?;
        let mut silent = |_: &str| ();
        block_on(fill(space, &endpoint, 2, 1, &mut silent))?
            .map(drop)
            .map_err(|error| format!("{what}: {error}"))
    }

    /// Runs a load against it, and before that the same for so long, without counting.
    pub(crate) fn load(
        &self,
        workload: &Workload,
        seed: u64,
        warm_up: Duration,
    ) -> Result<Report, String> {
        let endpoint = connection::endpoint(&self.url).map_err(|error| error.to_string())?;
        let order = RunOptions { endpoint, seed, process: Some(self.process()?), warm_up };
        let report =
            block_on(run(workload, &order, &mut |_| ()))?.map_err(|error| error.to_string())?;
        for line in &report.classes {
            if let Some((text, count)) = line.metrics.errors().iter().next() {
                return Err(format!("{}: {count} requests failed: {text}", line.class.name));
            }
        }
        Ok(report)
    }
}

/// Two of them, which are not the same.
fn free_ports() -> Result<(u16, u16), String> {
    let none = |error: std::io::Error| format!("no port is free: {error}");
    let bind = || TcpListener::bind("127.0.0.1:0").map_err(none);
    let both = (bind()?, bind()?);
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    Ok((port(&both.0).map_err(none)?, port(&both.1).map_err(none)?))
}

fn block_on<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("this machine gives no runtime: {error}"))?;
    Ok(runtime.block_on(future))
}

/// Which machine this is, in words.
pub(crate) fn machine() -> String {
    let of = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let cpu = of("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(env::consts::ARCH, |(_, model)| model);
    let kernel = of("/proc/sys/kernel/osrelease");
    let cores = cores();
    format!("{model}, {cores} cores, {} {}", env::consts::OS, kernel.trim())
}

/// How many cores it has.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
