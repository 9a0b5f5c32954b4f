//! The order of values that are not in memory.
//!
//! An entry has a *digit* of its value: seven bytes as a number, and how many bytes there were. It
//! decides the order of most. Entries with the same digit are a *run*, and their records are read
//! again for what is behind it:
//!
//! * A short run is sorted by *heads* of 64 bytes. What is equal in them, too, is read for the
//!   place where its values part, and sorted by the heads behind that place.
//! * For a long run that place is looked for first, and its entries get the digits behind it.
//!
//! Beside the entries this takes [`RUN_KEYS_MAX`] heads (4 MiB), the value that others are compared
//! with, and the one that is read.

use std::cmp::Ordering;
use std::ops::{ControlFlow, Range};

use clearlane_mvcc::{Error, ReadTxn, Result, Revision};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::entry::{self, SortEntry};
use super::key_numbers::KeyNumbers;

const DIGIT_BYTES: usize = 7;
const HEAD_BYTES: usize = 64;
/// The greatest number of keys of a short run, and of those that are named in one walk.
pub(crate) const RUN_KEYS_MAX: usize = 32 << 10;
/// The cost of finding and decoding a record, in bytes read.
const RECORD_COST_BYTES: usize = 64;

/// What a value has behind its first `from` bytes, as a number that is ordered as these bytes are.
pub(super) fn digit(value: &[u8], from: usize, descends: bool) -> u64 {
    let rest = rest_of(value, from);
    let mut bytes = [0; DIGIT_BYTES + 1];
    let length = rest.len().min(DIGIT_BYTES);
    bytes[..length].copy_from_slice(&rest[..length]);
    bytes[DIGIT_BYTES] = rest.len().min(DIGIT_BYTES + 1) as u8;
    let digit = u64::from_be_bytes(bytes);
    if descends { !digit } else { digit }
}

/// Whether values with this digit may differ behind it.
pub(super) fn is_open(digit: u64, descends: bool) -> bool {
    let digit = if descends { !digit } else { digit };
    digit as u8 as usize > DIGIT_BYTES
}

fn rest_of(value: &[u8], from: usize) -> &[u8] {
    value.get(from..).unwrap_or_default()
}

/// Entries whose values are equal in the first `from` bytes, and one behind the other.
#[derive(Debug)]
struct Run {
    entries: Range<usize>,
    from: usize,
}

pub(super) struct ValueOrder<'r> {
    pub(super) view: &'r dyn ReadTxn,
    pub(super) request: &'r RangeRequest,
    pub(super) keys: &'r KeyNumbers,
    pub(super) descends: bool,
    pub(super) run_keys_max: usize,
}

impl ValueOrder<'_> {
    /// Sorts what is sorted by its first digit. Only the first `wanted` are to be in their places.
    pub(super) fn sort(&self, entries: &mut [SortEntry], wanted: usize) -> Result<()> {
        let mut steps = YieldPoints::default();
        let mut sorted_by_digit = vec![Run { entries: 0..entries.len(), from: DIGIT_BYTES }];
        while let Some(part) = sorted_by_digit.pop() {
            let (mut short, mut short_keys) = (Vec::new(), 0);
            let mut at = part.entries.start;
            while at < part.entries.end.min(wanted) {
                let field = entries[at].field;
                let ties = entries[at..part.entries.end].iter();
                let count = ties.take_while(|entry| entry.field == field).count();
                let run = Run { entries: at..at + count, from: part.from };
                at += count;
                steps.advance(count * size_of::<SortEntry>());
                if count == 1 || !is_open(field, self.descends) {
                    continue;
                }
                if count > self.run_keys_max {
                    sorted_by_digit.extend(self.sort_by_next_digit(entries, run)?);
                    continue;
                }
                if short_keys + count > self.run_keys_max {
                    self.sort_short(entries, &std::mem::take(&mut short))?;
                    short_keys = 0;
                }
                short_keys += count;
                short.push(run);
            }
            self.sort_short(entries, &short)?;
        }
        Ok(())
    }

    /// `None` if all values of the run are equal.
    fn sort_by_next_digit(&self, entries: &mut [SortEntry], run: Run) -> Result<Option<Run>> {
        let entries = &mut entries[run.entries.clone()];
        let mut parting = PartingPlace::new(run.from);
        for part in entries.chunks(self.run_keys_max) {
            self.visit_values(&self.names_of(part)?, &mut |_, value| parting.add(value))?;
        }
        let Some(from) = parting.place else { return Ok(None) };
        for part in entries.chunks_mut(self.run_keys_max) {
            self.visit_values(&self.names_of(part)?, &mut |at, value| {
                part[at].field = digit(value, from, self.descends);
            })?;
        }
        entry::sort(entries);
        Ok(Some(Run { entries: run.entries, from: from + DIGIT_BYTES }))
    }

    /// Together the runs are short, too.
    fn sort_short(&self, entries: &mut [SortEntry], runs: &[Run]) -> Result<()> {
        let named = runs.iter().flat_map(|run| &entries[run.entries.clone()]);
        let named: Vec<SortEntry> = named.copied().collect();
        let mut names = self.names_of(&named)?;
        let mut names = &mut names[..];
        for run in runs {
            let entries = &mut entries[run.entries.clone()];
            let (of_run, rest) = std::mem::take(&mut names).split_at_mut(entries.len());
            names = rest;
            let mut open = vec![Run { entries: 0..entries.len(), from: run.from }];
            while let Some(Run { entries: ties, from }) = open.pop() {
                let equal_in_heads = self.sort_by_heads(
                    &mut entries[ties.clone()],
                    &mut of_run[ties.clone()],
                    from,
                )?;
                for equal in equal_in_heads {
                    let equal = ties.start + equal.start..ties.start + equal.end;
                    let mut parting = PartingPlace::new(from + HEAD_BYTES);
                    let names = &of_run[equal.clone()];
                    self.visit_values(names, &mut |_, value| parting.add(value))?;
                    open.extend(parting.place.map(|from| Run { entries: equal, from }));
                }
            }
        }
        Ok(())
    }

    /// Returns where the values may differ behind their heads.
    fn sort_by_heads(
        &self,
        entries: &mut [SortEntry],
        names: &mut [Revision],
        from: usize,
    ) -> Result<Vec<Range<usize>>> {
        let mut heads = Vec::with_capacity(entries.len());
        self.visit_values(names, &mut |at, value| {
            heads.push((Head::of(value, from), entries[at], names[at]));
        })?;
        let mut steps = YieldPoints::default();
        heads.sort_unstable_by(|(a, a_entry, _), (b, b_entry, _)| {
            steps.advance(HEAD_BYTES);
            let order = a.cmp(b);
            let order = if self.descends { order.reverse() } else { order };
            order.then(a_entry.number.cmp(&b_entry.number))
        });
        for (place, (_, entry, name)) in heads.iter().enumerate() {
            (entries[place], names[place]) = (*entry, *name);
        }
        let (mut at, mut open) = (0, Vec::new());
        for ties in heads.chunk_by(|(a, ..), (b, ..)| a == b) {
            if ties.len() > 1 && ties[0].0.is_open {
                open.push(at..at + ties.len());
            }
            at += ties.len();
        }
        Ok(open)
    }

    fn names_of(&self, entries: &[SortEntry]) -> Result<Vec<Revision>> {
        let numbers: Vec<u32> = entries.iter().map(|entry| entry.number).collect();
        self.keys.names_of(self.view, self.request, &numbers)
    }

    /// Visits the values in the order of the names, with the places of these.
    fn visit_values(&self, names: &[Revision], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let (mut places, mut decoded) = (0.., Ok(()));
        let mut steps = YieldPoints::default();
        self.view.visit_named_records(names, &mut |record| {
            steps.advance(record.len() + RECORD_COST_BYTES);
            decoded = decode(record).map(|record| {
                places.by_ref().take(1).for_each(|place| visit(place, &record.value));
            });
            if decoded.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        decoded
    }
}

pub(super) fn decode(record: bytes::Bytes) -> Result<KeyValue> {
    KeyValue::decode(record).map_err(|error| Error::Damaged(format!("a record: {error}")))
}

/// The bytes of a value from some place on.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    bytes: Box<[u8]>,
    /// There are more bytes.
    is_open: bool,
}

impl Head {
    fn of(value: &[u8], from: usize) -> Head {
        let rest = rest_of(value, from);
        let bytes = rest[..rest.len().min(HEAD_BYTES)].into();
        Head { bytes, is_open: rest.len() > HEAD_BYTES }
    }

    fn cmp(&self, other: &Head) -> Ordering {
        self.bytes.cmp(&other.bytes).then(self.is_open.cmp(&other.is_open))
    }
}

/// Finds the first place at which values differ or one of them ends.
struct PartingPlace {
    from: usize,
    first: Option<Box<[u8]>>,
    /// `None` as long as all are equal.
    place: Option<usize>,
}

impl PartingPlace {
    /// The values are equal in their first `from` bytes.
    fn new(from: usize) -> PartingPlace {
        PartingPlace { from, first: None, place: None }
    }

    fn add(&mut self, value: &[u8]) {
        let rest = rest_of(value, self.from);
        let Some(first) = &self.first else {
            self.first = Some(rest.into());
            return;
        };
        if **first == *rest {
            return;
        }
        let equal = first.iter().zip(rest).take_while(|(a, b)| a == b).count();
        let place = self.from + equal;
        self.place = Some(self.place.map_or(place, |before| before.min(place)));
    }
}
