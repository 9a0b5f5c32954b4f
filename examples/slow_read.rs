//! One slow read and one put: how long does the put wait, and for which request?
//!
//! ```text
//! cargo run --release --example slow_read -- 3.2 bolt /tmp/clearlane-3.2
//! cargo run --release --example slow_read -- clearlane bolt /tmp/clearlane
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its result")]

use std::error::Error;
use std::ops::ControlFlow::Continue;
use std::{path::Path, sync::Barrier, thread, time::Instant};

use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::{Registry, TaskLabel};
use clearlane_engine::{Bucket, EngineKind, KeyRange, Options};

fn run(era: &str, engine: &str, directory: &str) -> Result<(), Box<dyn Error>> {
    let (era, engine): (Era, EngineKind) = (era.parse()?, engine.parse()?);
    let engine = clearlane_engine::open(engine, Path::new(directory), Options::default())?;
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
    thread::scope(|threads| -> clearlane_backend::Result<()> {
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
        let (_as, start) = (TaskLabel::named("put").enter(), Instant::now());
        put(records + 20_001)?;
        println!("era {era}: the put during the slow read took {:?}", start.elapsed());
        reader.join().expect("the reader does not panic").map(drop)
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
    Ok(())
}

fn main() {
    let words = std::env::args_os().skip(1);
    let arguments: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = match arguments.as_slice() {
        [era, engine, directory] => run(era, engine, directory),
        _ => Err("usage: slow_read ERA ENGINE DIRECTORY".into()),
    };
    if let Err(error) = outcome {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
