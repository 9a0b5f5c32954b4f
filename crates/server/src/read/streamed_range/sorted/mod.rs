//! A range that is sorted by something else than its keys, or against their order.
//!
//! ```text
//!   walk over the index ─▶ entries of 16 bytes ─▶ sort ─▶ numbers of 4 bytes
//!                                                              │
//!        chunk ◀─ records ◀─ names ◀─ walk over the index ◀────┘  batch by batch
//! ```
//!
//! An entry has what is sorted by, the number of the key and the length of its record. All but the
//! value is in the index; values are read, and [a part of each](value_order) is kept. When the
//! order is known, only the numbers remain, and records are fetched while the answer is sent. Keys
//! alone come from the index by the same walk, but those that are sorted by value.

mod entry;
mod key_numbers;
mod value_order;

pub(super) use self::value_order::RUN_KEYS_MAX;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn, Result, Revision, Version};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::range_request::SortTarget;
use prost::Message;

use self::entry::{EntrySelection, SortEntry};
use self::key_numbers::KeyNumbers;
use self::value_order::ValueOrder;
use super::range_size::{
    NAMES_MAX, RangeSize, VERSION_COST_BYTES, is_wanted, known_len, walk_options,
};
use super::record_chunk::RecordChunk;
use crate::apply::KeySpan;
use crate::apply::range::{RecordOrder, is_filtered, without_value};
use crate::walk_steps;

/// The greatest number of batches in which records are named: each may be a walk over the index.
const BATCHES: usize = 16;
/// The keys that are kept to be sent, if a sixteenth of the answer is less.
const KEYS_ONLY_BYTES: usize = 4 << 20;
/// The cost of finding and decoding a record, in bytes read.
const RECORD_COST_BYTES: usize = 64;

pub(super) struct SortedRange {
    view: Arc<dyn ReadTxn + Send + Sync>,
    request: Box<RangeRequest>,
    order: RecordOrder,
    keys: KeyNumbers,
    /// In the order of the answer.
    numbers: Vec<u32>,
    numbers_named: usize,
    /// Of the batch that is read.
    names: Vec<Revision>,
    names_read: usize,
    /// Of the batch that is sent, if only keys are, and not sorted by value.
    keys_only: IntoIter<Bytes>,
    batch_keys: usize,
}

impl SortedRange {
    pub(super) fn collect(
        view: &Arc<dyn ReadTxn + Send + Sync>,
        request: &RangeRequest,
        order: RecordOrder,
        run_keys_max: usize,
    ) -> Result<(SortedRange, RangeSize)> {
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let limit = limit.unwrap_or(usize::MAX);
        let mut walk = SortWalk::new(&**view, request, order, limit)?;
        let (count, mut steps) = (walk.run()?, YieldPoints::default());
        let SortWalk { selection, keys, matched, .. } = walk;
        let mut entries = selection.into_sorted();
        if order.target == SortTarget::Value {
            let RecordOrder { descends, .. } = order;
            let order = ValueOrder { view: &**view, request, keys: &keys, descends, run_keys_max };
            order.sort(&mut entries, limit)?;
        }
        entries.truncate(limit);
        let matched = if is_filtered(request) { matched } else { count };
        let mut size = RangeSize { matched, count, ..RangeSize::default() };
        let mut numbers = Vec::with_capacity(entries.len());
        for entry in entries {
            steps.advance(size_of::<SortEntry>());
            size.add(entry.encoded_len as usize);
            numbers.push(entry.number);
        }
        // Keys may be long. A sixteenth of all is less than what the index has of them.
        let average = size.encoded_bytes.checked_div(size.records).unwrap_or(0).max(1);
        let keys_max =
            if request.keys_only { KEYS_ONLY_BYTES / average as usize } else { usize::MAX };
        let batch_keys = batch_keys(run_keys_max.min(keys_max).max(1), numbers.len());
        let sorted = SortedRange {
            view: Arc::clone(view),
            request: Box::new(request.clone()),
            order,
            keys,
            numbers,
            numbers_named: 0,
            names: Vec::new(),
            names_read: 0,
            keys_only: IntoIter::default(),
            batch_keys,
        };
        Ok((sorted, size))
    }

    pub(super) fn read(&mut self, chunk: &mut RecordChunk) -> Result<()> {
        let mut flow = ControlFlow::Continue(());
        while flow.is_continue() && self.begin_batch()? {
            flow = match self.is_from_index() {
                true => self.send_keys(chunk),
                false => self.read_records(chunk)?,
            };
        }
        Ok(())
    }

    fn is_from_index(&self) -> bool {
        self.request.keys_only && self.order.target != SortTarget::Value
    }

    /// Returns whether something of a batch has not been read.
    fn begin_batch(&mut self) -> Result<bool> {
        if self.names_read == self.names.len() && self.keys_only.len() == 0 {
            let left = &self.numbers[self.numbers_named..];
            let batch = &left[..left.len().min(self.batch_keys)];
            let SortedRange { view, request, keys, .. } = &*self;
            if self.is_from_index() {
                self.keys_only = keys.keys_only_records_of(&**view, request, batch)?.into_iter();
            } else {
                self.names = keys.names_of(&**view, request, batch)?;
            }
            (self.names_read, self.numbers_named) = (0, self.numbers_named + batch.len());
        }
        Ok(self.names_read < self.names.len() || self.keys_only.len() > 0)
    }

    /// Breaks when the chunk is full.
    fn read_records(&mut self, chunk: &mut RecordChunk) -> Result<ControlFlow<()>> {
        let (mut flow, mut stripped) = (ControlFlow::Continue(()), Ok(()));
        let mut steps = YieldPoints::default();
        self.view.visit_named_records(&self.names[self.names_read..], &mut |record| {
            // Also what is left out of it.
            steps.advance(record.len());
            let added = match answer_record(&self.request, record) {
                Ok(record) => chunk.add(record).inspect(|_| self.names_read += 1),
                Err(error) => {
                    stripped = Err(error);
                    Ok(ControlFlow::Break(()))
                }
            };
            flow = added.unwrap_or(ControlFlow::Break(()));
            flow
        })?;
        stripped.map(|()| flow)
    }

    /// Breaks when the chunk is full.
    fn send_keys(&mut self, chunk: &mut RecordChunk) -> ControlFlow<()> {
        while let Some(record) = self.keys_only.as_slice().first() {
            let Ok(flow) = chunk.add(record.clone()) else { return ControlFlow::Break(()) };
            self.keys_only.next();
            flow?;
        }
        ControlFlow::Continue(())
    }
}

/// The number of keys that are named in one walk, of so many.
fn batch_keys(run_keys_max: usize, keys: usize) -> usize {
    run_keys_max.max(keys.div_ceil(BATCHES))
}

/// What is sent of a record, as it is stored. Without its value only if it is sorted by that.
fn answer_record(request: &RangeRequest, record: Bytes) -> Result<Bytes> {
    if !request.keys_only {
        return Ok(record);
    }
    let record = without_value(value_order::decode(record)?, true);
    Ok(record.encode_to_vec().into())
}

/// The walk over the range that is to be sorted.
struct SortWalk<'r> {
    view: &'r dyn ReadTxn,
    request: &'r RangeRequest,
    order: RecordOrder,
    keys: KeyNumbers,
    selection: EntrySelection,
    /// Number of keys that pass the filters.
    matched: u64,
    /// What lacks something that only the record has, and the names of the records.
    unread: Vec<SortEntry>,
    names: Vec<Revision>,
    steps: YieldPoints,
}

impl<'r> SortWalk<'r> {
    fn new(
        view: &'r dyn ReadTxn,
        request: &'r RangeRequest,
        order: RecordOrder,
        limit: usize,
    ) -> Result<SortWalk<'r>> {
        let span = KeySpan::new(&request.key, &request.range_end);
        // At the newest revision, where the index knows it.
        let options = RangeOptions { count_only: true, ..RangeOptions::default() };
        let keys = view.visit_records(span.range(), options, &mut |_| ControlFlow::Break(()))?;
        let is_open: fn(u64) -> bool = match (order.target, order.descends) {
            (SortTarget::Value, true) => |digit| value_order::is_open(digit, true),
            (SortTarget::Value, false) => |digit| value_order::is_open(digit, false),
            _ => |_| false,
        };
        let selection = EntrySelection::new(limit, keys as usize, is_open);
        Ok(SortWalk {
            view,
            request,
            order,
            keys: KeyNumbers::default(),
            selection,
            matched: 0,
            unread: Vec::new(),
            names: Vec::new(),
            steps: YieldPoints::default(),
        })
    }

    /// Returns the number of keys in the range.
    fn run(&mut self) -> Result<u64> {
        let (view, request) = (self.view, self.request);
        let span = KeySpan::new(&request.key, &request.range_end);
        let options = walk_options(request);
        let count =
            walk_steps::visit_versions(view, span.range(), options, &mut |key, version| {
                self.visit(key, version).map(ControlFlow::Continue)
            })?;
        self.read_unread()?;
        Ok(count)
    }

    fn visit(&mut self, key: &[u8], version: Version) -> Result<()> {
        self.steps.advance(VERSION_COST_BYTES);
        let number = self.keys.add(key);
        if !is_wanted(self.request, version) {
            return Ok(());
        }
        self.matched += 1;
        let is_in_record = self.order.target == SortTarget::Value;
        let known_len = known_len(self.request, key, version).filter(|_| !is_in_record);
        let field = self.field(number, version);
        if let Some(length) = known_len {
            self.selection.add(SortEntry { field, number, encoded_len: entry_len(length) });
            return Ok(());
        }
        self.unread.push(SortEntry { field, number, encoded_len: 0 });
        self.names.push(version.modified);
        if self.names.len() == NAMES_MAX { self.read_unread() } else { Ok(()) }
    }

    /// 0 for a value, which is not in the index.
    fn field(&self, number: u32, version: Version) -> u64 {
        let field = match self.order.target {
            SortTarget::Key => u64::from(number),
            SortTarget::Version => version.version as u64,
            SortTarget::Create => version.created as u64,
            SortTarget::Mod => version.modified.main as u64,
            SortTarget::Value => 0,
        };
        if self.order.descends { !field } else { field }
    }

    fn read_unread(&mut self) -> Result<()> {
        let SortWalk { view, request, order, selection, steps, .. } = self;
        let mut unread = self.unread.drain(..);
        let mut decoded = Ok(());
        view.visit_named_records(&self.names, &mut |record| {
            steps.advance(record.len() + RECORD_COST_BYTES);
            let Some(entry) = unread.next() else { return ControlFlow::Break(()) };
            match with_record(request, *order, entry, record) {
                Ok(entry) => selection.add(entry),
                Err(error) => {
                    decoded = Err(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        drop(unread);
        self.names.clear();
        decoded
    }
}

fn with_record(
    request: &RangeRequest,
    order: RecordOrder,
    entry: SortEntry,
    record: Bytes,
) -> Result<SortEntry> {
    let encoded_len = entry_len(record.len());
    if order.target != SortTarget::Value {
        return Ok(SortEntry { encoded_len, ..entry });
    }
    let record = value_order::decode(record)?;
    let field = value_order::digit(&record.value, order.descends);
    let encoded_len = match request.keys_only {
        true => entry_len(without_value(record, true).encoded_len()),
        false => encoded_len,
    };
    Ok(SortEntry { field, encoded_len, ..entry })
}

/// A record is no longer than a request may be.
fn entry_len(record: usize) -> u32 {
    u32::try_from(record).unwrap_or(u32::MAX)
}
