//! Tests the backend when an operation fails, and when a limit is reached.
//!
//! After a failed commit the engine's contents are unknown. So every era rejects every later write
//! transaction and commit with the first error. Reads continue and show the state that was visible.
//! The exception is era 3.1: its reads use the engine's write transaction, which no longer exists,
//! so they return the error as well.

use crate::support;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::support::blocked_threads::{Barrier, OpenOnDrop, ThreadStatus, watch};
use crate::support::hooked_engine::{EngineCall, HookedEngine};
use crate::support::{Entry, batches, contents, memory_engine};
use bytes::Bytes;
use clearlane_backend::{Backend, Config, Era, Error, PreCommit};
use clearlane_contention::{Registry, TaskLabel};
use clearlane_engine::{self as engine, Bucket, Engine};

const GONE: &str = "backend: storage engine: the disk is gone";
const DROPPED: &str =
    "a write transaction was dropped before its end; the backend accepts no more writes";

/// Returns an engine that fails at the `nth` call of kind `at`. If `nth` is 0, it never fails.
fn failing_engine(at: EngineCall, nth: u64) -> Arc<HookedEngine> {
    let count = AtomicU64::new(0);
    HookedEngine::new(move |moment| {
        if moment == at && count.fetch_add(1, SeqCst) + 1 == nth {
            return Err(engine::Error::Storage("the disk is gone".to_owned()));
        }
        Ok(())
    })
}

/// Asserts that every operation that writes or commits fails with the message `words`.
fn assert_refuses(backend: &dyn Backend<Entry>, words: &str) {
    let record = [Bytes::from_static(b"r")];
    let refusals = [
        ("write", backend.begin_write().map(drop)),
        ("commit", backend.commit()),
        ("remove", backend.remove(&record)),
        ("defragment", backend.defragment()),
        ("copy", backend.snapshot().map(drop)),
    ];
    for (name, refusal) in refusals {
        let error = refusal.expect_err(name).to_string();
        assert_eq!(error, words, "{name} of era {}", backend.era());
    }
    // A tick that finds nothing to commit may succeed.
    match backend.commit_if_due(Duration::from_secs(1_000)) {
        Ok(committed) => assert!(!committed, "tick of era {}", backend.era()),
        Err(error) => assert_eq!(error.to_string(), words),
    }
}

/// Asserts that readers see whole batches up to `newest`. In era 3.1 reads must fail with the
/// message `words` instead.
fn assert_shows(backend: &dyn Backend<Entry>, newest: Entry, words: &str) {
    let tx = backend.begin_read();
    if backend.era() == Era::V3_1 {
        assert_eq!(contents::visible(&*tx).unwrap_err().to_string(), words);
    } else {
        assert_eq!(batches::inspect(&*tx).newest, newest, "era {}", backend.era());
    }
}

fn assert_durable(engine: &Arc<HookedEngine>, newest: Entry) {
    let engine = Arc::clone(engine) as Arc<dyn Engine>;
    let backend = support::open(Era::Clearlane, engine, Config::default());
    assert_eq!(batches::inspect(&*backend.begin_read()).newest, newest, "what a restart finds");
}

#[test]
fn after_a_failed_commit_nothing_is_written_and_reads_go_on() {
    for era in Era::DISTINCT_STORES {
        let engine = failing_engine(EngineCall::Commit, 2);
        let backend = support::open(era, Arc::clone(&engine) as _, Config::default());
        batches::write(&*backend, 1).unwrap();
        backend.commit().unwrap();
        batches::write(&*backend, 2).unwrap();
        assert_eq!(backend.commit().unwrap_err().to_string(), GONE);
        assert_refuses(&*backend, GONE);
        let tick = backend.commit_if_due(Duration::from_secs(2_000));
        assert_eq!(tick.unwrap_err().to_string(), GONE, "a batch is pending");
        assert_shows(&*backend, 2, GONE);
        drop(backend);
        assert_durable(&engine, 1);
    }
}

#[test]
fn wherever_a_commit_fails_what_was_acknowledged_stays_visible() {
    for (era, nth) in Era::DISTINCT_STORES.into_iter().flat_map(|d| (1..8).map(move |nth| (d, nth)))
    {
        let engine = failing_engine(EngineCall::Commit, nth);
        // The eras of etcd commit at this limit, and some eras also commit at each delete. All
        // other batches are committed by calls to `commit_if_due`.
        let config = Config { batch_limit: 15, ..Config::default() };
        let backend = support::open(era, engine, config);
        let acknowledged = write_until_failure(&*backend);
        assert_refuses(&*backend, GONE);
        if era != Era::V3_1 {
            let seen = batches::inspect(&*backend.begin_read()).newest;
            let may_be_seen = acknowledged..=acknowledged + 1;
            assert!(may_be_seen.contains(&seen), "{era}, {nth}: {seen}, not {acknowledged}");
        }
    }
}

/// Writes batches until a write or a commit fails. Returns the newest batch that was acknowledged.
fn write_until_failure(backend: &dyn Backend<Entry>) -> Entry {
    for number in 1.. {
        if batches::write(backend, number).is_err() {
            return number - 1;
        }
        if backend.commit_if_due(Duration::from_millis(30 * number)).is_err() {
            return number;
        }
    }
    unreachable!("a commit fails sooner or later")
}

#[test]
fn a_put_that_fails_in_the_engine_ends_the_writes_and_shows_nothing_of_its_transaction() {
    // Era clearlane is not listed, because it puts into the engine only during the commit.
    for era in [Era::V3_1, Era::V3_2, Era::V3_4, Era::V3_5] {
        let engine = failing_engine(EngineCall::Put, 2);
        let backend = support::open(era, Arc::clone(&engine) as _, Config::default());
        let mut tx = backend.begin_write().unwrap();
        tx.put(Bucket::Lease, b"a", Bytes::new()).unwrap();
        assert_eq!(tx.put(Bucket::Lease, b"b", Bytes::new()).unwrap_err().to_string(), GONE);
        assert_eq!(tx.end(1).unwrap_err().to_string(), GONE, "{era}");
        assert_refuses(&*backend, GONE);
        assert_shows(&*backend, 0, GONE);
        if era != Era::V3_1 {
            assert!(contents::visible(&*backend.begin_read()).unwrap().is_empty(), "{era}");
        }
        assert!(contents::durable(&*engine).is_empty());
    }
}

#[test]
fn a_put_that_fails_in_the_engine_fails_the_commit_of_era_clearlane() {
    let engine = failing_engine(EngineCall::Put, 2);
    let era = Era::Clearlane;
    let backend = support::open(era, Arc::clone(&engine) as _, Config::default());
    batches::write(&*backend, 1).unwrap();
    assert_eq!(backend.commit().unwrap_err().to_string(), GONE);
    assert_refuses(&*backend, GONE);
    assert_shows(&*backend, 1, GONE);
    assert!(contents::durable(&*engine).is_empty());
}

#[test]
fn a_write_that_is_open_while_the_commit_fails_may_end() {
    let engine = failing_engine(EngineCall::Commit, 1);
    let backend = support::open(Era::Clearlane, engine, Config::default());
    batches::write(&*backend, 1).unwrap();
    let mut tx = backend.begin_write().unwrap();
    assert_eq!(backend.commit().unwrap_err().to_string(), GONE);
    tx.put(Bucket::Members, b"m", Bytes::new()).unwrap();
    drop(tx.end(2).unwrap());
    assert_eq!(backend.begin_read().get(Bucket::Members, b"m").unwrap(), Some(Bytes::new()));
    assert_refuses(&*backend, GONE);
}

#[test]
fn a_pre_commit_hook_that_fails_is_a_failed_commit() {
    for era in Era::DISTINCT_STORES {
        let hook = PreCommit::new(|entry: &Entry, put| {
            put(Bucket::Meta, b"half", b"of the hook's records")?;
            if *entry < 2 { Ok(()) } else { Err(Error::Engine("the hook is lost".to_owned())) }
        });
        let engine = memory_engine();
        let backend = era.open(Arc::clone(&engine), Config::default(), hook, 0).unwrap();
        batches::write(&*backend, 1).unwrap();
        backend.commit().unwrap();
        let committed = contents::durable(&*engine);
        batches::write(&*backend, 2).unwrap();
        let words = "backend: the hook is lost";
        assert_eq!(backend.commit().unwrap_err().to_string(), words);
        assert_refuses(&*backend, words);
        assert_shows(&*backend, 2, words);
        drop(backend);
        assert_eq!(contents::durable(&*engine), committed, "nothing of the failed commit");
    }
}

#[test]
fn a_defragmentation_that_fails_leaves_a_store_that_works() {
    for era in Era::DISTINCT_STORES {
        let engine = failing_engine(EngineCall::Defragment, 1);
        let backend = support::open(era, Arc::clone(&engine) as _, Config::default());
        (1..6).for_each(|number| batches::write(&*backend, number).unwrap());
        assert_eq!(backend.defragment().unwrap_err().to_string(), GONE);
        assert_eq!(batches::inspect(&*backend.begin_read()).newest, 5, "{era}");
        (6..11).for_each(|number| batches::write(&*backend, number).unwrap());
        backend.defragment().unwrap();
        backend.commit().unwrap();
        assert_eq!(batches::inspect(&*backend.begin_read()).newest, 10, "{era}");
        drop(backend);
        assert_durable(&engine, 10);
    }
}

#[test]
fn a_dropped_write_shows_nothing_and_ends_the_writes() {
    for era in Era::DISTINCT_STORES {
        let engine = failing_engine(EngineCall::Commit, 0);
        let backend = support::open(era, Arc::clone(&engine) as _, Config::default());
        batches::write(&*backend, 1).unwrap();
        backend.commit().unwrap();
        batches::write(&*backend, 2).unwrap();
        let mut tx = backend.begin_write().unwrap();
        tx.put(Bucket::Key, &batches::records(3)[0], Bytes::from_static(b"3")).unwrap();
        drop(tx);
        assert_refuses(&*backend, DROPPED);
        assert_shows(&*backend, 2, DROPPED);
        drop(backend);
        assert_durable(&engine, 1);
    }
}

#[test]
fn a_write_that_waited_for_one_that_is_dropped_is_refused() {
    for era in Era::DISTINCT_STORES {
        let (barrier, locks) = (Barrier::default(), Registry::new());
        let config = Config { locks: locks.clone(), ..Config::default() };
        let backend = support::open(era, memory_engine(), config);
        let [first, next] = ["first_put", "next_put"].map(TaskLabel::named);
        let refused = thread::scope(|threads| {
            let open = OpenOnDrop(&barrier);
            let thread = threads.spawn(|| {
                let _as = first.enter();
                let mut tx = backend.begin_write().unwrap();
                tx.put(Bucket::Key, b"r1", Bytes::new()).unwrap();
                barrier.wait();
            });
            assert_eq!(watch(first, &thread, &barrier, &locks), ThreadStatus::AtBarrier);
            let thread = threads.spawn(|| {
                let _as = next.enter();
                backend.begin_write().map(drop)
            });
            assert!(matches!(watch(next, &thread, &barrier, &locks), ThreadStatus::Blocked(_)));
            drop(open);
            thread.join().unwrap()
        });
        assert_eq!(refused.expect_err("refused").to_string(), DROPPED, "{era}");
    }
}

/// Runs a transaction with one put, and returns whether a commit is due. In era clearlane the put
/// adds 1,000 pending bytes: 10 for the key, 894 for the value, and 96 for the overhead of a
/// pending record.
fn write_1000_bytes(backend: &dyn Backend<Entry>, number: Entry) -> bool {
    let mut tx = backend.begin_write().unwrap();
    let key = format!("{number:010}");
    tx.put(Bucket::Key, key.as_bytes(), Bytes::from_static(&[b'v'; 894])).unwrap();
    tx.end(number).unwrap().commit_due
}

/// Returns the number of pending bytes. The result is correct only if all pending operations are
/// from [`write_1000_bytes`].
fn pending_bytes(backend: &dyn Backend<Entry>) -> u64 {
    backend.sizes().unwrap().pending_ops * 1_000
}

#[test]
fn pending_bytes_stay_within_the_bound_and_one_transaction() {
    let config = Config { pending_bytes_max: 10_500, ..Config::default() };
    let engine = memory_engine();
    let backend = support::open(Era::Clearlane, Arc::clone(&engine), config);
    let pending_after = |number| {
        write_1000_bytes(&*backend, number);
        pending_bytes(&*backend)
    };
    let most = (1..=100).map(pending_after).max().unwrap();
    assert_eq!(most, 11_000, "above the bound by less than one transaction");
    assert_eq!(contents::saved_entry(&contents::durable(&*engine)), 99, "the puts have committed");
}

#[test]
fn a_put_over_the_bound_waits_for_the_commit_under_way() {
    let (barrier, locks) = (Arc::new(Barrier::default()), Registry::new());
    let [syncing, put] = ["syncing", "put"].map(TaskLabel::named);
    let stop = Arc::clone(&barrier);
    let engine = HookedEngine::new(move |moment| {
        if moment == EngineCall::Commit && TaskLabel::current() == syncing {
            stop.wait();
        }
        Ok(())
    });
    let config = Config { pending_bytes_max: 10_500, locks: locks.clone(), ..Config::default() };
    let backend = support::open(Era::Clearlane, engine, config);
    thread::scope(|threads| {
        let open = OpenOnDrop(&barrier);
        write_1000_bytes(&*backend, 1);
        let commit = threads.spawn(|| {
            let _as = syncing.enter();
            backend.commit().unwrap();
        });
        assert_eq!(watch(syncing, &commit, &barrier, &locks), ThreadStatus::AtBarrier);
        for number in 2..=11 {
            write_1000_bytes(&*backend, number);
        }
        assert_eq!(pending_bytes(&*backend), 11_000, "what is being synced is pending, too");
        let thread = threads.spawn(|| {
            let _as = put.enter();
            write_1000_bytes(&*backend, 12);
        });
        let waits = "waits for committer, held by syncing".to_owned();
        assert_eq!(watch(put, &thread, &barrier, &locks), ThreadStatus::Blocked(waits));
        drop(open);
    });
    // The commit in progress has written only the first transaction. So 10,000 bytes were pending
    // after it, which is below the limit, and the put made no commit itself. The put added 1,000.
    assert_eq!(pending_bytes(&*backend), 11_000);
}

#[test]
fn era_clearlane_reports_that_a_commit_is_due_and_the_next_tick_makes_it() {
    let config = Config { batch_limit: 3, ..Config::default() };
    let backend = support::open(Era::Clearlane, memory_engine(), config);
    let due = (1..=4).map(|number| write_1000_bytes(&*backend, number)).collect::<Vec<_>>();
    assert_eq!(due, [false, false, true, true]);
    assert!(
        backend.commit_if_due(Duration::from_millis(1)).unwrap(),
        "before the interval is over"
    );
    assert!(!write_1000_bytes(&*backend, 5));
    assert!(!backend.commit_if_due(Duration::from_millis(2)).unwrap());
}

#[test]
fn the_other_eras_commit_at_the_limit_themselves() {
    for era in [Era::V3_1, Era::V3_2, Era::V3_4, Era::V3_5] {
        let config = Config { batch_limit: 3, ..Config::default() };
        let backend = support::open(era, memory_engine(), config);
        let pending = |number| {
            assert!(!write_1000_bytes(&*backend, number), "no commit is left to another thread");
            backend.sizes().unwrap().pending_ops
        };
        assert_eq!((1..=4).map(pending).collect::<Vec<_>>(), [1, 2, 0, 1], "{era}");
    }
}

#[test]
fn a_commit_that_panics_is_a_failed_commit() {
    for era in Era::DISTINCT_STORES {
        let panics = PreCommit::new(|entry: &Entry, _| {
            assert!(*entry == 0, "on purpose");
            Ok(())
        });
        let backend = era.open(memory_engine(), Config::default(), panics, 0).unwrap();
        drop(backend.begin_write().unwrap().end(1).unwrap());
        let commit = || backend.commit();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit)).is_err());
        let failed = "backend: a commit panicked";
        assert_eq!(backend.commit().unwrap_err().to_string(), failed, "era {era}");
        assert_eq!(backend.begin_write().map(drop).unwrap_err().to_string(), failed, "era {era}");
    }
}
