//! How many puts a store completes, and the cost of each.
//!
//! **Timed** are puts of 256 B to 100,000 keys, one in each transaction, while another thread
//! commits, and a third one drops old states. There are two results: the time until the end of the
//! last put, and the time until the end of the commit after it, which includes the whole cost of
//! the puts. The puts are measured with a watchable store without watchers, and without a watchable
//! store. **Not timed:** the first put of each key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_benches::store::value;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::BenchConfig;
use crate::bench_store::{BenchStore, ThreadSignal, Writer, pod_key, random_key};
use crate::pace::processor_time;
use crate::report::Report;
use crate::watch_threads::WatchThreads;

const VALUE_SIZE: usize = 256;

pub(crate) fn measure(settings: &BenchConfig) {
    let (keys, puts) = if settings.quick { (500, 2_000) } else { (100_000, 400_000) };
    let random: Vec<Vec<u8>> = (0..keys).map(random_key).collect();
    let pods: Vec<Vec<u8>> = (0..keys).map(pod_key).collect();
    let mut report = Report::default();
    for round in 0..settings.rounds {
        for (kind, keys) in [("random", &random), ("pods", &pods)] {
            for watchable_store in ["no watchable store", "watchable store"] {
                for era in &settings.eras {
                    let figures =
                        run(*era, keys, watchable_store == "watchable store", puts, round as u64);
                    report.add(&format!("{era}, {kind} keys, {watchable_store}"), figures);
                }
            }
        }
    }
    report.finish("puts", settings, |_, _| Vec::new());
}

/// Measures one store: every key is put once, and then the timed puts follow.
fn run(
    era: Era,
    keys: &[Vec<u8>],
    with_hub: bool,
    puts: usize,
    seed: u64,
) -> Vec<(&'static str, f64)> {
    let stage = BenchStore::open(era);
    let value = value(VALUE_SIZE);
    stage.fill(keys.iter(), &value, 1_000);
    let watchable_store = with_hub.then(|| WatchThreads::new(&stage).watchable_store);
    let (due, over) = (ThreadSignal::default(), AtomicBool::new(false));
    let (mut writer, old_views) = Writer::new(&stage, watchable_store.as_deref(), &due);
    let mut choices = SmallRng::seed_from_u64(seed);
    let order: Vec<usize> = (0..puts).map(|_| choices.random_range(0..keys.len())).collect();
    let (before, start) = (processor_time(), Instant::now());
    let (put, processor, others) = std::thread::scope(|threads| {
        let committer = threads.spawn(|| {
            stage.run_commits(&due, &over);
            processor_time()
        });
        let dropper = threads.spawn(|| {
            old_views.into_iter().for_each(drop);
            processor_time()
        });
        for number in order {
            writer.put(&keys[number], &value);
        }
        let (put, processor) = (start.elapsed(), processor_time() - before);
        drop(writer);
        over.store(true, Ordering::Relaxed);
        due.notify();
        let no_panic = "a thread of the bench does not panic";
        let others = committer.join().expect(no_panic) + dropper.join().expect(no_panic);
        (put, processor, others)
    });
    let before = processor_time();
    stage.store.commit().expect("a healthy store commits");
    let (all, others) = (start.elapsed(), others + processor_time() - before);
    let per_put = |time: Duration| time.as_secs_f64() * 1e6 / puts as f64;
    vec![
        ("puts/s", puts as f64 / put.as_secs_f64()),
        ("puts/s to the commit", puts as f64 / all.as_secs_f64()),
        ("µs of the writer", per_put(processor)),
        ("µs of commits and drops", per_put(others)),
    ]
}
