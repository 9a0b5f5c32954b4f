//! Runs real threads in each of the five eras that have different stores: three readers, one
//! writer, a committer and a compactor.
//!
//! A reader must find only whole batches, and every batch that was acknowledged before the reader
//! opened. The state of a reader must not change while it is open. The seed decides what each
//! thread does next. The system decides the order of the threads, so a failure may need several
//! runs with its seed.

use crate::support;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::support::batches::{self, InspectedState};
use crate::support::{Entry, OnPanic, SetOnDrop, memory_engine};
use clearlane_backend::{Backend, Config, Era, ReadTx, SnapshotBackend};
use clearlane_engine::{Engine, EngineKind, Options};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const BATCHES: Entry = 120;
const READERS: u64 = 3;
const SEEDS: u64 = 6;

struct Race<'b> {
    backend: &'b dyn Backend<Entry>,
    seed: u64,
    /// The newest batch that the writer knows to be visible.
    acknowledged: AtomicU64,
    /// A compaction has requested the removal of all batches up to this one. They may still be
    /// present.
    removal_requested: AtomicU64,
    /// All batches up to this one are known to have been removed.
    removed: AtomicU64,
    finished: AtomicBool,
}

impl Race<'_> {
    fn random(&self, thread: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed * 100 + thread)
    }

    fn write(&self) {
        let _finish = SetOnDrop(&self.finished);
        let mut random = self.random(0);
        for number in 1..=BATCHES {
            batches::write(self.backend, number).unwrap();
            self.acknowledged.store(number, SeqCst);
            yield_randomly(&mut random);
        }
    }

    fn commit(&self) {
        let mut random = self.random(1);
        let mut now = Duration::ZERO;
        while !self.finished.load(SeqCst) {
            now += Duration::from_millis(random.random_range(0..150));
            if random.random_ratio(1, 3) {
                self.backend.commit().unwrap();
            } else {
                self.backend.commit_if_due(now).unwrap();
            }
            yield_randomly(&mut random);
        }
    }

    fn compact(&self) {
        let mut random = self.random(2);
        while !self.finished.load(SeqCst) {
            self.remove_half();
            if random.random_ratio(1, 3) {
                self.backend.defragment().unwrap();
            }
            yield_randomly(&mut random);
        }
    }

    fn remove_half(&self) {
        let upto = self.acknowledged.load(SeqCst) / 2;
        let removed = self.removed.load(SeqCst);
        let records: Vec<_> = (removed + 1..=upto).flat_map(batches::records).collect();
        self.removal_requested.store(upto.max(removed), SeqCst);
        self.backend.remove(&records).unwrap();
        self.backend.commit().unwrap();
        self.removed.store(upto.max(removed), SeqCst);
    }

    fn read(&self, reader: u64) {
        let mut random = self.random(10 + reader);
        let mut newest = 0;
        let mut last = false;
        while !last {
            last = self.finished.load(SeqCst);
            newest = self.read_once(newest, &mut random);
            yield_randomly(&mut random);
        }
        assert_eq!(newest, BATCHES, "the last read opened behind the last batch");
    }

    fn read_once(&self, newest_before: Entry, random: &mut StdRng) -> Entry {
        let newest_at_least = self.acknowledged.load(SeqCst).max(newest_before);
        let removed = self.removed.load(SeqCst);
        let tx = self.backend.begin_read();
        let seen = batches::inspect(&*tx);
        assert!(seen.newest >= newest_at_least, "batch {newest_at_least} was acknowledged");
        assert!(seen.oldest > removed, "batch {} was removed up to {removed}", seen.oldest);
        let asked = self.removal_requested.load(SeqCst);
        assert!(
            seen.oldest <= asked + 1,
            "batch {} is gone, removal was requested up to {asked}",
            asked + 1
        );
        self.stay_open(&*tx, &seen, random);
        seen.newest
    }

    /// Keeps the read open for a short or a long time, and then checks that its state is unchanged.
    /// In eras 3.1 and 3.2 the time is always short, because an open read blocks the writer.
    fn stay_open(&self, tx: &dyn ReadTx, seen: &InspectedState, random: &mut StdRng) {
        let holds_the_writer_up = matches!(self.backend.era(), Era::V3_1 | Era::V3_2);
        if !holds_the_writer_up && random.random_ratio(1, 4) {
            let over = || self.acknowledged.load(SeqCst) >= seen.newest + 10;
            while !over() && !self.finished.load(SeqCst) {
                thread::yield_now();
            }
        }
        yield_randomly(random);
        assert_eq!(batches::inspect(tx), *seen, "a state does not change");
    }
}

fn yield_randomly(random: &mut StdRng) {
    (0..random.random_range(0..4)).for_each(|_| thread::yield_now());
}

/// Returns a configuration that depends on the seed: with a low limit of pending operations, with a
/// low limit of pending bytes, or with the defaults.
fn config(seed: u64) -> Config {
    let defaults = Config::default();
    match seed % 3 {
        0 => Config { batch_limit: 20, ..defaults },
        1 => Config { pending_bytes_max: 3_000, ..defaults },
        _ => defaults,
    }
}

fn run(era: Era, engine: Arc<dyn Engine>, seed: u64) {
    let _run = OnPanic(format!("era {era} on {}, seed {seed}", engine.kind()));
    let backend = support::open(era, Arc::clone(&engine), config(seed));
    let race = Race {
        backend: &*backend,
        seed,
        acknowledged: AtomicU64::new(0),
        removal_requested: AtomicU64::new(0),
        removed: AtomicU64::new(0),
        finished: AtomicBool::new(false),
    };
    thread::scope(|threads| {
        let race = &race;
        (0..READERS).for_each(|reader| drop(threads.spawn(move || race.read(reader))));
        threads.spawn(|| race.commit());
        threads.spawn(|| race.compact());
        threads.spawn(|| race.write());
    });
    backend.commit().unwrap();
    drop(backend);
    let reopened = support::open(era, engine, Config::default());
    assert_eq!(
        batches::inspect(&*reopened.begin_read()).newest,
        BATCHES,
        "and all of it is durable"
    );
}

fn run_seeds(era: Era) {
    (0..SEEDS).for_each(|seed| run(era, memory_engine(), seed));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    run(era, clearlane_engine::open(EngineKind::Bolt, &path, Options::default()).unwrap(), 0);
}

#[test]
fn era_3_1_shows_whole_batches_that_stay() {
    run_seeds(Era::V3_1);
}

#[test]
fn era_3_2_shows_whole_batches_that_stay() {
    run_seeds(Era::V3_2);
}

#[test]
fn era_3_4_shows_whole_batches_that_stay() {
    run_seeds(Era::V3_4);
}

#[test]
fn era_3_5_shows_whole_batches_that_stay() {
    run_seeds(Era::V3_5);
}

#[test]
fn era_clearlane_shows_whole_batches_that_stay() {
    run_seeds(Era::Clearlane);
}

#[test]
fn the_payload_of_a_read_belongs_to_its_records() {
    let hook = support::save_consistent_index();
    let backend = SnapshotBackend::open(memory_engine(), Config::default(), hook, 0).unwrap();
    let finished = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let _finish = SetOnDrop(&finished);
            (1..=4 * BATCHES).for_each(|number| batches::write(&backend, number).unwrap());
        });
        threads.spawn(|| {
            while !finished.load(SeqCst) {
                backend.commit().unwrap();
            }
        });
        while !finished.load(SeqCst) {
            let tx = backend.begin_snapshot_read();
            assert_eq!(batches::inspect(&tx).newest, tx.payload);
        }
    });
}
