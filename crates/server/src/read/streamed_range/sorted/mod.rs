//! A range that is sorted by a field other than the key, or in descending order.
//!
//! ```text
//!   walk over the index ─▶ entries of 16 bytes ─▶ sort ─▶ numbers of 4 bytes
//!                                                              │
//!        chunk ◀─ records ◀─ names ◀─ walk over the index ◀────┘  batch by batch
//! ```
//!
//! An entry has the sort field, the number of the key and the length of its record. The index has
//! all sort fields except the value. Values are read, and [a part of each](value_order) is kept.
//! Once the order is known, only the numbers are kept, and records are read while the response is
//! being sent. (The *name* of a record is its revision.) A response with only keys is made from the
//! index by the same walk, unless it is sorted by value.

mod entry;
mod key_numbers;
mod value_order;

pub(super) use self::value_order::RUN_KEYS_MAX;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use clearlane_contention::YieldPoints;
use clearlane_mvcc::{RangeOptions, ReadTxn, Result, Revision, Version};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::range_request::SortTarget;
use clearlane_replica::apply::KeySpan;
use clearlane_replica::apply::range::{RecordOrder, is_filtered, without_value};
use clearlane_replica::walk_steps;
use prost::Message;

use self::entry::{EntrySelection, SortEntry};
use self::key_numbers::KeyNumbers;
use self::value_order::ValueOrder;
use super::range_size::{
    NAMES_MAX, RangeSize, VERSION_COST_BYTES, is_wanted, known_len, walk_options,
};
use super::record_chunk::RecordChunk;

/// Maximum number of batches for looking up names. Each batch may need a walk over the index.
const BATCHES: usize = 16;
/// Approximate maximum size of one batch of a keys-only response, in bytes. A batch is larger if
/// the response would otherwise need more than [`BATCHES`] batches.
const KEYS_ONLY_BYTES: usize = 4 << 20;
/// The cost of finding and decoding a record, expressed in bytes read.
const RECORD_COST_BYTES: usize = 64;

pub(super) struct SortedRange {
    read_txn: Arc<dyn ReadTxn + Send + Sync>,
    request: Box<RangeRequest>,
    order: RecordOrder,
    keys: KeyNumbers,
    /// The numbers of the keys, in the order of the response.
    numbers: Vec<u32>,
    numbers_named: usize,
    /// The names of the records of the current batch.
    names: Vec<Revision>,
    names_read: usize,
    /// The keys of the current batch, if only keys are sent and the order is not by value.
    keys_only: IntoIter<Bytes>,
    batch_keys: usize,
}

impl SortedRange {
    pub(super) fn collect(
        read_txn: &Arc<dyn ReadTxn + Send + Sync>,
        request: &RangeRequest,
        order: RecordOrder,
        run_keys_max: usize,
    ) -> Result<(SortedRange, RangeSize)> {
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let limit = limit.unwrap_or(usize::MAX);
        let mut walk = SortWalk::new(&**read_txn, request, order, limit)?;
        let (count, mut steps) = (walk.run()?, YieldPoints::default());
        let SortWalk { selection, keys, matched, .. } = walk;
        let mut entries = selection.into_sorted();
        if order.target == SortTarget::Value {
            let RecordOrder { descends, .. } = order;
            let order =
                ValueOrder { read_txn: &**read_txn, request, keys: &keys, descends, run_keys_max };
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
        // Keys may be long, so a batch of keys is limited in bytes. If a sixteenth of all keys has
        // more bytes, it is one batch: it takes less memory than all keys take in the index.
        let average = size.encoded_bytes.checked_div(size.records).unwrap_or(0).max(1);
        let keys_max =
            if request.keys_only { KEYS_ONLY_BYTES / average as usize } else { usize::MAX };
        let batch_keys = batch_keys(run_keys_max.min(keys_max).max(1), numbers.len());
        let sorted = SortedRange {
            read_txn: Arc::clone(read_txn),
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

    /// Starts the next batch if the current one is finished. Returns whether anything is left to
    /// read.
    fn begin_batch(&mut self) -> Result<bool> {
        if self.names_read == self.names.len() && self.keys_only.len() == 0 {
            let left = &self.numbers[self.numbers_named..];
            let batch = &left[..left.len().min(self.batch_keys)];
            let SortedRange { read_txn, request, keys, .. } = &*self;
            if self.is_from_index() {
                self.keys_only =
                    keys.keys_only_records_of(&**read_txn, request, batch)?.into_iter();
            } else {
                self.names = keys.names_of(&**read_txn, request, batch)?;
            }
            (self.names_read, self.numbers_named) = (0, self.numbers_named + batch.len());
        }
        Ok(self.names_read < self.names.len() || self.keys_only.len() > 0)
    }

    /// Reads records of the batch. Breaks when the chunk is full.
    fn read_records(&mut self, chunk: &mut RecordChunk) -> Result<ControlFlow<()>> {
        let (mut flow, mut stripped) = (ControlFlow::Continue(()), Ok(()));
        let mut steps = YieldPoints::default();
        self.read_txn.visit_named_records(&self.names[self.names_read..], &mut |record| {
            // Values that the response omits also cost time.
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

    /// Adds keys of the batch. Breaks when the chunk is full.
    fn send_keys(&mut self, chunk: &mut RecordChunk) -> ControlFlow<()> {
        while let Some(record) = self.keys_only.as_slice().first() {
            let Ok(flow) = chunk.add(record.clone()) else { return ControlFlow::Break(()) };
            self.keys_only.next();
            flow?;
        }
        ControlFlow::Continue(())
    }
}

/// Returns the number of keys whose names are looked up in one walk, for a response of `keys` keys.
fn batch_keys(run_keys_max: usize, keys: usize) -> usize {
    run_keys_max.max(keys.div_ceil(BATCHES))
}

/// Returns a record as it is sent. If the client wants keys only, the value is removed; that
/// happens only for a range sorted by value, because other ranges of keys are made from the index.
fn answer_record(request: &RangeRequest, record: Bytes) -> Result<Bytes> {
    if !request.keys_only {
        return Ok(record);
    }
    let record = without_value(value_order::decode(record)?, true);
    Ok(record.encode_to_vec().into())
}

/// The walk over the range that is sorted.
struct SortWalk<'r> {
    read_txn: &'r dyn ReadTxn,
    request: &'r RangeRequest,
    order: RecordOrder,
    keys: KeyNumbers,
    selection: EntrySelection,
    /// Number of keys that pass the filters.
    matched: u64,
    /// Entries that lack a value or a length, because only the record has it. `names` has the names
    /// of their records.
    unread: Vec<SortEntry>,
    names: Vec<Revision>,
    steps: YieldPoints,
}

impl<'r> SortWalk<'r> {
    fn new(
        read_txn: &'r dyn ReadTxn,
        request: &'r RangeRequest,
        order: RecordOrder,
        limit: usize,
    ) -> Result<SortWalk<'r>> {
        let span = KeySpan::new(&request.key, &request.range_end);
        // The selection gets capacity for the number of keys at the newest revision, which the
        // index knows without a walk.
        let options = RangeOptions { count_only: true, ..RangeOptions::default() };
        let keys =
            read_txn.visit_records(span.range(), options, &mut |_| ControlFlow::Break(()))?;
        let is_open: fn(u64) -> bool = match (order.target, order.descends) {
            (SortTarget::Value, true) => |digit| value_order::is_open(digit, true),
            (SortTarget::Value, false) => |digit| value_order::is_open(digit, false),
            _ => |_| false,
        };
        let selection = EntrySelection::new(limit, keys as usize, is_open);
        Ok(SortWalk {
            read_txn,
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

    /// Walks over the range. Returns the number of its keys.
    fn run(&mut self) -> Result<u64> {
        let (read_txn, request) = (self.read_txn, self.request);
        let span = KeySpan::new(&request.key, &request.range_end);
        let options = walk_options(request);
        let count =
            walk_steps::visit_versions(read_txn, span.range(), options, &mut |key, version| {
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

    /// Returns the sort field of a key. If the range is sorted by value, the result is only a
    /// placeholder, because values are not in the index.
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
        let SortWalk { read_txn, request, order, selection, steps, .. } = self;
        let mut unread = self.unread.drain(..);
        let mut decoded = Ok(());
        read_txn.visit_named_records(&self.names, &mut |record| {
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

/// Converts a record's length. The length fits into `u32`, because a record is never longer than
/// the longest accepted request.
fn entry_len(record: usize) -> u32 {
    u32::try_from(record).unwrap_or(u32::MAX)
}
