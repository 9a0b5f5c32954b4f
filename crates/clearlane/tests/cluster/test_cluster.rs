//! A cluster whose members run in one process. Each has its own threads, directory and ports.
//!
//! The tests call a member as a client does. State that clients cannot see, such as the leader that
//! a member knows, is read from its threads.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane::data::{InitialCluster, InitialClusterState, MemberConfig};
use clearlane_backend::Era;
use clearlane_net::listener::Listener;
use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{Dialer, TlsAcceptor, TlsInfo};
use clearlane_peer::{Peers, PeersConfig};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_replica::Error;
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::RpcServer;
use clearlane_server::threads::ServerThreads;
use clearlane_wal as wal;
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub(crate) use crate::support::{block_on, put};

/// The members tick faster than by default. Their election timeout is the default, because with a
/// shorter one, members on a machine that is paused for half a second would be considered failed.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(50);
pub(crate) const ELECTION: Duration = Duration::from_secs(1);
/// Time limit of each wait in a test. A wait exceeds it only if the test hangs, or if the machine
/// is paused for very long.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct RunningMember {
    pub(crate) node: Arc<ServerThreads>,
    pub(crate) peers: Peers,
    server: Option<RpcServer>,
    pub(crate) client: SocketAddr,
}

pub(crate) struct TestCluster {
    dir: TempDir,
    listeners: BTreeMap<String, TcpListener>,
    peers: BTreeMap<String, SocketAddr>,
    pub(crate) running: BTreeMap<String, RunningMember>,
    /// A function that changes the configuration of each member at its start.
    pub(crate) tune: fn(&mut MemberConfig),
    /// The TLS settings of each member. A member without an entry uses no TLS.
    pub(crate) tls: BTreeMap<String, TlsInfo>,
    /// The TLS settings of a member's calls to other members, if they differ from `tls`.
    pub(crate) client_tls: BTreeMap<String, TlsInfo>,
}

impl TestCluster {
    /// Binds the ports of these members, and starts none of them.
    pub(crate) fn new(names: &[&str]) -> TestCluster {
        let mut cluster = TestCluster {
            dir: tempfile::tempdir().unwrap(),
            listeners: BTreeMap::new(),
            peers: BTreeMap::new(),
            running: BTreeMap::new(),
            tune: |_| {},
            tls: BTreeMap::new(),
            client_tls: BTreeMap::new(),
        };
        for name in names {
            cluster.bind(name);
        }
        cluster
    }

    pub(crate) fn started(names: &[&str]) -> TestCluster {
        let mut cluster = TestCluster::new(names);
        for name in names {
            cluster.start(name);
        }
        cluster
    }

    pub(crate) fn bind(&mut self, name: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.peers.insert(name.to_owned(), listener.local_addr().unwrap());
        self.listeners.insert(name.to_owned(), listener);
        self.url(name)
    }

    pub(crate) fn url(&self, name: &str) -> String {
        let scheme = if self.tls.contains_key(name) { "https" } else { "http" };
        format!("{scheme}://{}", self.peers[name])
    }

    pub(crate) fn data_dir(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the configuration of a member, for a cluster of all members that have ports.
    pub(crate) fn member_config(&self, name: &str) -> MemberConfig {
        let cluster: Vec<String> =
            self.peers.keys().map(|name| format!("{name}={}", self.url(name))).collect();
        let parts = Era::Clearlane;
        let mut start = MemberConfig::new(name, &self.data_dir(name), &self.url(name), parts);
        start.initial_cluster = cluster.join(",").parse::<InitialCluster>().unwrap();
        (start.heartbeat, start.election_timeout) = (HEARTBEAT, ELECTION);
        start.dialer = self.outgoing(name);
        start.wal = wal::Options { segment_bytes: 1 << 20, ..wal::Options::default() };
        (self.tune)(&mut start);
        start
    }

    pub(crate) fn start(&mut self, name: &str) {
        let start = self.member_config(name);
        self.run(start);
    }

    /// Starts a member that joins the cluster. The member must have been added to the cluster
    /// before.
    pub(crate) fn join(&mut self, name: &str) {
        let start = MemberConfig {
            initial_cluster_state: InitialClusterState::Existing,
            ..self.member_config(name)
        };
        self.run(start);
    }

    pub(crate) fn run(&mut self, start: MemberConfig) {
        let name = start.name.clone();
        let opened = start.open().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let server = RpcServer::start(&opened.threads, any, 1, Limits::default()).unwrap();
        let client = server.address();
        // A member that is started again binds its port again.
        let listener = self.listeners.remove(&name);
        let listener = listener.unwrap_or_else(|| TcpListener::bind(self.peers[&name]).unwrap());
        let settings = PeersConfig {
            name: name.clone(),
            client_urls: vec![format!("http://{client}")],
            peer_urls: start.peer_urls.clone(),
            listeners: vec![match self.incoming(&name) {
                Some(tls) => Listener::from(listener).with_tls(tls, false),
                None => listener.into(),
            }],
            dialer: start.dialer.clone(),
        };
        let peers = Peers::start(&opened.threads, opened.transport, settings).unwrap();
        let running = RunningMember { node: opened.threads, peers, server: Some(server), client };
        self.running.insert(name, running);
    }

    fn incoming(&self, name: &str) -> Option<Arc<TlsAcceptor>> {
        let side = self.tls.get(name)?;
        Some(Arc::new(TlsAcceptor::new("peer", side, &ProtocolConfig::default()).unwrap()))
    }

    fn outgoing(&self, name: &str) -> Dialer {
        let side = self.client_tls.get(name).or(self.tls.get(name));
        side.map_or_else(Dialer::default, |side| {
            Dialer::new(side, &ProtocolConfig::default()).unwrap()
        })
    }

    /// Stops a member without notifying the others.
    pub(crate) async fn kill(&mut self, name: &str) {
        let mut running = self.running.remove(name).unwrap();
        running.node.stop();
        let server = running.server.take().unwrap();
        let stopping = std::thread::spawn(move || server.stop());
        eventually("that its threads end", || stopping.is_finished().then_some(())).await;
        // The directory is free only once the member's threads have closed it.
        let node = Arc::downgrade(&running.node);
        drop(running);
        eventually("that it is gone", || (node.strong_count() == 0).then_some(())).await;
    }

    pub(crate) fn node(&self, name: &str) -> &ServerThreads {
        &self.running[name].node
    }

    pub(crate) fn id(&self, name: &str) -> u64 {
        self.node(name).metadata().node_id
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.running.keys().cloned().collect()
    }

    /// Waits until all of these members agree that one of them is the leader. Returns the name of
    /// the leader.
    pub(crate) async fn leader_of(&self, names: &[String]) -> String {
        let agreed = || {
            let leader = self.node(&names[0]).status().leader();
            let all = names.iter().all(|name| self.node(name).status().leader() == leader);
            names.iter().find(|name| all && self.id(name) == leader).cloned()
        };
        eventually("a leader", agreed).await
    }

    pub(crate) async fn leader(&self) -> String {
        self.leader_of(&self.names()).await
    }

    pub(crate) async fn followers(&self) -> Vec<String> {
        let leader = self.leader().await;
        self.names().into_iter().filter(|name| *name != leader).collect()
    }

    pub(crate) async fn channel(&self, name: &str) -> Channel {
        let address = format!("http://{}", self.running[name].client);
        Endpoint::from_shared(address).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn peer_channel(&self, name: &str) -> Channel {
        Endpoint::from_shared(self.url(name)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn is_told_of_its_removal(&self, name: &str) {
        let failure = self.node(name).failure();
        eventually("that it stops", || {
            let failure = failure.borrow();
            let error = failure.as_ref()?;
            assert!(matches!(**error, Error::Removed), "{error}");
            Some(())
        })
        .await;
    }

    pub(crate) async fn kv(&self, name: &str) -> KvClient<Channel> {
        KvClient::new(self.channel(name).await)
    }

    pub(crate) async fn cluster_client(&self, name: &str) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel(name).await)
    }

    /// Puts a key. Tries again after an error, because a proposal may be lost while leaders change.
    pub(crate) async fn put(&self, name: &str, key: &str, value: &str) {
        let mut kv = self.kv(name).await;
        eventually_async("a write", async || {
            let done = tokio::time::timeout(ELECTION, kv.put(put(key, value))).await;
            done.is_ok_and(|done| done.is_ok()).then_some(())
        })
        .await;
    }

    pub(crate) async fn get(&self, name: &str, key: &str) -> Result<Option<String>, Status> {
        let request = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
        let found = self.kv(name).await.range(request).await?.into_inner();
        Ok(found.kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()))
    }

    /// Transfers the leadership from one member to another. Requests the transfer repeatedly,
    /// because raft abandons a transfer after an election timeout.
    pub(crate) async fn hand_over(&self, from: &str, to: u64) {
        eventually("the new leader", || {
            self.node(from).transfer_leader(to);
            (self.node(from).status().leader() == to).then_some(())
        })
        .await;
    }

    /// Waits until all members have applied the same entries and have the same hash.
    pub(crate) async fn agree(&self) {
        let same = || {
            let mut applied = self.running.values().map(|running| running.node.status().applied());
            let first = applied.next()?;
            applied.all(|other| other == first).then_some(())?;
            let mut hashes = self.running.values().map(|running| hash(&running.node));
            let first = hashes.next()?;
            hashes.all(|other| other == first).then_some(())
        };
        eventually("that all agree", same).await;
    }
}

fn hash(node: &ServerThreads) -> (u32, i64) {
    let store = node.store();
    let mut job = store.hash(0).unwrap();
    loop {
        if let Some(hash) = job.step(1000).unwrap() {
            return (hash.hash, hash.hash_revision);
        }
    }
}

/// Calls `ask` until it returns a value. Fails after [`TIMEOUT`]; the error then contains `what`,
/// the description of the expected event.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    eventually_async(what, async || ask()).await
}

pub(crate) async fn eventually_async<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begin.elapsed() < TIMEOUT, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
