//! Everything that a reader sees, or an engine holds, as one map: for comparing states.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::{ReadTx, Result};
use clearlane_engine::{Bucket, Engine, KeyRange};

use super::Entry;
use super::model::Map;

/// All records of all buckets, as a read transaction shows them.
pub(crate) fn visible(tx: &dyn ReadTx) -> Result<Map> {
    let mut found = Map::new();
    for bucket in Bucket::ALL {
        tx.range(bucket, KeyRange::ALL, &mut |key, value| {
            found.insert((bucket, Bytes::copy_from_slice(key)), value.to_bytes());
            ControlFlow::Continue(())
        })?;
    }
    Ok(found)
}

/// All records of all buckets, as the engine has committed them.
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

/// Which entry a state says that it has reached; 0 before the first commit.
pub(crate) fn saved_entry(state: &Map) -> Entry {
    let saved = state.get(&(Bucket::Meta, Bytes::from_static(b"consistent_index")));
    saved.map_or(0, |saved| std::str::from_utf8(saved).unwrap().parse().unwrap())
}
