//! A scan of the tree with changes laid over it.
//!
//! The writer lays its own uncommitted changes over the tree, a snapshot lays over it what later
//! commits replaced. Both are the same merge of two ordered sequences, done a chunk at a time so
//! that memory stays bounded and a snapshot asks its record *after* it has read the tree.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;

use super::tree::{storage_error, tree_key};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::interface::{KeyRange, Visitor};

/// A chunk ends when it has this many records, or this many bytes.
const CHUNK_RECORDS_MAX: usize = 256;
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Changes from the first key (included) up to the bound, in key order: a value that hides the
/// tree's, or `None` for a key that is not there.
pub(super) type Changes = Vec<(Bytes, Option<Bytes>)>;

/// Visits a bucket's range as the tree has it, changed by what `changes` returns for each
/// stretch of keys. `changes` is asked after the stretch was read from the tree.
pub(super) fn scan_merged(
    tree: &sled::Tree,
    bucket: Bucket,
    range: KeyRange<'_>,
    changes: &mut dyn FnMut(&Bytes, Bound<&Bytes>) -> Changes,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let end = range.to.map_or_else(|| after_bucket(bucket), |to| tree_key(bucket, to));
    let mut from = tree_key(bucket, range.from);
    loop {
        let (mut records, mut bytes, mut last) = (Vec::new(), 0, None);
        let keys = (Bound::Included(&from[..]), Bound::Excluded(&end[..]));
        for record in tree.range::<&[u8], _>(keys) {
            let (key, value) = record.map_err(storage_error)?;
            bytes += key.len() + value.len();
            records.push((Bytes::copy_from_slice(&key), value));
            if records.len() >= CHUNK_RECORDS_MAX || bytes >= CHUNK_BYTES_MAX {
                last = records.last().map(|(key, _)| key.clone());
                break;
            }
        }
        // A full chunk speaks for the keys up to its last one, another for all that are left.
        let until = last.as_ref().map_or(Bound::Excluded(&end), Bound::Included);
        let changed = changes(&from, until);
        if visit_merged(records, changed, visit).is_break() {
            return Ok(());
        }
        match last {
            Some(last) => from = [&last[..], &[0]].concat().into(),
            None => return Ok(()),
        }
    }
}

/// Merges two sequences in key order; where both have a key, `changed` wins.
fn visit_merged(
    records: Vec<(Bytes, sled::IVec)>,
    changed: Changes,
    visit: &mut Visitor<'_>,
) -> ControlFlow<()> {
    let mut changed = changed.into_iter().peekable();
    let mut show = |key: &Bytes, value: &[u8]| visit(&key[1..], value);
    for (key, value) in records {
        while let Some((new_key, new)) = changed.next_if(|(changed_key, _)| *changed_key < key) {
            if let Some(new) = new {
                show(&new_key, &new)?;
            }
        }
        match changed.next_if(|(changed_key, _)| *changed_key == key) {
            Some((_, Some(new))) => show(&key, &new)?,
            Some((_, None)) => {}
            None => show(&key, &value)?,
        }
    }
    for (key, new) in changed {
        if let Some(new) = new {
            show(&key, &new)?;
        }
    }
    ControlFlow::Continue(())
}

pub(super) fn after_bucket(bucket: Bucket) -> Bytes {
    Bytes::copy_from_slice(&[bucket as u8 + 1])
}
