//! One member in a separate process. Its ports stay the same when it is restarted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clearlane_net::free_ports;
use clearlane_net::tls::CertificateFiles;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{HashKvRequest, StatusRequest, StatusResponse};
use tonic::transport::{Channel, Endpoint};

use crate::authority::Authority;

/// Time limit of each wait in a test. A wait exceeds it only if the test hangs, or if the machine
/// is paused for very long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct Program {
    pub(crate) name: String,
    dir: PathBuf,
    /// The directory of the data. It is next to the log output, unless a test sets another
    /// directory.
    pub(crate) disk: PathBuf,
    pub(crate) client: u16,
    /// The port that other members use to connect to this member.
    pub(crate) peer: u16,
    /// The port where this member listens for other members. It equals `peer`, unless there is a
    /// proxy.
    pub(crate) listen_peer: u16,
    cluster: String,
    /// `http`, or `https` with the certificates that `flags` choose.
    peer_scheme: &'static str,
    pub(crate) flags: Vec<String>,
    /// Environment variables of the process.
    pub(crate) variables: Vec<(String, String)>,
    process: Option<Child>,
}

pub(crate) fn ports(count: usize) -> Vec<u16> {
    free_ports(count).unwrap()
}

/// Returns members that are not started.
pub(crate) fn members(dir: &Path, count: usize) -> Vec<Program> {
    members_with(dir, count, "http")
}

/// Returns members that are not started. They use TLS for connections to each other.
pub(crate) fn members_with_tls(dir: &Path, count: usize) -> Vec<Program> {
    let mut members = members_with(dir, count, "https");
    members.iter_mut().for_each(|member| member.flags.push("--peer-auto-tls".to_owned()));
    members
}

/// Returns members that are not started. Each member except the last rejects calls from the last
/// member, because the client certificate of the last member is for another address. The other
/// members can call the last member.
pub(crate) fn members_that_refuse_the_last(dir: &Path, count: usize) -> Vec<Program> {
    let ca = Authority::new(dir, "ca");
    let mut members = members_with(dir, count, "https");
    let mut flags = |member: usize, pair: CertificateFiles, prefix: &str| {
        for (flag, file) in [("cert-file", pair.certificate), ("key-file", pair.key)] {
            members[member].flags.push(format!("--peer-{prefix}{flag}={}", file.path.display()));
        }
    };
    for member in 0..count {
        flags(member, ca.pair(&format!("m{member}"), &["127.0.0.1"]), "");
    }
    flags(count - 1, ca.pair("away", &["10.9.8.7"]), "client-");
    let trusted = format!("--peer-trusted-ca-file={}", ca.certificate().display());
    for member in &mut members {
        member.flags.extend([trusted.clone(), "--peer-client-cert-auth".to_owned()]);
    }
    members
}

/// Returns a member that is not started. It joins a cluster that has the other members.
pub(crate) fn joining_member(dir: &Path, name: &str, others: &[Program]) -> Program {
    let mut member = members_with(dir, 1, "http").remove(0);
    member.name = name.to_owned();
    let own = format!("{name}={}", member.peer_url());
    let known = others.iter().map(|other| format!("{}={}", other.name, other.peer_url()));
    member.cluster = known.chain([own]).collect::<Vec<_>>().join(",");
    member
}

fn members_with(dir: &Path, count: usize, peer_scheme: &'static str) -> Vec<Program> {
    let ports = ports(2 * count);
    let (client, peer) = ports.split_at(count);
    let url = |at: usize| format!("m{at}={peer_scheme}://127.0.0.1:{}", peer[at]);
    let cluster = (0..count).map(url).collect::<Vec<_>>().join(",");
    let member = |at: usize| Program {
        name: format!("m{at}"),
        dir: dir.to_owned(),
        disk: dir.to_owned(),
        client: client[at],
        peer: peer[at],
        listen_peer: peer[at],
        cluster: cluster.clone(),
        peer_scheme,
        flags: Vec::new(),
        variables: Vec::new(),
        process: None,
    };
    (0..count).map(member).collect()
}

impl Program {
    pub(crate) fn start(&mut self) {
        let program = std::env::var("CLEARLANE");
        let program = program.unwrap_or_else(|_| env!("CARGO_BIN_EXE_clearlane").to_owned());
        let (client, peer) = (self.url(), self.peer_url());
        let listen_peer = format!("{}://127.0.0.1:{}", self.peer_scheme, self.listen_peer);
        let log = self.dir.join(format!("{}.log", self.name));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(program);
        command.env_clear().stdout(Stdio::null()).stderr(log);
        // This variable makes the allocator return free memory to the system almost immediately,
        // instead of keeping it for a while. So nearly all resident memory is in use.
        command.env("MIMALLOC_PURGE_DELAY", "10");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(["--name", &self.name, "--initial-cluster", &self.cluster]);
        command.arg("--data-dir").arg(self.disk.join(&self.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &listen_peer, "--initial-advertise-peer-urls", &peer]);
        command.args(&self.flags);
        self.process = Some(command.spawn().unwrap());
    }

    pub(crate) fn signal(&self, signal: &str) {
        let process = self.process.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &process]).status().unwrap();
        assert!(sent.success(), "kill -s {signal}: {sent}");
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.peer_scheme, self.peer)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.disk.join(&self.name)
    }

    /// Kills the member and removes its data.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.data_dir()).unwrap();
    }

    /// Waits until the process ends by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            let process = self.process.as_mut().unwrap();
            if let Some(status) = process.try_wait().unwrap() {
                self.process = None;
                return status;
            }
            assert!(begin.elapsed() < TIMEOUT, "{} does not end: {}", self.name, self.log());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the log contains `words`.
    pub(crate) async fn logs(&self, words: &str) {
        let begin = Instant::now();
        while !self.log().contains(words) {
            assert!(begin.elapsed() < TIMEOUT, "{} logs no {words}: {}", self.name, self.log());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Removes the member's data, and starts the member. The caller must have added the member to
    /// the cluster again.
    pub(crate) fn rejoin(&mut self) {
        self.wipe();
        self.start_existing();
    }

    pub(crate) fn start_existing(&mut self) {
        self.flags.extend(["--initial-cluster-state".to_owned(), "existing".to_owned()]);
        self.start();
        self.flags.truncate(self.flags.len() - 2);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Returns false if the process was killed or has ended by itself.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_none())
    }

    /// Returns the resident memory in bytes. `None` if Linux does not report it.
    pub(crate) fn resident(&self) -> Option<u64> {
        let pid = self.process.as_ref()?.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join(format!("{}.log", self.name))).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// Waits until the member serves clients. Returns its status.
    pub(crate) async fn ready(&mut self) -> StatusResponse {
        let begin = Instant::now();
        loop {
            assert!(self.is_running(), "{} has ended: {}", self.name, self.log());
            if let Ok(channel) = connect(self.client).await {
                let status = MaintenanceClient::new(channel).status(StatusRequest::default()).await;
                if let Ok(status) = status {
                    return status.into_inner();
                }
            }
            assert!(begin.elapsed() < TIMEOUT, "{} is not ready: {}", self.name, self.log());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the hash of all revisions up to `revision` that are not compacted, and the compact
    /// revision.
    pub(crate) async fn hash(&self, revision: i64) -> (u32, i64) {
        // The hash reads the whole store, so it needs a long timeout.
        let endpoint = Endpoint::from_shared(self.url()).unwrap().timeout(TIMEOUT);
        let mut client = MaintenanceClient::new(endpoint.connect().await.unwrap());
        let hash = client.hash_kv(HashKvRequest { revision }).await.unwrap().into_inner();
        (hash.hash, hash.compact_revision)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until a member is the leader according to its own status. Returns the member's index.
pub(crate) async fn leader_of(members: &mut [Program]) -> usize {
    let begin = Instant::now();
    loop {
        for (at, member) in members.iter_mut().enumerate() {
            let status = member.ready().await;
            if status.leader == status.header.unwrap().member_id {
                return at;
            }
        }
        assert!(begin.elapsed() < TIMEOUT, "no member leads: {}", members[0].log());
        short_pause().await;
    }
}

/// Connects to a member, with a short timeout for requests. So if a request is lost because the
/// leader was killed, its client does not wait for long.
pub(crate) async fn connect(port: u16) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let timeout = Duration::from_millis(500);
    endpoint.connect_timeout(timeout).timeout(timeout).connect().await
}

pub(crate) async fn kv(port: u16) -> Result<KvClient<Channel>, tonic::transport::Error> {
    Ok(KvClient::new(connect(port).await?).max_decoding_message_size(usize::MAX))
}

/// Connects with a long timeout.
pub(crate) async fn patient_channel(port: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    endpoint.timeout(TIMEOUT).connect().await.unwrap()
}

/// Connects a client for keys, with a long time-out and without a limit on the size of responses.
pub(crate) async fn kv_with_timeout(port: u16) -> KvClient<Channel> {
    KvClient::new(patient_channel(port).await).max_decoding_message_size(usize::MAX)
}

pub(crate) async fn short_pause() {
    tokio::time::sleep(POLL_INTERVAL).await;
}
