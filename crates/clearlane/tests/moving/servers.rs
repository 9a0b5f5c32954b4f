//! Members of etcd and of Clearlane that take turns on the same directories.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::transport::{Channel, Endpoint};

/// An election takes a second or two, and a busy machine more.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Etcd,
    Clearlane,
}

impl Program {
    pub(crate) fn other(self) -> Program {
        match self {
            Program::Etcd => Program::Clearlane,
            Program::Clearlane => Program::Etcd,
        }
    }
}

/// Directories and addresses of a cluster's members, and the processes while there are some.
pub(crate) struct Members {
    dir: PathBuf,
    client_urls: Vec<String>,
    peer_urls: Vec<String>,
    running: Vec<Child>,
    starts: usize,
}

impl Members {
    pub(crate) fn new(dir: &Path, count: usize) -> Members {
        // All at once, so that no address is given twice.
        let ports = (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports: Vec<TcpListener> = ports.collect();
        let urls = ports.iter().map(|port| format!("http://{}", port.local_addr().unwrap()));
        let urls: Vec<String> = urls.collect();
        let (client_urls, peer_urls) = (urls[..count].to_vec(), urls[count..].to_vec());
        Members { dir: dir.to_owned(), client_urls, peer_urls, running: Vec::new(), starts: 0 }
    }

    pub(crate) fn data_dir(&self, index: usize) -> PathBuf {
        self.dir.join(format!("m{index}"))
    }

    pub(crate) fn command(&self, program: Program, index: usize) -> Command {
        let cluster = self.peer_urls.iter().enumerate().map(|(at, url)| format!("m{at}={url}"));
        let (client, peer) = (&self.client_urls[index], &self.peer_urls[index]);
        let mut command = match program {
            Program::Etcd => Command::new(std::env::var_os("CLEARLANE_ETCD").unwrap()),
            Program::Clearlane => Command::new(env!("CARGO_BIN_EXE_clearlane")),
        };
        command
            .arg(format!("--name=m{index}"))
            .arg(format!("--data-dir={}", self.data_dir(index).display()))
            .args(["--listen-client-urls", client, "--advertise-client-urls", client])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &cluster.collect::<Vec<_>>().join(",")])
            // So that snapshots come, and segments are released.
            .args(["--snapshot-count=60", "--bcrypt-cost=4"])
            .stdin(Stdio::null());
        command
    }

    /// Starts all of them, and returns when each follows a leader.
    pub(crate) async fn start(&mut self, program: Program) -> Vec<Channel> {
        assert!(self.running.is_empty(), "they run already");
        self.starts += 1;
        for index in 0..self.client_urls.len() {
            let log = File::create(self.log(index)).unwrap();
            let child = self.command(program, index).stderr(log).spawn().unwrap();
            self.running.push(child);
        }
        let mut channels = Vec::new();
        for index in 0..self.client_urls.len() {
            channels.push(self.ready(index).await);
        }
        channels
    }

    async fn ready(&mut self, index: usize) -> Channel {
        let endpoint = Endpoint::from_shared(self.client_urls[index].clone()).unwrap();
        let begin = Instant::now();
        // It needs no token, while authentication is on.
        while !is_healthy(endpoint.uri().authority().unwrap().as_str()) {
            let ended = self.running[index].try_wait().unwrap();
            let log = || std::fs::read_to_string(self.log(index)).unwrap();
            assert!(ended.is_none() && begin.elapsed() < TIMEOUT, "{ended:?}: {}", log());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        endpoint.connect_lazy()
    }

    fn log(&self, index: usize) -> PathBuf {
        self.dir.join(format!("m{index}-{}.log", self.starts))
    }

    /// Returns when they have ended.
    pub(crate) fn stop(&mut self, signal: Signal) {
        for child in &self.running {
            kill(Pid::from_raw(child.id() as i32), signal).unwrap();
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

/// Whether it answers, and follows a leader; the test sets an alarm itself.
fn is_healthy(address: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(
            stream,
            "GET /health?exclude=NOSPACE HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}
