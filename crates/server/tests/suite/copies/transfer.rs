//! Tests of a transfer of a raft snapshot from one member to another, with every engine at either
//! end.

use std::sync::Arc;

use clearlane_engine::{EngineKind, Options};
use clearlane_replica::raft_snapshot::{
    Error, MemoryStoreDir, SnapshotReceiver, SnapshotSender, StoreDir,
};
use clearlane_server::snapshot;
use clearlane_wal::files::OsFileSystem;

use crate::copies::support::{
    CountingStoreDir, chunks, contents, contents_of, fill, filled, index_of, members, message,
    open_store, receive,
};

fn open_store_dir(kind: EngineKind, dir: &tempfile::TempDir) -> Arc<dyn StoreDir> {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let path = dir.path().join("snap");
    snapshot::open_store_dir(Arc::new(OsFileSystem), &path, kind, options).unwrap()
}

#[test]
fn every_engine_fills_every_other() {
    for from in EngineKind::ALL {
        let from_dir = tempfile::tempdir().unwrap();
        let store = open_store(open_store_dir(from, &from_dir).open().unwrap());
        fill(&*store, 40, 20_000);
        let chunks = chunks(&*store, 12);
        for to in EngineKind::ALL {
            let to_dir = tempfile::tempdir().unwrap();
            let store_dir = open_store_dir(to, &to_dir);
            let old = store_dir.open().unwrap();
            let received = receive(&store_dir, chunks.iter().map(|chunk| &chunk[..])).unwrap();
            assert_eq!((received.index, received.message.snapshot_position().index), (40, 40));
            assert_eq!(received.message.snapshot_position().conf_state, members());
            assert_eq!(store_dir.kept_indexes().unwrap(), [40]);
            let engine = store_dir.promote(40).unwrap();
            assert_eq!(engine.kind(), to);
            assert_eq!(contents(&*engine), contents_of(&*store), "{from} to {to}");
            assert_eq!((store_dir.kept_indexes().unwrap(), index_of(&*old)), (vec![], 0));
            // The received store accepts the entries after its applied index.
            let copy = open_store(engine);
            fill(&*copy, 45, 10);
        }
    }
}

#[test]
fn the_position_is_that_of_the_copy_and_not_of_the_store() {
    let store = filled(10, 10);
    let copy = store.snapshot().unwrap();
    fill(&*store, 20, 10);
    let mut sender = SnapshotSender::new(copy, message(7)).unwrap();
    assert_eq!(sender.position.index, 10);
    let store_dir: Arc<dyn StoreDir> = Arc::new(MemoryStoreDir::default());
    let mut receiver = SnapshotReceiver::new(Arc::clone(&store_dir));
    while let Some(chunk) = sender.next_chunk().unwrap() {
        fill(&*store, index_of_store(&*store) + 1, 10);
        receiver.feed(&chunk).unwrap();
    }
    let received = receiver.finish().unwrap();
    assert_eq!((received.index, received.message.snapshot_position().index), (10, 10));
    assert_eq!(index_of(&*store_dir.promote(10).unwrap()), 10);
}

fn index_of_store(store: &dyn clearlane_mvcc::Store<clearlane_replica::AppliedPosition>) -> u64 {
    let snapshot = Arc::clone(store.snapshot().unwrap().snapshot());
    clearlane_replica::AppliedPosition::read(&*snapshot).unwrap().index
}

#[test]
fn a_sender_refuses_what_it_cannot_send() {
    let store = filled(10, 10);
    let behind = SnapshotSender::new(store.snapshot().unwrap(), message(11)).unwrap_err();
    assert!(matches!(behind, Error::StoreTooOld { promised: 11, has: 10 }), "{behind}");
    // Kind 8 is a heartbeat.
    let heartbeat = clearlane_raft::Message::decode(&[8, 8, 16, 2, 24, 1, 32, 3]);
    let other = SnapshotSender::new(store.snapshot().unwrap(), heartbeat.unwrap()).unwrap_err();
    assert!(matches!(other, Error::NotSnapshot(_)), "{other}");
}

#[test]
fn neither_side_keeps_more_than_a_few_megabytes() {
    // The store has 62.5 MiB, in records of 64 KiB. A chunk has 256 KiB, plus the rest of the
    // record at that limit.
    let store = filled(1_000, 64 << 10);
    let mut sender = SnapshotSender::new(store.snapshot().unwrap(), message(1)).unwrap();
    let store_dir = Arc::new(CountingStoreDir::default());
    let mut receiver = SnapshotReceiver::new(Arc::clone(&store_dir) as Arc<dyn StoreDir>);
    let (mut largest, mut sent) = (0, 0);
    while let Some(chunk) = sender.next_chunk().unwrap() {
        largest = largest.max(chunk.len());
        for piece in chunk.chunks(10_000) {
            receiver.feed(piece).unwrap();
            sent += piece.len();
            // The received bytes are in the staged store, except for up to one MiB that waits for
            // its commit, and the frame that is not complete yet.
            let staged = store_dir.newest.lock().as_ref().and_then(std::sync::Weak::upgrade);
            let has = staged.map_or(0, |engine| engine.size_in_use()) as usize;
            assert!(sent - has < 2 << 20, "{} bytes wait", sent - has);
        }
    }
    receiver.finish().unwrap();
    assert!(sent > 60 << 20 && largest < 400 << 10, "{largest} of {sent}");
}

#[test]
fn the_cut_of_the_chunks_does_not_matter() {
    let store = filled(5, 100);
    let whole = chunks(&*store, 1).concat();
    for cut in (1..40).chain([100, 1_000, whole.len()]) {
        let store_dir: Arc<dyn StoreDir> = Arc::new(MemoryStoreDir::default());
        assert_eq!(receive(&store_dir, whole.chunks(cut)).unwrap().index, 5, "cut {cut}");
        let engine = store_dir.promote(5).unwrap();
        assert_eq!(contents(&*engine), contents_of(&*store));
    }
}

#[test]
fn two_copies_may_come_at_once() {
    let store_dir: Arc<dyn StoreDir> = Arc::new(MemoryStoreDir::default());
    let (one, other) = (filled(5, 100), filled(9, 100));
    let mut first = SnapshotReceiver::new(Arc::clone(&store_dir));
    let mut second = SnapshotReceiver::new(Arc::clone(&store_dir));
    for (left, right) in chunks(&*one, 1).iter().zip(&chunks(&*other, 1)) {
        first.feed(left).unwrap();
        second.feed(right).unwrap();
    }
    second.finish().unwrap();
    first.finish().unwrap();
    assert_eq!(store_dir.kept_indexes().unwrap(), [5, 9]);
    assert_eq!(index_of(&*store_dir.promote(9).unwrap()), 9);
    assert_eq!(store_dir.kept_indexes().unwrap(), [0; 0], "the older one is of no use");
}
