//! A member with its threads, on a disk.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_engine::{EngineKind, Options};
use clearlane_mvcc::Store;
use clearlane_raft::Message;
use clearlane_server::AppliedPosition;
use clearlane_server::membership::{self, Member};
use clearlane_server::raft_snapshot::DiskStoreDir;
use clearlane_server::replica::{ReplicaConfig, StorageConfig, bootstrap};
use clearlane_server::threads::{Network, ServerThreads};
use clearlane_wal as wal;
use clearlane_wal::Metadata;
use clearlane_wal::files::OsFileSystem;

/// Breaks the thread that uses it.
struct PanickingNetwork;

impl Network for PanickingNetwork {
    fn send(&mut self, _message: Message) -> Result<(), Box<Message>> {
        panic!("broken on purpose");
    }

    fn send_raft_snapshot(&mut self, _message: Message, _store: Arc<dyn Store<AppliedPosition>>) {}
}

/// A request waits for an outcome that a thread which has panicked cannot give: the failure must
/// be reported.
#[test]
fn a_thread_that_panics_fails_the_member() {
    let dir = tempfile::tempdir().unwrap();
    let (files, snap) = (Arc::new(OsFileSystem), dir.path().join("snap"));
    let vault = DiskStoreDir::new(files.clone(), &snap, EngineKind::Memory, Options::default());
    let ground = StorageConfig {
        files,
        wal_dir: dir.path().join("wal"),
        wal: wal::Options::default(),
        store_dir: Arc::new(vault.unwrap()),
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
    // It asks the other one for a vote.
    let failure = node.failure();
    let end = Instant::now() + Duration::from_secs(60);
    while failure.borrow().is_none() {
        assert!(Instant::now() < end, "the failure was not reported");
        thread::yield_now();
    }
    let told = failure.borrow().as_ref().unwrap().to_string();
    assert_eq!(told, "thread raft has panicked");
    node.stop();
}
