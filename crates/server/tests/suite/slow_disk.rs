//! Tests which operations wait for the disk of the log, and which do not, while a sync is blocked.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use clearlane_backend::{Config, Era};
use clearlane_engine::{EngineKind, Options};
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};
use clearlane_replica::apply::Limits;
use clearlane_replica::membership::{self, Member};
use clearlane_replica::{ReplicaConfig, StorageConfig, bootstrap};
use clearlane_server::Server;
use clearlane_server::observe::request_trace::RequestTrace;
use clearlane_server::snapshot::DiskStoreDir;
use clearlane_server::threads::{NoNetwork, ServerThreads};
use clearlane_wal as wal;
use clearlane_wal::Metadata;
use clearlane_wal::files::{File, FileSystem, OsFileSystem};
use tokio::task::yield_now;

/// A gate for syncs. While the gate is closed, each started sync waits.
#[derive(Debug, Default)]
struct SyncGate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    waiting: usize,
    /// Number of syncs that have started since the gate was closed.
    syncs: usize,
}

impl SyncGate {
    fn close(&self) {
        *self.state.lock().unwrap() = GateState { is_closed: true, waiting: 0, syncs: 0 };
    }

    fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.syncs += 1;
        state.waiting += 1;
        let mut state = self.opened.wait_while(state, |state| state.is_closed).unwrap();
        state.waiting -= 1;
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }

    fn syncs(&self) -> usize {
        self.state.lock().unwrap().syncs
    }
}

/// Opens the gate when dropped, even if a test failed: otherwise the member could not stop.
struct OpenOnDrop<'g>(&'g SyncGate);

impl Drop for OpenOnDrop<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The system's files, with a gate for syncs.
#[derive(Clone, Debug, Default)]
struct GatedFiles(Arc<SyncGate>);

#[derive(Debug)]
struct GatedFile(Box<dyn File>, Arc<SyncGate>);

impl GatedFiles {
    fn wrap(&self, file: io::Result<Box<dyn File>>) -> io::Result<Box<dyn File>> {
        Ok(Box::new(GatedFile(file?, Arc::clone(&self.0))))
    }
}

impl FileSystem for GatedFiles {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsFileSystem.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.create_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.wrap(OsFileSystem.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.wrap(OsFileSystem.open(path))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        OsFileSystem.open_to_read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsFileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        OsFileSystem.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.sync_dir(dir)
    }

    fn free_space(&self, dir: &Path) -> u64 {
        OsFileSystem.free_space(dir)
    }
}

impl File for GatedFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.0.set_length(length)
    }

    fn allocate(&mut self, length: u64) -> io::Result<()> {
        self.0.allocate(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.1.pass();
        self.0.sync()
    }

    fn try_lock(&mut self) -> io::Result<bool> {
        self.0.try_lock()
    }
}

/// Starts a cluster of one member. The member commits its store only when it stops.
fn start(dir: &Path, files: &GatedFiles) -> Arc<ServerThreads> {
    let (kind, options) = (EngineKind::Memory, Options::default());
    let store_dir = DiskStoreDir::new(Arc::new(OsFileSystem), &dir.join("snap"), kind, options);
    let storage = StorageConfig {
        files: Arc::new(files.clone()),
        wal_dir: dir.join("wal"),
        wal: wal::Options::default(),
        store_dir: Arc::new(store_dir.unwrap()),
        era: Era::Clearlane,
        backend: Config { batch_interval: Duration::from_secs(3600), ..Config::default() },
        learners_max: membership::LEARNERS_MAX,
    };
    let peer_urls = vec!["http://localhost:1".to_owned()];
    let first = [Member { id: 1, peer_urls, ..Member::default() }];
    bootstrap(&storage, Metadata { node_id: 1, cluster_id: 7 }, &first).unwrap();
    let mut config = ReplicaConfig::new(7, 7);
    config.read_index.tick_interval = Duration::from_millis(1);
    Arc::new(ServerThreads::start(storage, config, Box::new(NoNetwork)).unwrap())
}

async fn put(server: Server, value: String) {
    let (key, value) = ("k".into(), value.into());
    server.propose(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
}

async fn read(server: &Server, serializable: bool) -> usize {
    let request = RangeRequest { key: "k".into(), serializable, ..RangeRequest::default() };
    server.range(request, &mut RequestTrace::start()).await.unwrap().record_count()
}

/// While a sync is blocked, reads do not wait. The first put waits for this sync. The other puts
/// wait for this sync and for the next one, which they share.
async fn puts_and_reads(server: &Server, gate: &SyncGate) {
    const LATER: usize = 50;
    put(server.clone(), "before".to_owned()).await;
    while !server.threads().is_sole_voter_caught_up() {
        yield_now().await;
    }
    gate.close();
    let _open = OpenOnDrop(gate);
    let first = tokio::spawn(put(server.clone(), "first".to_owned()));
    while gate.waiting() == 0 {
        yield_now().await;
    }
    let later = (0..LATER).map(|number| tokio::spawn(put(server.clone(), number.to_string())));
    let later: Vec<_> = later.collect();
    while server.threads().metrics().proposals_pending.load(Relaxed) <= LATER as u64 {
        yield_now().await;
    }
    for serializable in [false, true] {
        assert_eq!(read(server, serializable).await, 1);
    }
    assert!(!first.is_finished() && later.iter().all(|put| !put.is_finished()));
    gate.open();
    for put in [first].into_iter().chain(later) {
        put.await.unwrap();
    }
    assert_eq!(gate.syncs(), 2);
}

#[test]
fn a_sync_that_stands_still_holds_up_writes_alone_and_they_share_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let files = GatedFiles::default();
    let node = start(dir.path(), &files);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::new(&node, Limits::default());
        let requests = tokio::spawn(server.requests().clone().run());
        let work = puts_and_reads(&server, &files.0);
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("in time");
        requests.abort();
    });
    node.stop();
    assert!(node.failure().borrow().is_none());
}
