//! Tests that stream a snapshot from each engine into every engine, and tests with damaged streams.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::stream::{Exporter, Importer};
use clearlane_engine::{Bucket, Engine, EngineKind, Error, MemoryEngine};

use crate::support::{Model, Store, apply_all, changes_of, model_after};

/// Returns a store with the records of a workload and some large records, and its model.
fn filled(kind: EngineKind) -> (Store, Model) {
    let store = Store::new(kind);
    let mut model = model_after(1, 200);
    store.commit(|txn| {
        for number in 1..=200 {
            apply_all(&changes_of(1, number), txn).unwrap();
        }
        for number in 0..5u8 {
            let value = vec![number; 400_000];
            txn.put(Bucket::Auth, &[number], &value).unwrap();
            model.records.insert((Bucket::Auth, vec![number]), value);
        }
    });
    (store, model)
}

fn export(engine: &dyn Engine) -> Vec<u8> {
    let mut exporter = Exporter::new(engine.snapshot().unwrap());
    let mut stream = Vec::new();
    while let Some(chunk) = exporter.next_chunk().unwrap() {
        assert!(chunk.len() <= 1 << 20, "a chunk of {} bytes", chunk.len());
        stream.extend_from_slice(&chunk);
    }
    stream
}

fn import(stream: &[u8], cut: usize) -> Result<(Arc<dyn Engine>, u64), Error> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut importer = Importer::new(Arc::clone(&engine))?;
    for chunk in stream.chunks(cut) {
        importer.feed(chunk)?;
    }
    Ok((engine, importer.finish()?))
}

#[test]
fn every_engine_fills_every_other() {
    for from in EngineKind::ALL {
        let (source, model) = filled(from);
        let stream = export(&*source.engine);
        for to in EngineKind::ALL {
            let copy = Store::new(to);
            let mut importer = Importer::new(Arc::clone(&copy.engine)).unwrap();
            for chunk in stream.chunks(100_000) {
                importer.feed(chunk).unwrap();
            }
            assert_eq!(importer.finish().unwrap(), model.records.len() as u64);
            model.assert_same(&*copy.engine.snapshot().unwrap(), "a copy");
            assert_eq!(copy.engine.size_in_use(), model.size());
        }
    }
}

#[test]
fn the_stream_is_of_one_commit_while_the_store_goes_on() {
    for kind in EngineKind::ALL {
        let (source, model) = filled(kind);
        let mut exporter = Exporter::new(source.engine.snapshot().unwrap());
        let mut stream = Vec::new();
        let mut number = 0u64;
        while let Some(chunk) = exporter.next_chunk().unwrap() {
            stream.extend_from_slice(&chunk);
            number += 1;
            source.delete(Bucket::Auth, "\u{4}");
            source.put(Bucket::Meta, "late", &number.to_string());
        }
        let (copy, _) = import(&stream, 50_000).unwrap();
        model.assert_same(&*copy.snapshot().unwrap(), "a copy made beside the writer");
    }
}

#[test]
fn an_empty_store_makes_a_short_stream() {
    let stream = export(&MemoryEngine::new());
    let (_, records) = import(&stream, 1).unwrap();
    assert_eq!(records, 0);
}

/// Returns a stream that is small enough to damage each of its bits: one frame of records, then the
/// trailer.
fn small_stream() -> Vec<u8> {
    let engine = MemoryEngine::new();
    let mut txn = engine.begin_write().unwrap();
    for number in 0..10u8 {
        txn.put(Bucket::Key, &[number], b"value").unwrap();
    }
    txn.commit().unwrap();
    export(&engine)
}

#[test]
fn the_cut_of_the_chunks_does_not_matter() {
    let stream = small_stream();
    for cut in 1..stream.len() {
        assert_eq!(import(&stream, cut).unwrap().1, 10);
    }
}

#[test]
fn a_stream_that_ends_early_is_refused_at_every_byte() {
    let stream = small_stream();
    for length in 0..stream.len() {
        let error = import(&stream[..length], 7).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

#[test]
fn a_stream_with_a_wrong_bit_is_refused_wherever_it_is() {
    let stream = small_stream();
    for position in 0..stream.len() * 8 {
        let mut damaged = stream.clone();
        damaged[position / 8] ^= 1 << (position % 8);
        let error = import(&damaged, 64).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "bit {position}: {error}");
    }
}

#[test]
fn a_wrong_bit_in_a_frames_head_is_noticed_before_its_body_comes() {
    const MAGIC: usize = 17;
    const HEAD: usize = 9;
    let stream = small_stream();
    for bit in MAGIC * 8..(MAGIC + HEAD) * 8 {
        let mut damaged = stream[..MAGIC + HEAD].to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let mut importer = Importer::new(Arc::new(MemoryEngine::new())).unwrap();
        assert!(importer.feed(&damaged).is_err(), "bit {bit}: the importer waits for more");
    }
}

/// Returns the chunks of the stream of a 12 MB store.
fn large_stream() -> Vec<Bytes> {
    let source = Store::new(EngineKind::Memory);
    source.commit(|txn| {
        for number in 0..30u8 {
            txn.put(Bucket::Key, &[number], &vec![number; 400_000]).unwrap();
        }
    });
    let mut exporter = Exporter::new(source.engine.snapshot().unwrap());
    std::iter::from_fn(|| exporter.next_chunk().unwrap()).collect()
}

#[test]
fn an_import_that_ended_early_leaves_a_store_that_takes_no_other() {
    let stream = large_stream();
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut importer = Importer::new(Arc::clone(&engine)).unwrap();
    for chunk in &stream[..stream.len() / 2] {
        importer.feed(chunk).unwrap();
    }
    assert!(importer.finish().is_err());
    assert!(Importer::new(engine).is_err());
}

/// An import must not commit often, because each commit is a sync. It must not keep many records
/// uncommitted, because they take memory.
#[test]
fn an_import_commits_seldom_and_keeps_little_back() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut importer = Importer::new(Arc::clone(&engine)).unwrap();
    let (mut fed, mut commits, mut committed) = (0, 0, 0);
    for chunk in large_stream() {
        importer.feed(&chunk).unwrap();
        fed += chunk.len() as u64;
        let now = engine.size_in_use();
        commits += usize::from(now > committed);
        committed = now;
        assert!(fed - committed < 2 << 20, "{committed} bytes are committed of {fed}");
    }
    assert_eq!(importer.finish().unwrap(), 30);
    assert_eq!(commits, 10, "with each third record of 400 kB, which makes it a MiB");
}

#[test]
fn what_follows_the_end_is_refused() {
    let mut stream = small_stream();
    stream.push(0);
    assert!(import(&stream, 1_000).unwrap_err().to_string().contains("follows the end"));
    stream.pop();
    let twice = stream.repeat(2);
    assert!(import(&twice, stream.len()).unwrap_err().to_string().contains("follows the end"));
}

#[test]
fn whole_frames_out_of_place_are_refused() {
    let (source, _) = filled(EngineKind::Memory);
    let mut exporter = Exporter::new(source.engine.snapshot().unwrap());
    let mut chunks = Vec::new();
    while let Some(chunk) = exporter.next_chunk().unwrap() {
        chunks.push(chunk);
    }
    assert!(chunks.len() > 5);
    let missing = [&chunks[..2], &chunks[3..]].concat();
    let doubled = [&chunks[..3], &chunks[2..]].concat();
    let mut swapped = chunks.clone();
    swapped.swap(2, 3);
    for wrong in [missing, doubled, swapped] {
        let error = import(&wrong.concat(), 1 << 20).unwrap_err();
        assert!(error.to_string().contains("records"), "{error}");
    }
}

#[test]
fn another_format_is_refused_at_once() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut importer = Importer::new(engine).unwrap();
    assert!(importer.feed(b"PK").unwrap_err().to_string().contains("not a stream"));
    assert!(importer.feed(b"").is_err(), "a refused stream stays refused");
}

#[test]
fn a_store_with_records_takes_no_stream() {
    let store = Store::new(EngineKind::Memory);
    store.put(Bucket::Meta, "a", "1");
    assert!(Importer::new(Arc::clone(&store.engine)).is_err());
}
