//! The real server, as a process with a temporary directory. The process is killed and the
//! directory is removed when the [`Server`] is dropped. If a signal ends this program, the process
//! and the directory remain.

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

use clap::{Arg, ArgMatches};
use clearlane_loadgen::connection::{self, Endpoints};
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

use crate::text::path_flag;

/// Longest wait until a started server is ready. A normal start takes much less time, because a
/// sole member becomes the leader within a second.
const START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    directory: PathBuf,
}

pub(crate) fn arguments() -> [Arg; 2] {
    [
        path_flag("server", "PATH")
            .help("The program `clearlane` (default: in the directory of this program)"),
        path_flag("dir", "PATH").help(
            "Directory for the server's data, on the disk to measure (default: the directory for \
             temporary files)",
        ),
    ]
}

impl Program {
    pub(crate) fn of(matches: &ArgMatches) -> Result<Program, String> {
        if !Path::new("/proc/self/stat").exists() {
            return Err(
                "this system has no /proc, so the server's usage is unknown: use Linux".to_owned()
            );
        }
        let directory = matches.get_one("dir").cloned().unwrap_or_else(env::temp_dir);
        let path = match matches.get_one::<PathBuf>("server") {
            Some(path) => path.clone(),
            None => beside_this_one()?,
        };
        if !path.is_file() {
            return Err(format!(
                "{}: the program does not exist; build it with `cargo build --release --bin \
                 clearlane`, or give its path with --server",
                path.display()
            ));
        }
        Ok(Program { path, directory })
    }
}

fn beside_this_one() -> Result<PathBuf, String> {
    let here = env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    Ok(here.with_file_name(format!("clearlane{}", env::consts::EXE_SUFFIX)))
}

/// A running server. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    directory: TempDir,
    program: Program,
    era: Era,
    url: String,
    peer_url: String,
}

impl Server {
    /// Starts a server and puts the keys of a workload into it.
    pub(crate) fn start(program: &Program, era: Era, keys: &KeySpace) -> Result<Server, String> {
        let here = |error: io::Error| format!("{}: {error}", program.directory.display());
        let directory = TempDir::new_in(&program.directory).map_err(here)?;
        let ports = free_ports(2).map_err(|error| format!("cannot find a free port: {error}"))?;
        let [url, peer_url] = [0, 1].map(|at| format!("http://127.0.0.1:{}", ports[at]));
        let child = spawn(program, era, directory.path(), [&url, &peer_url], &[])?;
        let program = program.clone();
        let mut server = Server { child, directory, program, era, url, peer_url };
        server.wait_until_ready()?;
        server.fill(keys).map_err(|error| format!("cannot fill the server with keys: {error}"))?;
        Ok(server)
    }

    fn timeline_file(&self) -> PathBuf {
        self.directory.path().join("timeline")
    }

    /// Restarts the server with its data. The new process records a timeline.
    pub(crate) fn restart_with_recording(&mut self) -> Result<(), String> {
        self.stop()?;
        let file = self.timeline_file();
        let more = [OsStr::new("--timeline"), file.as_os_str()];
        let urls = [self.url.as_str(), &self.peer_url];
        self.child = spawn(&self.program, self.era, self.directory.path(), urls, &more)?;
        self.wait_until_ready()
    }

    /// Stops the server and reads the recording that the server writes when it ends.
    pub(crate) fn stop_and_read(&mut self) -> Result<Timeline, String> {
        self.stop()?;
        let file = self.timeline_file();
        let of = |error: &dyn Display| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(|error| of(&error))?;
        text.parse().map_err(|error: TimelineError| of(&error))
    }

    fn stop(&mut self) -> Result<(), String> {
        let of = |error: io::Error| format!("cannot stop the server: {error}");
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

    /// Requests `/readyz`. Returns whether the first line of the HTTP response has status 200.
    fn is_ready(&self) -> io::Result<bool> {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut start = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut start)?;
        Ok(start.ends_with(b" 200"))
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        log.lines().next_back().unwrap_or("its log is empty").to_owned()
    }

    pub(crate) fn process(&self) -> Result<Process, String> {
        Process::open(self.child.id()).map_err(|error| error.to_string())
    }

    fn fill(&self, keys: &KeySpace) -> Result<(), String> {
        let filled = block_on(fill(keys, &self.endpoints()?, None, 2, 1, &mut |_: &str| ()))?;
        filled.map(drop).map_err(|error| error.to_string())
    }

    fn endpoints(&self) -> Result<Endpoints, String> {
        let endpoint = connection::endpoint(&self.url).map_err(|error| error.to_string())?;
        Ok(endpoint.into())
    }

    /// Runs a load after a warm-up with the same load. Fails if a request fails.
    pub(crate) fn load(
        &self,
        workload: &Workload,
        seed: u64,
        warm_up: Duration,
    ) -> Result<Report, String> {
        let (endpoints, process) = (self.endpoints()?, Some(self.process()?));
        let work = async {
            let target = OpenTarget::open(endpoints, None).await?;
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

/// Starts the program. `more` contains additional flags.
fn spawn(
    program: &Program,
    era: Era,
    directory: &Path,
    [url, peer_url]: [&str; 2],
    more: &[&OsStr],
) -> Result<Child, String> {
    let here = |error: io::Error| format!("{}: {error}", directory.display());
    let log = File::create(directory.join("log")).map_err(here)?;
    Command::new(&program.path)
        .args(["--name", "measured", "--era", era.name()])
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--listen-client-urls", url, "--advertise-client-urls", url])
        .args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url])
        .args(["--initial-cluster", &format!("measured={peer_url}")])
        .args(["--quota-backend-bytes", "8589934592"])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|error| format!("{}: {error}", program.path.display()))
}

impl Drop for Server {
    /// Kills the server. Its directory is temporary, so the server need not save anything.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the async runtime: {error}"))?;
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
