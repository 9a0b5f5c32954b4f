//! Numbered write transactions that let a reader distinguish a torn transaction from a whole one.
//!
//! Batch `n` adds two to four records to bucket `key`, sets a mark in two other buckets to `n`, and
//! may put or delete a flag. All values contain `n`. So a reader that sees one part of a batch can
//! check all the other parts.

use std::collections::BTreeMap;

use bytes::Bytes;
use clearlane_backend::{Backend, ReadTx, Result};
use clearlane_engine::Bucket;

use super::Entry;
use super::contents;
use super::model::Map;

const MARKS: [Bucket; 2] = [Bucket::Lease, Bucket::Meta];
const MARK: &[u8] = b"mark";
const FLAG: &[u8] = b"flag";

fn parts(number: Entry) -> u64 {
    if number == 0 { 0 } else { 2 + number % 3 }
}

/// Returns whether the flag is set after a batch. Every fourth batch changes it. There are few
/// deletes, because some eras commit at each delete.
fn flag_is_on(number: Entry) -> bool {
    number / 4 % 2 == 1
}

/// Returns the keys of the records of a batch. Batch 0 has none.
pub(crate) fn records(number: Entry) -> Vec<Bytes> {
    (0..parts(number)).map(|part| format!("{number:08}/{part}").into()).collect()
}

/// Writes a batch. Every reader that opens after this call must see it.
pub(crate) fn write(backend: &dyn Backend<Entry>, number: Entry) -> Result<()> {
    let value = Bytes::from(number.to_string());
    let mut tx = backend.begin_write()?;
    tx.put(MARKS[0], MARK, value.clone())?;
    for record in records(number) {
        tx.put(Bucket::Key, &record, value.clone())?;
    }
    match (flag_is_on(number - 1), flag_is_on(number)) {
        (false, true) => tx.put(Bucket::Auth, FLAG, value.clone())?,
        (true, false) => tx.delete(Bucket::Auth, FLAG)?,
        _ => {}
    }
    tx.put(MARKS[1], MARK, value)?;
    drop(tx.end(number)?);
    Ok(())
}

/// The state that a reader saw. It was checked to contain only whole batches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InspectedState {
    /// The newest batch, or 0 if there is none.
    pub(crate) newest: Entry,
    /// The oldest batch that compactions have not removed, or the newest plus one if there is none.
    pub(crate) oldest: Entry,
    state: Map,
}

/// Reads everything. Panics unless the state contains only whole batches.
pub(crate) fn inspect(tx: &dyn ReadTx) -> InspectedState {
    let state = contents::visible(tx).unwrap();
    let newest = mark(&state, MARKS[0]);
    assert_eq!(mark(&state, MARKS[1]), newest, "both marks are of the newest batch");
    let flag = state.contains_key(&(Bucket::Auth, Bytes::from_static(FLAG)));
    assert_eq!(flag, flag_is_on(newest), "the flag is of batch {newest}");
    let oldest = inspect_records(&state, newest);
    inspect_points(tx, newest);
    InspectedState { newest, oldest, state }
}

fn mark(state: &Map, bucket: Bucket) -> Entry {
    state.get(&(bucket, Bytes::from_static(MARK))).map_or(0, number)
}

fn number(value: &Bytes) -> Entry {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// Asserts that there are whole batches without a gap, up to the newest. Returns the oldest batch.
fn inspect_records(state: &Map, newest: Entry) -> Entry {
    let mut batches: BTreeMap<Entry, Vec<Bytes>> = BTreeMap::new();
    for ((_, key), value) in state.iter().filter(|((bucket, _), _)| *bucket == Bucket::Key) {
        batches.entry(number(value)).or_default().push(key.clone());
    }
    let oldest = batches.keys().next().copied().unwrap_or(newest + 1);
    assert!(batches.keys().copied().eq(oldest..=newest), "{:?} to {newest}", batches.keys());
    for (batch, keys) in batches {
        assert_eq!(keys, records(batch), "batch {batch} is torn");
    }
    oldest
}

/// Asserts by point reads that all records of the newest batch exist, and that no record of the
/// next batch exists.
fn inspect_points(tx: &dyn ReadTx, newest: Entry) {
    let is_there = |record: &Bytes| tx.get(Bucket::Key, record).unwrap().is_some();
    assert!(records(newest).iter().all(is_there), "batch {newest} by its keys");
    assert!(!records(newest + 1).iter().any(is_there), "nothing of batch {}", newest + 1);
}
