//! Maps numbers of the keys of a range to their records.
//!
//! The keys of a range are numbered from 0, in key order. A number takes four bytes, but a revision
//! takes sixteen. The index cannot find a key by its number. So the walk over the range stores
//! every 1,024th key as a mark. To read a record or send a key, the keys between two marks are
//! visited again. For a batch of numbers scattered over the whole range, this is one walk over the
//! index. The snapshot does not change, so a key has the same number in each walk.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_contention::YieldPoints;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{Error, RangeOptions, ReadTxn, Result, Revision, Version};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_replica::apply::KeySpan;
use clearlane_replica::walk_steps;
use prost::Message;

use super::entry::COMPARE_COST_BYTES;
use crate::read::streamed_range::range_size::{VERSION_COST_BYTES, keys_only_record};

const STEP_KEYS: u32 = 1024;

#[derive(Debug, Default)]
pub(super) struct KeyNumbers {
    marks: Vec<Box<[u8]>>,
    keys: u32,
}

impl KeyNumbers {
    /// Adds the next key. Returns its number.
    pub(super) fn add(&mut self, key: &[u8]) -> u32 {
        let number = self.keys;
        if number.is_multiple_of(STEP_KEYS) {
            self.marks.push(key.into());
        }
        let keys = number.checked_add(1);
        self.keys = keys.expect("an index of four thousand million keys does not fit in memory");
        number
    }

    /// Returns the revisions of the records, in the order of the numbers.
    pub(super) fn names_of(
        &self,
        read_txn: &dyn ReadTxn,
        request: &RangeRequest,
        numbers: &[u32],
    ) -> Result<Vec<Revision>> {
        let mut names = vec![Revision::default(); numbers.len()];
        self.visit(read_txn, request, numbers, &mut |place, _, version| {
            names[place] = version.modified;
        })?;
        Ok(names)
    }

    /// Returns the records with the fields that the index knows, encoded, in the order of the
    /// numbers.
    pub(super) fn keys_only_records_of(
        &self,
        read_txn: &dyn ReadTxn,
        request: &RangeRequest,
        numbers: &[u32],
    ) -> Result<Vec<Bytes>> {
        let mut records = vec![Bytes::new(); numbers.len()];
        self.visit(read_txn, request, numbers, &mut |place, key, version| {
            records[place] = keys_only_record(key, version).encode_to_vec().into();
        })?;
        Ok(records)
    }

    /// Visits the keys with these numbers, in key order. Passes each key with the index of its
    /// number in `numbers`. Fails if the index has lost a key.
    fn visit(
        &self,
        read_txn: &dyn ReadTxn,
        request: &RangeRequest,
        numbers: &[u32],
        visit: &mut dyn FnMut(usize, &[u8], Version),
    ) -> Result<()> {
        let span = KeySpan::new(&request.key, &request.range_end);
        let mut steps = YieldPoints::default();
        let mut wanted: Vec<(u32, u32)> = numbers.iter().copied().zip(0..).collect();
        wanted.sort_unstable_by(|a, b| {
            steps.advance(COMPARE_COST_BYTES);
            a.cmp(b)
        });
        let RangeRequest { revision, .. } = *request;
        let options = RangeOptions { revision, skip_count: true, ..RangeOptions::default() };
        for mut left in wanted.chunk_by(|(a, _), (b, _)| a / STEP_KEYS == b / STEP_KEYS) {
            let step = left[0].0 / STEP_KEYS;
            let mark = |step: u32| self.marks.get(step as usize).map(|mark| &**mark);
            let from = mark(step).ok_or_else(missing_key)?;
            let part = KeyRange { from, to: mark(step + 1).or(span.range().to) };
            let mut number = step * STEP_KEYS;
            walk_steps::visit_versions(read_txn, part, options, &mut |key, version| {
                steps.advance(VERSION_COST_BYTES);
                if let [(next, place), rest @ ..] = left
                    && *next == number
                {
                    visit(*place as usize, key, version);
                    left = rest;
                }
                number += 1;
                let is_done = left.is_empty();
                Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if !left.is_empty() {
                return Err(missing_key());
            }
        }
        Ok(())
    }
}

fn missing_key() -> Error {
    Error::Damaged("the index of a read transaction has lost a key".to_owned())
}
