//! Tests of the hash of all buckets, on backends of every era.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Backend, Config, Era, PreCommit};
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{Revision, RevisionKey, backend_hash};

type Backing = Box<dyn Backend<u64>>;

/// Returns a hook that stores two keys with each commit. The hash ignores both keys.
fn hook() -> PreCommit<u64> {
    PreCommit::new(|applied: &u64, put| {
        put(Bucket::Meta, b"consistent_index", &applied.to_be_bytes())?;
        put(Bucket::Meta, b"term", &(applied / 2).to_be_bytes())
    })
}

fn open(era: Era, engine: &Arc<dyn Engine>) -> Backing {
    era.open(Arc::clone(engine), Config::default(), hook(), 0).unwrap()
}

fn memory() -> Arc<dyn Engine> {
    Arc::new(MemoryEngine::new())
}

fn write(backend: &Backing, applied: u64, records: &[(Bucket, &[u8], &[u8])]) {
    let mut tx = backend.begin_write().unwrap();
    for (bucket, key, value) in records {
        tx.put(*bucket, key, Bytes::copy_from_slice(value)).unwrap();
    }
    drop(tx.end(applied).unwrap());
}

/// Commits, and returns the hash.
fn sum(backend: &Backing) -> u32 {
    backend_hash(&**backend.snapshot().unwrap().snapshot()).unwrap()
}

fn at_once(engine: &Arc<dyn Engine>) -> u32 {
    let (snapshot, mut all) = (engine.snapshot().unwrap(), Vec::new());
    let mut names = Bucket::ALL;
    names.sort_by_key(|bucket| bucket.name());
    for bucket in names {
        all.extend_from_slice(bucket.name().as_bytes());
        let mut add = |key: &[u8], value: &[u8]| {
            let ignored = [&b"consistent_index"[..], b"term", b"storageVersion"];
            if !(bucket.name() == "meta" && ignored.contains(&key)) {
                all.extend_from_slice(key);
                all.extend_from_slice(value);
            }
            ControlFlow::Continue(())
        };
        snapshot.scan(bucket, KeyRange::ALL, &mut add).unwrap();
    }
    crc32c::crc32c(&all)
}

fn record(main: i64) -> RevisionKey {
    Revision::new(main, 0).put_key()
}

/// Makes two write transactions with records in most buckets, and calls `between` between them. The
/// second transaction overwrites one record, `authRevision`, and adds other records.
fn fill(backend: &Backing, between: impl Fn()) {
    let first = [
        (Bucket::Alarm, &b"a"[..], &b""[..]),
        (Bucket::Auth, b"authRevision", b"1"),
        (Bucket::Key, &record(2), b"two"),
        (Bucket::Key, &record(3), b"three"),
        (Bucket::Lease, b"7", b"lease"),
        (Bucket::Meta, b"storageVersion", b"3.7.0"),
        (Bucket::Meta, b"scheduledCompactRev", b"2"),
    ];
    write(backend, 1, &first);
    between();
    let second = [
        (Bucket::Auth, &b"authRevision"[..], &b"2"[..]),
        (Bucket::AuthUsers, b"root", b"password"),
        (Bucket::Key, &record(4), b"four"),
        (Bucket::Members, b"1", b"one"),
    ];
    write(backend, 2, &second);
}

#[test]
fn commits_defragmentation_and_a_restart_leave_it_alone() {
    let empty =
        crc32c::crc32c(b"alarmauthauthRolesauthUsersclusterkeyleasemembersmembers_removedmeta");
    let mut seen = Vec::new();
    for era in Era::DISTINCT_STORES {
        let engine = memory();
        let backend = open(era, &engine);
        assert_eq!(sum(&backend), empty, "{era}");
        fill(&backend, || backend.commit().unwrap());
        let filled = sum(&backend);
        assert_eq!(at_once(&engine), filled, "{era}");
        backend.defragment().unwrap();
        assert_eq!(sum(&backend), filled, "{era}");
        drop(backend);
        let backend = open(era, &engine);
        assert_eq!((sum(&backend), at_once(&engine)), (filled, filled), "{era}");
        seen.push(filled);
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "all eras hold the same");
}

#[test]
fn what_the_log_and_the_layout_say_does_not_count() {
    for era in Era::DISTINCT_STORES {
        let engine = memory();
        let backend = open(era, &engine);
        fill(&backend, || ());
        let before = sum(&backend);
        write(&backend, 900, &[(Bucket::Meta, b"storageVersion", b"3.8.0")]);
        backend.commit().unwrap();
        let index = engine.snapshot().unwrap().get(Bucket::Meta, b"consistent_index").unwrap();
        assert_eq!(index.unwrap(), 900_u64.to_be_bytes()[..], "{era}: a new one was stored");
        assert_eq!(sum(&backend), before, "{era}");
        // The hash includes these names if they are in another bucket, and longer or shorter names
        // in `meta`.
        let mut seen = vec![before];
        for (bucket, key) in [
            (Bucket::Lease, &b"term"[..]),
            (Bucket::Meta, b"term2"),
            (Bucket::Meta, b"ter"),
            (Bucket::Cluster, b"storageVersion"),
        ] {
            write(&backend, 901, &[(bucket, key, b"x")]);
            seen.push(sum(&backend));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 5, "{era}: each of them counts");
    }
}

#[test]
fn every_other_record_counts() {
    for bucket in Bucket::ALL {
        let backend = open(Era::Clearlane, &memory());
        fill(&backend, || ());
        let before = sum(&backend);
        let key = record(9);
        write(&backend, 3, &[(bucket, &key, b"some value")]);
        let with = sum(&backend);
        assert_ne!(with, before, "{bucket:?}: a new record");
        if bucket == Bucket::Key {
            continue; // Records in this bucket are never overwritten.
        }
        write(&backend, 4, &[(bucket, &key, b"some valuf")]);
        assert_ne!(sum(&backend), with, "{bucket:?}: another value");
        let mut tx = backend.begin_write().unwrap();
        tx.delete(bucket, &key).unwrap();
        drop(tx.end(5).unwrap());
        assert_eq!(sum(&backend), before, "{bucket:?}: as it was");
    }
}

#[test]
fn another_bucket_is_another_sum() {
    let mut sums: Vec<u32> = Bucket::ALL
        .map(|bucket| {
            let backend = open(Era::Clearlane, &memory());
            write(&backend, 1, &[(bucket, &record(2), b"the same")]);
            sum(&backend)
        })
        .to_vec();
    sums.sort_unstable();
    sums.dedup();
    assert_eq!(sums.len(), Bucket::ALL.len());
}
