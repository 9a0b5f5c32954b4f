//! One slow read and one put: how long does the put wait, and for which request?
//!
//! ```text
//! cargo run --release --example slow_read -- 3.2,clearlane bolt /tmp/clearlane-slow-read
//! ```
//!
//! Each era has a store in DIRECTORY/ERA. With a single era, the store is in DIRECTORY.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its result")]

use std::error::Error;
use std::ops::ControlFlow::Continue;
use std::time::{Duration, Instant};
use std::{fs, path::Path, sync::Barrier, thread};

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::{Registry, TaskLabel, waited_ns};
use clearlane_engine::{Bucket, EngineKind, KeyRange, Options};

/// Returns how long the put waited for locks.
fn run(era: Era, engine: EngineKind, directory: &Path) -> Result<Duration, Box<dyn Error>> {
    let engine = clearlane_engine::open(engine, directory, Options::default())?;
    let locks = Registry::new();
    let config = Config { locks: locks.clone(), ..Config::default() };
    let store = era.open(engine, config, PreCommit::none(), ())?;

    let mut records = 0_u64; // The keys are 1, 2, 3 ...; an existing store gets more.
    store.begin_read().range(Bucket::Key, KeyRange::ALL, &mut |_, _| {
        records += 1;
        Continue(())
    })?;
    let put = |revision: u64| -> clearlane_backend::Result<()> {
        let mut tx = store.begin_write()?;
        tx.put(Bucket::Key, &revision.to_be_bytes(), vec![7; 1024].into())?;
        tx.end(()).map(drop)
    };
    (records + 1..=records + 20_000).try_for_each(put)?;
    store.commit()?;

    let reading = Barrier::new(2);
    let waited = thread::scope(|threads| -> clearlane_backend::Result<Duration> {
        let reader = threads.spawn(|| {
            let _as = TaskLabel::named("slow read").enter();
            let (tx, mut bytes) = (store.begin_read(), 0);
            reading.wait();
            let read = tx.range(Bucket::Key, KeyRange::ALL, &mut |_, value| {
                bytes += value.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                Continue(())
            });
            read.map(|()| bytes)
        });
        reading.wait();
        let _as = TaskLabel::named("put").enter();
        let (start, before_ns) = (Instant::now(), waited_ns());
        put(records + 20_001)?;
        let waited = Duration::from_nanos(waited_ns() - before_ns);
        println!("era {era}: the put during the slow read took {:?}", start.elapsed());
        reader.join().expect("the reader does not panic")?;
        Ok(waited)
    })?;
    for lock in locks.report() {
        for b in lock.blame.iter().filter(|blame| blame.total_ns > 0) {
            println!(
                "{} waited {} µs for {}: {}",
                b.waiter,
                b.total_ns / 1000,
                lock.name,
                b.blocker
            );
        }
    }
    Ok(waited)
}

fn run_all(eras: &str, engine: &str, directory: &Path) -> Result<(), Box<dyn Error>> {
    let engine = engine.parse()?;
    let eras = eras.split(',').map(str::parse).collect::<Result<Vec<Era>, _>>()?;
    let mut conclusion = Vec::new();
    if eras.len() > 1 {
        fs::create_dir_all(directory)?;
    }
    for era in &eras {
        let waited = match eras.len() {
            1 => run(*era, engine, directory)?,
            _ => run(*era, engine, &directory.join(era.to_string()))?,
        };
        conclusion.push(format!("{era}: the put waited {:.1} ms", waited.as_secs_f64() * 1000.0));
    }
    println!("In short: {}", conclusion.join("; "));
    Ok(())
}

fn main() {
    let words = std::env::args_os().skip(1);
    let arguments: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = match arguments.as_slice() {
        [eras, engine, directory] => run_all(eras, engine, Path::new(directory)),
        _ => Err("usage: slow_read ERA[,ERA...] ENGINE DIRECTORY".into()),
    };
    if let Err(error) = outcome {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
