//! Runs one or several processes of the program under test.

use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, StatusResponse};
use tempfile::TempDir;

use crate::{PATIENCE, ports, until};

/// If a test fails, this number of lines at the end of each log is shown.
const LOG_LINES: usize = 30;

/// The members of one cluster, and the directory of their data.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
    place: TempDir,
    flags: Vec<String>,
}

#[derive(Debug)]
struct Member {
    name: String,
    client_url: String,
    peer_url: String,
    /// The values of `--initial-cluster` and `--initial-cluster-state`.
    initial: [String; 2],
    process: Option<Child>,
}

impl Cluster {
    /// Starts a cluster with one member.
    pub async fn one() -> Self {
        Self::of(1, &[]).await
    }

    /// Starts a cluster with three members.
    pub async fn three() -> Self {
        Self::of(3, &[]).await
    }

    /// Starts a cluster with `count` members and these additional flags. Returns when all members
    /// answer.
    pub async fn of(count: usize, flags: &[&str]) -> Self {
        let place = tempfile::tempdir().expect("a directory for the data");
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut cluster = Self { members: Vec::new(), place, flags };
        cluster.members.extend((0..count).map(Member::new));
        let all = cluster.initial_cluster();
        for at in 0..count {
            cluster.members[at].initial = [all.clone(), "new".to_owned()];
            cluster.spawn(at);
        }
        for at in 0..count {
            cluster.answers(at).await;
        }
        cluster
    }

    /// Adds a member to the list without starting it. The other members do not know about this
    /// member yet.
    pub fn prepare(&mut self) -> usize {
        let at = self.members.len();
        self.members.push(Member::new(at));
        at
    }

    /// Starts a prepared member that has already been added to the cluster. Its `--initial-cluster`
    /// has all members that were prepared so far.
    pub fn join(&mut self, at: usize) {
        self.members[at].initial = [self.initial_cluster(), "existing".to_owned()];
        self.spawn(at);
    }

    /// Kills a member.
    pub fn stop(&mut self, at: usize) {
        self.members[at].kill();
    }

    /// Starts a stopped member with its old data, and waits until it answers.
    pub async fn start(&mut self, at: usize) {
        self.spawn(at);
        self.answers(at).await;
    }

    /// Waits until the member answers a request that needs a leader.
    pub async fn answers(&mut self, at: usize) {
        let what = format!("m{at} answers");
        while TcpStream::connect(self.members[at].address()).is_err() {
            assert!(self.members[at].runs(), "m{at} has ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let client = self.client_of(at).await;
        until(&what, || {
            let mut client = client.clone();
            async move { client.get("ready", None).await.ok() }
        })
        .await;
    }

    /// Returns a client with the addresses of all members.
    pub async fn client(&self) -> Client {
        connect(&self.client_urls(), patient()).await
    }

    /// Returns a client with the address of one member.
    pub async fn client_of(&self, at: usize) -> Client {
        connect(&[self.client_url(at)], patient()).await
    }

    /// Returns a client with the addresses of all members and these options.
    pub async fn client_with(&self, options: ConnectOptions) -> Client {
        connect(&self.client_urls(), options).await
    }

    /// Returns the address of a member for clients.
    pub fn client_url(&self, at: usize) -> String {
        self.members[at].client_url.clone()
    }

    /// Returns the addresses of all members for clients.
    pub fn client_urls(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client_url.clone()).collect()
    }

    /// Returns the address of a member for other members.
    pub fn peer_url(&self, at: usize) -> String {
        self.members[at].peer_url.clone()
    }

    /// Returns the status that the member reports.
    pub async fn status(&self, at: usize) -> StatusResponse {
        self.client_of(at).await.status().await.expect("a member knows its status")
    }

    /// Returns the ID of a member.
    pub async fn id(&self, at: usize) -> u64 {
        self.status(at).await.header().expect("a header").member_id()
    }

    /// Returns the leader, as soon as all running members agree on it.
    pub async fn leader(&self) -> usize {
        let running = (0..self.members.len()).filter(|at| self.members[*at].process.is_some());
        let running: Vec<_> = running.collect();
        until("the members agree on a leader", || async {
            let mut leader = None;
            let mut told = Vec::new();
            for at in &running {
                let status = self.client_of(*at).await.status().await.ok()?;
                told.push(status.leader());
                if status.header()?.member_id() == status.leader() {
                    leader = Some(*at);
                }
            }
            told.dedup();
            leader.filter(|_| told.len() == 1)
        })
        .await
    }

    fn initial_cluster(&self) -> String {
        let entries =
            self.members.iter().map(|member| format!("{}={}", member.name, member.peer_url));
        entries.collect::<Vec<_>>().join(",")
    }

    fn log(&self, at: usize) -> PathBuf {
        self.place.path().join(format!("m{at}.log"))
    }

    fn spawn(&mut self, at: usize) {
        let log = File::options().create(true).append(true).open(self.log(at));
        let log = log.expect("a file for the log");
        let program = std::env::var_os("CLEARLANE");
        let program = program.expect("CLEARLANE names the program to test");
        let member = &self.members[at];
        let mut command = Command::new(program);
        command.args(["--name", &member.name]);
        command.arg("--data-dir").arg(self.place.path().join(&member.name));
        for flag in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([flag, &member.client_url]);
        }
        for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([flag, &member.peer_url]);
        }
        let [cluster, state] = &member.initial;
        command.args(["--initial-cluster", cluster, "--initial-cluster-state", state]);
        command.args(&self.flags);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        self.members[at].process = Some(command.spawn().expect("the program starts"));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            self.members[at].kill();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.log(at)).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let end = &lines[lines.len().saturating_sub(LOG_LINES)..];
                eprintln!("the end of what m{at} said:\n{}", end.join("\n"));
            }
        }
    }
}

impl Member {
    fn new(at: usize) -> Self {
        let url = || format!("http://127.0.0.1:{}", ports::free());
        let initial = [String::new(), String::new()];
        Self { name: format!("m{at}"), client_url: url(), peer_url: url(), initial, process: None }
    }

    fn address(&self) -> &str {
        self.client_url.trim_start_matches("http://")
    }

    fn runs(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a process of ours can be killed");
            process.wait().expect("a process of ours can be waited for");
        }
    }
}

/// Returns options with only a timeout, so that no call hangs forever.
fn patient() -> ConnectOptions {
    ConnectOptions::new().with_timeout(PATIENCE)
}

async fn connect(urls: &[String], options: ConnectOptions) -> Client {
    Client::connect(urls, Some(options)).await.expect("connecting does not wait for a server")
}
