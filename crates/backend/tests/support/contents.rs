//! Functions that return everything that a reader sees, or everything that an engine contains, as
//! one map. Tests compare states by these maps.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::{ReadTx, Result};
use clearlane_engine::{Bucket, Engine, KeyRange};

use super::Entry;
use super::model::Map;

/// Returns all records of all buckets, as a read transaction shows them. Also checks that whole
/// ranges, parts of ranges and single gets agree.
pub(crate) fn visible(tx: &dyn ReadTx) -> Result<Map> {
    let mut found = Map::new();
    for bucket in Bucket::ALL {
        let records = records_in(tx, bucket, KeyRange::ALL)?;
        check_parts(tx, bucket, &records)?;
        found.extend(records.into_iter().map(|(key, value)| ((bucket, key), value)));
    }
    Ok(found)
}

type Records = Vec<(Bytes, Bytes)>;

fn records_in(tx: &dyn ReadTx, bucket: Bucket, range: KeyRange<'_>) -> Result<Records> {
    let mut records = Vec::new();
    tx.range(bucket, range, &mut |key, value| {
        records.push((Bytes::copy_from_slice(key), value.to_bytes()));
        ControlFlow::Continue(())
    })?;
    Ok(records)
}

fn check_parts(tx: &dyn ReadTx, bucket: Bucket, records: &Records) -> Result<()> {
    let middle = records.len() / 2;
    let Some((key, value)) = records.get(middle) else { return Ok(()) };
    assert!(records.is_sorted_by(|a, b| a.0 < b.0), "each key once, and in order");
    let before = records_in(tx, bucket, KeyRange::new(b"", key))?;
    let behind = records_in(tx, bucket, KeyRange::starting_at(key))?;
    assert_eq!((&before[..], &behind[..]), records.split_at(middle));
    assert_eq!(records_in(tx, bucket, KeyRange::new(key, b""))?, []);
    assert_eq!(tx.get(bucket, key)?.as_ref(), Some(value));
    assert_eq!(tx.get(bucket, &[key, &b"\0"[..]].concat())?, None);
    Ok(())
}

/// Returns all records of all buckets that the engine has committed.
pub(crate) fn durable(engine: &dyn Engine) -> Map {
    let snapshot = engine.snapshot().unwrap();
    let mut found = Map::new();
    for bucket in Bucket::ALL {
        let mut keep = |key: &[u8], value: &[u8]| {
            let record = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            found.insert((bucket, record.0), record.1);
            ControlFlow::Continue(())
        };
        snapshot.scan(bucket, KeyRange::ALL, &mut keep).unwrap();
    }
    found
}

/// Returns the entry whose number is saved in a state, or 0 before the first commit.
pub(crate) fn saved_entry(state: &Map) -> Entry {
    let saved = state.get(&(Bucket::Meta, Bytes::from_static(b"consistent_index")));
    saved.map_or(0, |saved| std::str::from_utf8(saved).unwrap().parse().unwrap())
}
