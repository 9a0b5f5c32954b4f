//! The real server, as a process with a temporary directory. Both are removed when the value is
//! dropped; a program that is ended by a signal leaves them.

use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, value_parser};
use clearlane_loadgen::connection;
use clearlane_loadgen::fill::fill;
use clearlane_loadgen::keys::KeySpace;
use clearlane_loadgen::process::Process;
use clearlane_loadgen::report::Report;
use clearlane_loadgen::run::{RunOptions, run};
use clearlane_loadgen::target::OpenTarget;
use clearlane_loadgen::workload::Workload;
use clearlane_net::free_ports;
use clearlane_simulator::era::Era;
use clearlane_simulator::timeline::{Timeline, TimelineError};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A member that is alone becomes leader within a second.
const START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    directory: PathBuf,
}

pub(crate) fn arguments() -> [Arg; 2] {
    let path = |name: &'static str| {
        Arg::new(name).long(name).value_name("PATH").value_parser(value_parser!(PathBuf))
    };
    [
        path("server").help("The program `clearlane`; the one beside this one, if left out"),
        path("dir").help("Where it keeps its data, and so which disk counts; if left out, where temporary files are"),
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
        if !path.is_file() {
            return Err(format!(
                "{}: there is no such program; `cargo build --release --bin clearlane` makes it, \
                 and --server says where it is",
                path.display()
            ));
        }
        Ok(Program { path, directory })
    }
}

fn beside_this_one() -> Result<PathBuf, String> {
    let here = env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
    Ok(here.with_file_name(format!("clearlane{}", env::consts::EXE_SUFFIX)))
}

/// A running server, which is killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    command: ServerCommand,
}

/// How it is started, also a second time.
#[derive(Debug)]
struct ServerCommand {
    program: Program,
    era: Era,
    directory: TempDir,
    url: String,
    peer_url: String,
}

impl ServerCommand {
    /// `more`: further flags.
    fn spawn(&self, more: &[&OsStr]) -> Result<Child, String> {
        let here = |error: io::Error| format!("{}: {error}", self.directory.path().display());
        let log = File::create(self.directory.path().join("log")).map_err(here)?;
        let (url, peer_url) = (self.url.as_str(), self.peer_url.as_str());
        Command::new(&self.program.path)
            .args(["--name", "measured", "--era", self.era.name()])
            .arg("--data-dir")
            .arg(self.directory.path().join("data"))
            .args(["--listen-client-urls", url, "--advertise-client-urls", url])
            .args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url])
            .args(["--initial-cluster", &format!("measured={peer_url}")])
            .args(["--quota-backend-bytes", "8589934592"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.path.display()))
    }

    fn timeline_file(&self) -> PathBuf {
        self.directory.path().join("timeline")
    }
}

impl Server {
    pub(crate) fn start(program: &Program, era: Era) -> Result<Server, String> {
        let here = |error: io::Error| format!("{}: {error}", program.directory.display());
        let directory = TempDir::new_in(&program.directory).map_err(here)?;
        let ports = free_ports(2).map_err(|error| format!("no port is free: {error}"))?;
        let (client, peer) = (ports[0], ports[1]);
        let url = |port| format!("http://127.0.0.1:{port}");
        let program = program.clone();
        let command =
            ServerCommand { program, era, directory, url: url(client), peer_url: url(peer) };
        let mut server = Server { child: command.spawn(&[])?, command };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Starts it anew, with its data and with a recording.
    pub(crate) fn restart_with_recording(&mut self) -> Result<(), String> {
        self.stop()?;
        let file = self.command.timeline_file();
        self.child = self.command.spawn(&["--timeline".as_ref(), file.as_os_str()])?;
        self.wait_until_ready()
    }

    /// The recording is written at its end.
    pub(crate) fn stop_and_read(&mut self) -> Result<Timeline, String> {
        self.stop()?;
        let file = self.command.timeline_file();
        let of = |error: &dyn Display| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(|error| of(&error))?;
        text.parse().map_err(|error: TimelineError| of(&error))
    }

    fn stop(&mut self) -> Result<(), String> {
        let of = |error: io::Error| format!("stopping the server: {error}");
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(|it| of(it.into()))?;
        self.child.wait().map(drop).map_err(of)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        while !self.is_ready().unwrap_or(false) {
            if let Ok(Some(status)) = self.child.try_wait() {
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

    /// Whether the first line of its HTTP response ends with status 200.
    fn is_ready(&self) -> io::Result<bool> {
        let address = self.command.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut start = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut start)?;
        Ok(start.ends_with(b" 200"))
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.command.directory.path().join("log")).unwrap_or_default();
        log.lines().next_back().unwrap_or("it has said nothing").to_owned()
    }

    pub(crate) fn process(&self) -> Result<Process, String> {
        Process::open(self.child.id()).map_err(|error| error.to_string())
    }

    pub(crate) fn fill(&self, space: &KeySpace, what: &str) -> Result<(), String> {
        let url = &self.command.url;
        let endpoint = connection::endpoint(url).map_err(|error| error.to_string())?;
        let mut silent = |_: &str| ();
        block_on(fill(space, &endpoint.into(), None, 2, 1, &mut silent))?
            .map(drop)
            .map_err(|error| format!("{what}: {error}"))
    }

    /// Runs a load after a warm-up with the same load.
    pub(crate) fn load(
        &self,
        workload: &Workload,
        seed: u64,
        warm_up: Duration,
    ) -> Result<Report, String> {
        let url = &self.command.url;
        let endpoint = connection::endpoint(url).map_err(|error| error.to_string())?;
        let process = Some(self.process()?);
        let work = async {
            let target = OpenTarget::open(endpoint.into(), None).await?;
            let options = RunOptions { process, warm_up, ..RunOptions::new(target, seed) };
            run(workload, &options, &mut |_| ()).await
        };
        let report = block_on(work)?.map_err(|error| error.to_string())?;
        for line in &report.classes {
            if let Some((text, count)) = line.metrics.errors().iter().next() {
                return Err(format!("{}: {count} requests failed: {text}", line.name));
            }
        }
        Ok(report)
    }
}

impl Drop for Server {
    /// Its directory is temporary, so it is killed.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("this machine gives no runtime: {error}"))?;
    Ok(runtime.block_on(future))
}

pub(crate) fn machine() -> String {
    let of = |path: &str| fs::read_to_string(Path::new(path)).unwrap_or_default();
    let cpu = of("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(env::consts::ARCH, |(_, model)| model);
    let kernel = of("/proc/sys/kernel/osrelease");
    let cores = cores();
    format!("{model}, {cores} cores, {} {}", env::consts::OS, kernel.trim())
}

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
