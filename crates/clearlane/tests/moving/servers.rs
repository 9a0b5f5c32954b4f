//! Members whose directories etcd and Clearlane use in turn.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clearlane_net::free_ports;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::transport::{Channel, Endpoint};

/// Time limit for a start. An election takes a second or two, and longer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// etcd 3.6.
    FormerEtcd,
    Etcd,
    Clearlane,
}

impl Program {
    pub(crate) fn other(self) -> Program {
        match self {
            Program::Etcd => Program::Clearlane,
            Program::FormerEtcd | Program::Clearlane => Program::Etcd,
        }
    }
}

fn etcd(variable: &str) -> Command {
    Command::new(std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names etcd")))
}

/// The directories and addresses of a cluster's members, and their processes while they run.
pub(crate) struct Members {
    dir: PathBuf,
    client_urls: Vec<String>,
    peer_urls: Vec<String>,
    running: Vec<Child>,
    starts: usize,
    pub(crate) more_flags: Vec<&'static str>,
}

impl Members {
    pub(crate) fn new(dir: &Path, count: usize) -> Members {
        let ports = free_ports(2 * count).unwrap().into_iter();
        let urls: Vec<String> = ports.map(|port| format!("http://127.0.0.1:{port}")).collect();
        let (client_urls, peer_urls) = (urls[..count].to_vec(), urls[count..].to_vec());
        let dir = dir.to_owned();
        let (running, more_flags) = (Vec::new(), Vec::new());
        Members { dir, client_urls, peer_urls, running, starts: 0, more_flags }
    }

    pub(crate) fn data_dir(&self, index: usize) -> PathBuf {
        self.dir.join(format!("m{index}"))
    }

    pub(crate) fn command(&self, program: Program, index: usize) -> Command {
        let (client, peer) = (&self.client_urls[index], &self.peer_urls[index]);
        let mut command = match program {
            Program::FormerEtcd => etcd("CLEARLANE_FORMER_ETCD"),
            Program::Etcd => etcd("CLEARLANE_ETCD"),
            Program::Clearlane => Command::new(env!("CARGO_BIN_EXE_clearlane")),
        };
        command
            .arg(format!("--name=m{index}"))
            .arg(format!("--data-dir={}", self.data_dir(index).display()))
            .args(["--listen-client-urls", client, "--advertise-client-urls", client])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &self.initial_cluster()])
            // The snapshot count is low, so that the members make snapshots and release segments of
            // the log.
            .args(["--snapshot-count=60", "--bcrypt-cost=4"])
            .args(&self.more_flags)
            .stdin(Stdio::null());
        command
    }

    /// Starts all members. Returns once each of them has a leader.
    pub(crate) async fn start(&mut self, program: Program) -> Vec<Channel> {
        assert!(self.running.is_empty(), "they run already");
        self.starts += 1;
        for index in 0..self.client_urls.len() {
            let child = self.spawn(program, index);
            self.running.push(child);
        }
        let mut channels = Vec::new();
        for index in 0..self.client_urls.len() {
            channels.push(self.ready(index).await);
        }
        channels
    }

    /// Kills a member. Returns once its process has ended.
    pub(crate) fn kill(&mut self, index: usize) {
        self.running[index].kill().unwrap();
        self.running[index].wait().unwrap();
    }

    /// Starts a killed member. Returns once it has a leader.
    pub(crate) async fn start_again(&mut self, program: Program, index: usize) -> Channel {
        self.starts += 1;
        self.running[index] = self.spawn(program, index);
        self.ready(index).await
    }

    fn spawn(&self, program: Program, index: usize) -> Child {
        let log = File::create(self.log(index)).unwrap();
        self.command(program, index).stderr(log).spawn().unwrap()
    }

    /// Creates the data directory of each member from a saved snapshot.
    pub(crate) fn restore(&self, file: &Path) {
        for (index, peer) in self.peer_urls.iter().enumerate() {
            let made = Command::new(env!("CARGO_BIN_EXE_clearlane"))
                .args(["snapshot", "restore"])
                .arg(file)
                .arg(format!("--name=m{index}"))
                .arg(format!("--data-dir={}", self.data_dir(index).display()))
                .args(["--initial-advertise-peer-urls", peer])
                .args(["--initial-cluster", &self.initial_cluster()])
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
    }

    fn initial_cluster(&self) -> String {
        let named = self.peer_urls.iter().enumerate().map(|(at, url)| format!("m{at}={url}"));
        named.collect::<Vec<_>>().join(",")
    }

    /// Sends a GET request without a token. Returns the response.
    pub(crate) fn get(&self, index: usize, path: &str) -> String {
        get(self.client_urls[index].trim_start_matches("http://"), path).unwrap()
    }

    pub(crate) async fn ready(&mut self, index: usize) -> Channel {
        let endpoint = Endpoint::from_shared(self.client_urls[index].clone()).unwrap();
        let begin = Instant::now();
        // This check needs no token, even if authentication is on.
        while !is_healthy(endpoint.uri().authority().unwrap().as_str()) {
            let ended = self.running[index].try_wait().unwrap();
            let in_time = ended.is_none() && begin.elapsed() < TIMEOUT;
            assert!(in_time, "{ended:?}: {}", self.said(index));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        endpoint.connect_lazy()
    }

    /// Returns the log output of the member's last start.
    pub(crate) fn said(&self, index: usize) -> String {
        std::fs::read_to_string(self.log(index)).unwrap()
    }

    fn log(&self, index: usize) -> PathBuf {
        self.dir.join(format!("m{index}-{}.log", self.starts))
    }

    /// Stops all members. Returns once their processes have ended.
    pub(crate) fn stop(&mut self, signal: Signal) {
        for child in &mut self.running {
            // The process id of an ended member may already belong to another process.
            if child.try_wait().unwrap().is_none() {
                kill(Pid::from_raw(child.id() as i32), signal).unwrap();
            }
        }
        for child in &mut self.running {
            child.wait().unwrap();
        }
        self.running.clear();
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.stop(Signal::SIGKILL);
    }
}

/// Returns whether the member responds and has a leader. The alarm NOSPACE is excluded, because the
/// test raises it.
fn is_healthy(address: &str) -> bool {
    let answer = get(address, "/health?exclude=NOSPACE");
    answer.is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}

fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
