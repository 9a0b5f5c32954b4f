//! Tests of interrupted and invalid transfers: cut off at every byte, with a wrong bit at every
//! position, with random bytes, and with false claims.

use std::sync::Arc;

use clearlane_engine::{EngineKind, Options};
use clearlane_replica::raft_snapshot::{
    Error, MemoryStoreDir, ReceivedSnapshot, SnapshotReceiver, StoreDir,
};
use clearlane_server::snapshot;
use clearlane_wal::files::OsFileSystem;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::copies::support::{
    CountingStoreDir, chunks, contents, contents_of, filled, message, receive,
};

fn receive_into(
    store_dir: &Arc<CountingStoreDir>,
    bytes: &[u8],
) -> Result<ReceivedSnapshot, Error> {
    receive(&(Arc::clone(store_dir) as Arc<dyn StoreDir>), bytes.chunks(50))
}

#[test]
fn one_that_ends_at_any_byte_leaves_nothing_and_the_next_one_succeeds() {
    let store = filled(4, 30);
    let whole = chunks(&*store, 1).concat();
    let store_dir = Arc::new(CountingStoreDir::default());
    for length in 0..whole.len() {
        receive_into(&store_dir, &whole[..length]).unwrap_err();
        assert_eq!(*store_dir.open.lock(), 0, "{length} bytes left something");
        assert_eq!(store_dir.kept_indexes().unwrap(), [0; 0]);
    }
    // If a connection breaks, the receiver is dropped without having seen the end of the stream.
    for length in 0..=whole.len() {
        let mut receiver = SnapshotReceiver::new(Arc::clone(&store_dir) as Arc<dyn StoreDir>);
        receiver.feed(&whole[..length]).unwrap();
        drop(receiver);
        assert_eq!((*store_dir.open.lock(), store_dir.kept_indexes().unwrap().len()), (0, 0));
    }
    assert_eq!(receive_into(&store_dir, &whole).unwrap().index, 4);
    assert_eq!(contents(&*store_dir.promote(4).unwrap()), contents_of(&*store));
}

#[test]
fn a_wrong_bit_anywhere_is_noticed() {
    let store = filled(4, 30);
    let whole = chunks(&*store, 1).concat();
    let store_dir = Arc::new(CountingStoreDir::default());
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(receive_into(&store_dir, &damaged).is_err(), "bit {bit}");
        assert_eq!(
            (*store_dir.open.lock(), store_dir.kept_indexes().unwrap().len()),
            (0, 0),
            "bit {bit}"
        );
    }
    receive_into(&store_dir, &whole).unwrap();
}

#[test]
fn what_follows_the_end_is_refused() {
    let mut whole = chunks(&*filled(4, 30), 1).concat();
    whole.push(0);
    let store_dir = Arc::new(CountingStoreDir::default());
    receive_into(&store_dir, &whole).unwrap_err();
    assert_eq!((*store_dir.open.lock(), store_dir.kept_indexes().unwrap().len()), (0, 0));
}

#[test]
fn what_was_refused_stays_refused() {
    let whole = chunks(&*filled(4, 30), 1).concat();
    let mut receiver = SnapshotReceiver::new(Arc::new(MemoryStoreDir::default()));
    receiver.feed(b"PK").unwrap_err();
    receiver.feed(&whole).unwrap_err();
    receiver.finish().unwrap_err();
}

/// Returns a header with a correct checksum, followed by the records of a store.
fn with_header(message: &[u8], length: u32, records: &[u8]) -> Vec<u8> {
    let mut header = b"clearlane-copy..\x01".to_vec();
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(message);
    let sum = crc32c::crc32c(&header);
    header.extend_from_slice(&sum.to_be_bytes());
    [&header, records].concat()
}

#[test]
fn a_copy_that_is_of_another_position_than_it_says_is_refused() {
    let all = chunks(&*filled(4, 30), 1);
    let records = all[1..].concat();
    let store_dir = Arc::new(CountingStoreDir::default());
    let mut other_term = message(4);
    let mut position = other_term.snapshot_position();
    position.term = 2;
    other_term.set_snapshot_position(&position);
    let mut other_members = message(4);
    position.term = 3;
    position.conf_state.learners.clear();
    other_members.set_snapshot_position(&position);
    for message in [message(3), message(5), other_term, other_members] {
        let bytes = message.encode();
        let lie = with_header(&bytes, bytes.len() as u32, &records);
        let error = receive_into(&store_dir, &lie).unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{error}");
        assert_eq!((*store_dir.open.lock(), store_dir.kept_indexes().unwrap().len()), (0, 0));
    }
    let truth = message(4).encode();
    receive_into(&store_dir, &with_header(&truth, truth.len() as u32, &records)).unwrap();
}

#[test]
fn nonsense_is_refused_and_never_believed() {
    let records = chunks(&*filled(4, 30), 1)[1..].concat();
    let store_dir = Arc::new(CountingStoreDir::default());
    let heartbeat = [8, 8, 16, 2, 24, 1, 32, 3];
    for (message, length) in [
        (&b""[..], 0),
        (b"\xff\xff\xff", 3),
        (&heartbeat, 8),
        (b"", 1 << 21),
        (b"", u32::MAX),
        (b"short", 1 << 19),
    ] {
        receive_into(&store_dir, &with_header(message, length, &records)).unwrap_err();
        assert_eq!((*store_dir.open.lock(), store_dir.kept_indexes().unwrap().len()), (0, 0));
    }
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut bytes = chunks(&*filled(2, 30), 1).concat();
        for _ in 0..rng.random_range(1..20) {
            let at = rng.random_range(0..bytes.len());
            match rng.random_range(0..3) {
                0 => bytes[at] = rng.random(),
                1 => bytes.insert(at, rng.random()),
                _ => drop(bytes.remove(at)),
            }
        }
        // The result is not checked: several changes may cancel each other out, and then the
        // store's contents are correct.
        let _ = receive_into(&store_dir, &bytes);
        assert_eq!(*store_dir.open.lock(), 0, "seed {seed}");
    }
}

#[test]
fn on_disk_nothing_is_left_either() {
    let all = chunks(&*filled(30, 20_000), 1);
    for kind in [EngineKind::Bolt, EngineKind::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { cache_bytes: 1 << 20, ..Options::default() };
        let files = Arc::new(OsFileSystem);
        let store_dir = snapshot::open_store_dir(files, dir.path(), kind, options).unwrap();
        let current = store_dir.open().unwrap();
        let before = names(dir.path());
        for length in 1..all.len() {
            let cut = all[..length].iter().map(|chunk| &chunk[..]);
            receive(&store_dir, cut.clone()).unwrap_err();
            assert_eq!(names(dir.path()), before, "{kind}, {length} chunks");
            let mut wrong = all[..=length].concat();
            let last = wrong.len() - 1;
            wrong[last] ^= 1;
            receive(&store_dir, [&wrong[..]]).unwrap_err();
            assert_eq!(names(dir.path()), before, "{kind}, a wrong bit in chunk {length}");
        }
        receive(&store_dir, all.iter().map(|chunk| &chunk[..])).unwrap();
        assert_eq!(store_dir.kept_indexes().unwrap(), [30]);
        drop(current);
    }
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
