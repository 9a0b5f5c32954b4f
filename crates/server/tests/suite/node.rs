//! Tests of a member with its threads and with a disk.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_engine::{EngineKind, Options};
use clearlane_mvcc::Store;
use clearlane_raft::Message;
use clearlane_replica::membership::{self, Member};
use clearlane_replica::{AppliedPosition, ReplicaConfig, StorageConfig, bootstrap};
use clearlane_server::snapshot::DiskStoreDir;
use clearlane_server::threads::{Network, ServerThreads};
use clearlane_wal as wal;
use clearlane_wal::Metadata;
use clearlane_wal::files::OsFileSystem;

/// A network that makes the calling thread panic.
struct PanickingNetwork;

impl Network for PanickingNetwork {
    fn send(&mut self, _message: Message) -> Result<(), Box<Message>> {
        panic!("broken on purpose");
    }

    fn send_raft_snapshot(&mut self, _message: Message, _store: Arc<dyn Store<AppliedPosition>>) {}
}

/// A thread that has panicked cannot complete the requests that wait for it, so the failure must be
/// reported.
#[test]
fn a_thread_that_panics_fails_the_member() {
    let dir = tempfile::tempdir().unwrap();
    let (files, snap) = (Arc::new(OsFileSystem), dir.path().join("snap"));
    let store_dir = DiskStoreDir::new(files.clone(), &snap, EngineKind::Memory, Options::default());
    let ground = StorageConfig {
        files,
        wal_dir: dir.path().join("wal"),
        wal: wal::Options::default(),
        store_dir: Arc::new(store_dir.unwrap()),
        era: Era::Clearlane,
        backend: Default::default(),
        learners_max: membership::LEARNERS_MAX,
    };
    let first = [1, 2].map(|id| {
        let peer_urls = vec![format!("http://localhost:{id}")];
        Member { id, peer_urls, ..Member::default() }
    });
    bootstrap(&ground, Metadata { node_id: 1, cluster_id: 7 }, &first).unwrap();
    let mut settings = ReplicaConfig::new(7, 7);
    settings.read_index.tick_interval = Duration::from_millis(1);
    let node = ServerThreads::start(ground, settings, Box::new(PanickingNetwork)).unwrap();
    // The member sends a vote request to the other member, and its raft thread panics.
    let failure = node.failure();
    let end = Instant::now() + Duration::from_secs(60);
    while failure.borrow().is_none() {
        assert!(Instant::now() < end, "the failure was not reported");
        thread::yield_now();
    }
    let message = failure.borrow().as_ref().unwrap().to_string();
    assert_eq!(message, "thread raft has panicked");
    node.stop();
}
