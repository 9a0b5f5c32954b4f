//! Tests of members that use sockets in the file system for clients and peers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{CertificateFiles, Dialer};
use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{MemberAddRequest, PutRequest, RangeRequest};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::authority::Authority;

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Members with the same working directory. URLs without a path name sockets in this directory.
struct SocketCluster {
    dir: TempDir,
    /// A function that returns the peer URL of the member with a given number.
    peer_url: fn(&Path, usize) -> String,
    client_url: fn(&Path, usize) -> String,
    count: usize,
    more: Vec<String>,
    outgoing: Dialer,
    running: Vec<Option<Child>>,
}

impl SocketCluster {
    fn new(
        count: usize,
        peer_url: fn(&Path, usize) -> String,
        client_url: fn(&Path, usize) -> String,
    ) -> SocketCluster {
        SocketCluster {
            dir: tempfile::tempdir().unwrap(),
            peer_url,
            client_url,
            count,
            more: Vec::new(),
            outgoing: Dialer::default(),
            running: Vec::new(),
        }
    }

    fn peer(&self, at: usize) -> String {
        (self.peer_url)(self.dir.path(), at)
    }

    fn client(&self, at: usize) -> String {
        (self.client_url)(self.dir.path(), at)
    }

    fn start(&mut self, at: usize, state: &str) {
        let cluster: Vec<_> =
            (0..self.count).map(|at| format!("m{at}={}", self.peer(at))).collect();
        let log = self.dir.path().join(format!("m{at}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let (client, peer) = (self.client(at), self.peer(at));
        let mut command = Command::new(env!("CARGO_BIN_EXE_clearlane"));
        command.env_clear().current_dir(&self.dir).stdout(Stdio::null()).stderr(log);
        command.args([format!("--name=m{at}"), format!("--data-dir=data{at}")]);
        command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", state]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(&self.more);
        if self.running.len() <= at {
            self.running.resize_with(at + 1, || None);
        }
        self.running[at] = Some(command.spawn().unwrap());
    }

    fn log(&self, at: usize) -> String {
        fs::read_to_string(self.dir.path().join(format!("m{at}.log"))).unwrap()
    }

    fn kill(&mut self, at: usize) {
        let mut process = self.running[at].take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn stop(&mut self, at: usize) {
        let mut process = self.running[at].take().unwrap();
        kill(Pid::from_raw(process.id() as i32), Signal::SIGTERM).unwrap();
        process.wait().unwrap();
    }

    async fn channel(&self, at: usize) -> Result<Channel, String> {
        let url = self.client(at);
        // If a URL names a socket without a path, the socket is in the members' working directory.
        // This client has another working directory, so it needs the full path.
        let url = match url.strip_prefix("unix://localhost") {
            Some(rest) => format!("unix://{}/localhost{rest}", self.dir.path().display()),
            None => url,
        };
        self.outgoing.connect(&url).await
    }

    /// Puts a value through member `at`. Tries again until it succeeds.
    async fn put(&self, at: usize, value: &str) {
        let begin = Instant::now();
        loop {
            let put = PutRequest {
                key: "k".into(),
                value: value.to_owned().into(),
                ..Default::default()
            };
            let why = match self.channel(at).await {
                Ok(channel) => match KvClient::new(channel).put(put).await {
                    Ok(_) => return,
                    Err(status) => status.to_string(),
                },
                Err(why) => why,
            };
            assert!(begin.elapsed() < TIMEOUT, "{why}\n{}", self.log(at));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until this member has the value.
    async fn has(&self, at: usize, value: &str) {
        let begin = Instant::now();
        loop {
            let get = RangeRequest { key: "k".into(), serializable: true, ..Default::default() };
            if let Ok(channel) = self.channel(at).await
                && let Ok(got) = KvClient::new(channel).range(get).await
                && got.get_ref().kvs.first().is_some_and(|kv| kv.value == value.as_bytes())
            {
                return;
            }
            assert!(begin.elapsed() < TIMEOUT, "{}", self.log(at));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().path());
        let is_socket = |path: &PathBuf| {
            use std::os::unix::fs::FileTypeExt;
            fs::symlink_metadata(path).unwrap().file_type().is_socket()
        };
        files.filter(is_socket).collect()
    }
}

impl Drop for SocketCluster {
    fn drop(&mut self) {
        for at in 0..self.running.len() {
            if self.running[at].is_some() {
                self.kill(at);
            }
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Checks that the members agree. Kills one of them, which leaves its socket files behind, and
/// starts it again. At the end all members stop and must leave no sockets.
fn check_that_members_serve(cluster: &mut SocketCluster) {
    for at in 0..3 {
        cluster.start(at, "new");
    }
    block_on(async {
        cluster.put(0, "1").await;
        cluster.has(1, "1").await;
        cluster.has(2, "1").await;
    });
    cluster.kill(2);
    assert_eq!(cluster.sockets().len(), 6);
    block_on(cluster.put(1, "2"));
    cluster.start(2, "new");
    block_on(cluster.has(2, "2"));
    for at in 0..3 {
        cluster.stop(at);
    }
    assert_eq!(cluster.sockets(), Vec::<PathBuf>::new(), "{}", cluster.log(0));
}

#[test]
fn members_meet_at_paths() {
    let mut cluster = SocketCluster::new(
        3,
        |dir, at| format!("unix://{}/peer{at}", dir.display()),
        |dir, at| format!("unix://{}/client{at}", dir.display()),
    );
    check_that_members_serve(&mut cluster);
}

/// Members must also reach each other at URLs in the form that etcd's own tests use.
#[test]
fn members_meet_at_names() {
    let mut cluster = SocketCluster::new(
        3,
        |_, at| format!("unix://localhost:{}", 20_001 + 10 * at),
        |_, at| format!("unix://localhost:{}", 20_000 + 10 * at),
    );
    check_that_members_serve(&mut cluster);
}

#[test]
fn members_meet_at_sockets_with_tls() {
    let mut cluster = SocketCluster::new(
        3,
        |dir, at| format!("unixs://{}/peer{at}", dir.display()),
        |dir, at| format!("unixs://{}/client{at}", dir.display()),
    );
    let ca = Authority::new(cluster.dir.path(), "ca");
    let pair = ca.pair("member", &["localhost"]);
    cluster.outgoing = Dialer::new(&ca.caller(pair.clone()), &ProtocolConfig::default()).unwrap();
    cluster.more = secured(&ca, &pair);
    check_that_members_serve(&mut cluster);
}

fn secured(
    ca: &Authority,
    CertificateFiles { certificate, key }: &CertificateFiles,
) -> Vec<String> {
    let flags = ["", "peer-"].map(|side| {
        let flag = |name: &str, path: &Path| format!("--{side}{name}={}", path.display());
        [
            flag("cert-file", &certificate.path),
            flag("key-file", &key.path),
            flag("trusted-ca-file", ca.certificate()),
            format!("--{side}client-cert-auth"),
        ]
    });
    flags.concat()
}

#[test]
fn a_member_joins_over_sockets() {
    let mut cluster = SocketCluster::new(
        1,
        |dir, at| format!("unix://{}/peer{at}", dir.display()),
        |dir, at| format!("unix://{}/client{at}", dir.display()),
    );
    cluster.start(0, "new");
    block_on(async {
        cluster.put(0, "1").await;
        let add = MemberAddRequest { peer_urls: vec![cluster.peer(1)], is_learner: false };
        ClusterClient::new(cluster.channel(0).await.unwrap()).member_add(add).await.unwrap();
    });
    cluster.count = 2;
    cluster.start(1, "existing");
    block_on(async {
        cluster.has(1, "1").await;
        cluster.put(1, "2").await;
        cluster.has(0, "2").await;
    });
}

/// A certificate for another host is not trusted, even over a socket.
#[test]
fn a_wrong_certificate_is_noticed() {
    let mut cluster = SocketCluster::new(
        2,
        |dir, at| format!("unixs://{}/peer{at}", dir.display()),
        |dir, at| format!("unix://{}/client{at}", dir.display()),
    );
    let ca = Authority::new(cluster.dir.path(), "ca");
    cluster.more = secured(&ca, &ca.pair("member", &["elsewhere.invalid"])).split_off(4);
    cluster.start(0, "new");
    cluster.start(1, "new");
    let begin = Instant::now();
    // The members cannot reach each other, so they wait and do not start.
    let waits = "this member has no data, and cannot know yet";
    while !cluster.log(0).contains(waits) || !cluster.log(0).contains("elsewhere.invalid") {
        assert!(begin.elapsed() < TIMEOUT, "{}", cluster.log(0));
        std::thread::sleep(POLL_INTERVAL);
    }
}
