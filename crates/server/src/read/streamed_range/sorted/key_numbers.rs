//! The keys of a range by their numbers: which record a number means.
//!
//! A number takes four bytes where a revision takes sixteen. The index does not know the key of a
//! number, so the walk over the range leaves a mark at each [`STEP_KEYS`]th key, and goes over the
//! keys between two marks again when the record is to be fetched, or the key to be sent. For a
//! batch of numbers that lie scattered over the whole range that is one walk over the index. The
//! view does not change, and so a key has the same number in each walk.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{Error, RangeOptions, ReadTxn, Result, Revision, Version};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::RangeRequest;
use prost::Message;

use super::entry::COMPARE_COST_BYTES;
use crate::apply::KeySpan;
use crate::streamed_range::range_size::{VERSION_COST_BYTES, keys_only_record};
use crate::walk_steps;

const STEP_KEYS: u32 = 1024;

#[derive(Debug, Default)]
pub(super) struct KeyNumbers {
    marks: Vec<Box<[u8]>>,
    keys: u32,
}

impl KeyNumbers {
    /// Returns the number of the next key.
    pub(super) fn add(&mut self, key: &[u8]) -> u32 {
        let number = self.keys;
        if number.is_multiple_of(STEP_KEYS) {
            self.marks.push(key.into());
        }
        let keys = number.checked_add(1);
        self.keys = keys.expect("an index of four thousand million keys does not fit in memory");
        number
    }

    /// The revisions of the records, in the order of the numbers.
    pub(super) fn names_of(
        &self,
        view: &dyn ReadTxn,
        request: &RangeRequest,
        numbers: &[u32],
    ) -> Result<Vec<Revision>> {
        let mut names = vec![Revision::default(); numbers.len()];
        self.visit(view, request, numbers, &mut |place, _, version| {
            names[place] = version.modified;
        })?;
        Ok(names)
    }

    /// What the index knows of the keys, as it is sent, in the order of the numbers.
    pub(super) fn keys_only_records_of(
        &self,
        view: &dyn ReadTxn,
        request: &RangeRequest,
        numbers: &[u32],
    ) -> Result<Vec<Bytes>> {
        let mut records = vec![Bytes::new(); numbers.len()];
        self.visit(view, request, numbers, &mut |place, key, version| {
            records[place] = keys_only_record(key, version).encode_to_vec().into();
        })?;
        Ok(records)
    }

    /// In the order of the keys, each with the place of its number.
    fn visit(
        &self,
        view: &dyn ReadTxn,
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
            walk_steps::visit_versions(view, part, options, &mut |key, version| {
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
    Error::Damaged("the index of a view has lost a key".to_owned())
}
