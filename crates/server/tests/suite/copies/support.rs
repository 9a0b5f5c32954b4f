//! Stores with data, raft snapshot messages, and both ends of a transfer.

use std::path::Path;
use std::sync::{Arc, Weak};

use clearlane_backend::{Config, Era};
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_raft::LogPosition;
use clearlane_raft::Message;
use clearlane_replica::AppliedPosition;
use clearlane_replica::raft_snapshot::{
    Error, MemoryStoreDir, ReceivedSnapshot, SnapshotReceiver, SnapshotSender, StagedStore,
    StoreDir,
};
use clearlane_wal::ConfState;
use parking_lot::Mutex;

/// Returns the members 1 to 3. Member 3 is a learner.
pub(crate) fn members() -> ConfState {
    ConfState { voters: vec![1, 2], learners: vec![3], ..ConfState::default() }
}

pub(crate) fn open_store(engine: Arc<dyn Engine>) -> Box<dyn Store<AppliedPosition>> {
    let progress = AppliedPosition::read(&*engine.snapshot().unwrap()).unwrap();
    let ground =
        StoreConfig::new(engine, Config::default(), AppliedPosition::pre_commit(), progress);
    let era = Era::Clearlane;
    clearlane_mvcc::open(era, ground).unwrap().0
}

/// Applies entries of term 3 up to index `to`. Each entry is a put of `bytes` bytes.
pub(crate) fn fill(store: &dyn Store<AppliedPosition>, to: u64, bytes: usize) {
    let has = AppliedPosition::read(&**store.snapshot().unwrap().snapshot()).unwrap().index;
    for index in has + 1..=to {
        let mut txn = store.begin_write().unwrap();
        let value = vec![index as u8; bytes];
        txn.put(format!("key {index}").as_bytes(), &value, 0).unwrap();
        txn.set(Bucket::Members, b"1", "a member".into()).unwrap();
        txn.end(AppliedPosition { index, term: 3, conf_state: Arc::new(members()) }).unwrap();
    }
    store.commit().unwrap();
}

/// Returns a store in memory that has applied `to` entries.
pub(crate) fn filled(to: u64, bytes: usize) -> Box<dyn Store<AppliedPosition>> {
    let store = open_store(Arc::new(MemoryEngine::new()));
    fill(&*store, to, bytes);
    store
}

/// Returns a message from member 1 to member 2 in term 3: member 2 needs the store at index
/// `promised` or later.
pub(crate) fn message(promised: u64) -> Message {
    // Fields 1 to 4: the kind "snapshot", to, from, term.
    let mut message = Message::decode(&[8, 7, 16, 2, 24, 1, 32, 3]).unwrap();
    message.set_snapshot_position(&LogPosition { index: promised, term: 3, conf_state: members() });
    message
}

pub(crate) fn chunks(store: &dyn Store<AppliedPosition>, promised: u64) -> Vec<bytes::Bytes> {
    let mut sender = SnapshotSender::new(store.snapshot().unwrap(), message(promised)).unwrap();
    std::iter::from_fn(|| sender.next_chunk().unwrap()).collect()
}

pub(crate) fn receive<'c>(
    store_dir: &Arc<dyn StoreDir>,
    chunks: impl IntoIterator<Item = &'c [u8]>,
) -> Result<ReceivedSnapshot, Error> {
    let mut receiver = SnapshotReceiver::new(Arc::clone(store_dir));
    for chunk in chunks {
        receiver.feed(chunk)?;
    }
    receiver.finish()
}

/// Returns the names in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Returns all records of an engine.
pub(crate) fn contents(engine: &dyn Engine) -> Vec<(Bucket, Vec<u8>, Vec<u8>)> {
    let snapshot = engine.snapshot().unwrap();
    let mut all = Vec::new();
    for bucket in Bucket::ALL {
        let each = &mut |key: &[u8], value: &[u8]| {
            all.push((bucket, key.to_vec(), value.to_vec()));
            std::ops::ControlFlow::Continue(())
        };
        snapshot.scan(bucket, KeyRange::ALL, each).unwrap();
    }
    all
}

/// Returns the records that a received store must have.
pub(crate) fn contents_of(store: &dyn Store<AppliedPosition>) -> Vec<(Bucket, Vec<u8>, Vec<u8>)> {
    let target: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut importer = clearlane_engine::stream::Importer::new(Arc::clone(&target)).unwrap();
    let mut exporter: Exporter = store.snapshot().unwrap();
    while let Some(chunk) = exporter.next_chunk().unwrap() {
        importer.feed(&chunk).unwrap();
    }
    importer.finish().unwrap();
    contents(&*target)
}

/// Returns the applied index of a store.
pub(crate) fn index_of(engine: &dyn Engine) -> u64 {
    AppliedPosition::read(&*engine.snapshot().unwrap()).unwrap().index
}

/// A store directory that counts staged stores. A store is counted until it is kept or abandoned.
#[derive(Debug, Default)]
pub(crate) struct CountingStoreDir {
    pub(crate) store_dir: MemoryStoreDir,
    pub(crate) open: Mutex<i64>,
    /// The store that was staged last.
    pub(crate) newest: Mutex<Option<Weak<dyn Engine>>>,
}

impl StoreDir for CountingStoreDir {
    fn free_space(&self) -> u64 {
        self.store_dir.free_space()
    }
    fn open(&self) -> clearlane_engine::Result<Arc<dyn Engine>> {
        self.store_dir.open()
    }
    fn stage(&self) -> clearlane_engine::Result<StagedStore> {
        *self.open.lock() += 1;
        let staged = self.store_dir.stage()?;
        *self.newest.lock() = Some(Arc::downgrade(&staged.engine));
        Ok(staged)
    }
    fn keep(&self, staged: StagedStore, index: u64) -> clearlane_engine::Result<()> {
        *self.open.lock() -= 1;
        self.store_dir.keep(staged, index)
    }
    fn abandon(&self, staged: StagedStore) -> clearlane_engine::Result<()> {
        *self.open.lock() -= 1;
        assert_eq!(Arc::strong_count(&staged.engine), 1, "abandoned while it is in use");
        self.store_dir.abandon(staged)
    }
    fn kept_indexes(&self) -> clearlane_engine::Result<Vec<u64>> {
        self.store_dir.kept_indexes()
    }
    fn promote(&self, index: u64) -> clearlane_engine::Result<Arc<dyn Engine>> {
        self.store_dir.promote(index)
    }
    fn discard(&self, index: u64) -> clearlane_engine::Result<()> {
        self.store_dir.discard(index)
    }
    fn remove_leftovers(&self) -> clearlane_engine::Result<()> {
        self.store_dir.remove_leftovers()
    }
}
