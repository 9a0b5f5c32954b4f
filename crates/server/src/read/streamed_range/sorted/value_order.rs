//! Sorts by values that are not in memory.
//!
//! An entry contains a *digit* of its value: a number that consists of the first seven bytes, and
//! of a count of these bytes. The digit decides the order of most entries. Entries with the same
//! digit form a *run*, and their records are read again.
//!
//! One value of the run, chosen at random, is the *pivot*. The other values are compared with the
//! pivot and sorted by three things: whether they are less or greater; the position of the first
//! byte that differs; and some bytes from that position on, called the head. The head has 64 bytes
//! in a short run, and three bytes in a long one. Values that are equal in all three form a run
//! again. For any n values, the expected number of passes is about log n.
//!
//! In addition to the entries, the sort needs memory for [`RUN_KEYS_MAX`] heads (4 MiB), for the
//! names (revisions) of a sixteenth of the keys or of [`RUN_KEYS_MAX`] keys if these are more, for
//! the pivot, and for the value that is being read.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::ops::{ControlFlow, Range};

use clearlane_contention::YieldPoints;
use clearlane_mvcc::{Error, ReadTxn, Result, Revision};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::batch_keys;
use super::entry::{self, SortEntry};
use super::key_numbers::KeyNumbers;

const DIGIT_BYTES: usize = 7;
/// Number of bytes of a value in a digit that also contains a [`Rank`].
const RANKED_BYTES: usize = 3;
const HEAD_BYTES: usize = 64;
/// Maximum number of keys in a short run.
pub(crate) const RUN_KEYS_MAX: usize = 32 << 10;
/// The cost of finding and decoding a record, expressed in bytes read.
const RECORD_COST_BYTES: usize = 64;

/// Returns the first digit of a value, as a number that has the same order as the bytes.
pub(super) fn digit(value: &[u8], descends: bool) -> u64 {
    let digit = u64::from_be_bytes(digit_bytes(value, DIGIT_BYTES));
    if descends { !digit } else { digit }
}

/// Returns up to `max` bytes of a value, followed by their number in the last byte. If the value
/// has more bytes, the last byte is a number above all others.
fn digit_bytes(value: &[u8], max: usize) -> [u8; DIGIT_BYTES + 1] {
    let mut bytes = [0; DIGIT_BYTES + 1];
    let length = value.len().min(max);
    bytes[..length].copy_from_slice(&value[..length]);
    bytes[DIGIT_BYTES] = if value.len() > max { DIGIT_BYTES + 1 } else { length } as u8;
    bytes
}

/// Returns whether values with this digit may differ in the bytes after the digit.
pub(super) fn is_open(digit: u64, descends: bool) -> bool {
    let digit = if descends { !digit } else { digit };
    digit as u8 as usize > DIGIT_BYTES
}

fn rest_of(value: &[u8], from: usize) -> &[u8] {
    value.get(from..).unwrap_or_default()
}

/// Returns the digit of a value in a long run: its rank relative to the pivot, and three bytes from
/// the position where it differs.
fn ranked_digit(rank: Rank, rest: &[u8], descends: bool) -> u64 {
    let [b0, b1, b2, .., count] = digit_bytes(rest, RANKED_BYTES);
    let [r0, r1, r2, r3] = rank.0.to_be_bytes();
    let digit = u64::from_be_bytes([r0, r1, r2, r3, b0, b1, b2, count]);
    if descends { !digit } else { digit }
}

fn rank_in(digit: u64, descends: bool) -> Rank {
    let digit = if descends { !digit } else { digit };
    Rank((digit >> u32::BITS) as u32)
}

/// The position of a value relative to the pivot of its run, as a number that has the same order as
/// the values. The earlier a value differs from the pivot, the farther its rank is from the pivot's
/// rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u32);

impl Rank {
    const PIVOT: u32 = 1 << 31;

    fn of(value: &[u8], pivot: &[u8]) -> Rank {
        // The length is limited so that it fits into a rank. Values that differ only after the
        // limit are compared with the next pivot.
        let common = || common_len(value, pivot).min(Self::PIVOT as usize - 2) as u32;
        Rank(match value.cmp(pivot) {
            Ordering::Less => common(),
            Ordering::Equal => Self::PIVOT,
            Ordering::Greater => u32::MAX - common(),
        })
    }

    /// Returns the length of the common prefix of the value and the pivot, at most 2^31 - 2 bytes.
    /// Returns `usize::MAX` if the value equals the pivot.
    fn common(self) -> usize {
        match self.0.cmp(&Self::PIVOT) {
            Ordering::Less => self.0 as usize,
            Ordering::Equal => usize::MAX,
            Ordering::Greater => (u32::MAX - self.0) as usize,
        }
    }
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks_exact(HEAD_BYTES).zip(b.chunks_exact(HEAD_BYTES));
    let from = HEAD_BYTES * blocks.take_while(|(a, b)| a == b).count();
    let rest = rest_of(a, from).iter().zip(rest_of(b, from));
    from + rest.take_while(|(a, b)| a == b).count()
}

/// Entries whose values are equal in the first `from` bytes.
#[derive(Debug)]
struct Run {
    entries: Range<usize>,
    from: usize,
}

/// Entries that are sorted by their digits.
struct SortedPart {
    entries: Range<usize>,
    /// The offset in each value from which it was compared with the pivot. `None` if the digits
    /// were made without a pivot, from the first bytes of the values.
    pivot_from: Option<usize>,
}

pub(super) struct ValueOrder<'r> {
    pub(super) read_txn: &'r dyn ReadTxn,
    pub(super) request: &'r RangeRequest,
    pub(super) keys: &'r KeyNumbers,
    pub(super) descends: bool,
    pub(super) run_keys_max: usize,
}

impl ValueOrder<'_> {
    /// Completes the order of entries that are sorted by their first digit. Only the first `wanted`
    /// entries need to be at their final positions.
    pub(super) fn sort(&self, entries: &mut [SortEntry], wanted: usize) -> Result<()> {
        let mut steps = YieldPoints::default();
        let named_max = batch_keys(self.run_keys_max, entries.len());
        let mut parts = vec![SortedPart { entries: 0..entries.len(), pivot_from: None }];
        while let Some(part) = parts.pop() {
            let (mut short, mut short_keys) = (Vec::new(), 0);
            let mut at = part.entries.start;
            while at < part.entries.end.min(wanted) {
                let field = entries[at].field;
                let ties = entries[at..part.entries.end].iter();
                let count = ties.take_while(|entry| entry.field == field).count();
                let run = Run { entries: at..at + count, from: self.end_of(field, &part) };
                at += count;
                steps.advance(count * size_of::<SortEntry>());
                if count == 1 || !is_open(field, self.descends) {
                    continue;
                }
                if count > self.run_keys_max {
                    parts.push(self.sort_long(entries, run, named_max)?);
                    continue;
                }
                if short_keys + count > named_max {
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

    /// Returns the number of leading bytes that are equal in all values with this digit.
    fn end_of(&self, field: u64, part: &SortedPart) -> usize {
        let Some(from) = part.pivot_from else { return DIGIT_BYTES };
        let common = rank_in(field, self.descends).common();
        from.saturating_add(common).saturating_add(RANKED_BYTES)
    }

    fn sort_long(
        &self,
        entries: &mut [SortEntry],
        run: Run,
        named_max: usize,
    ) -> Result<SortedPart> {
        let Run { entries: range, from } = run;
        let entries = &mut entries[range.clone()];
        let mut pivot = Vec::new();
        let chosen = pivot_place(entries.len());
        self.visit_values(&self.names_of(&entries[chosen..=chosen])?, &mut |_, value| {
            pivot.extend_from_slice(rest_of(value, from));
        })?;
        for part in entries.chunks_mut(named_max) {
            self.visit_values(&self.names_of(part)?, &mut |at, value| {
                let value = rest_of(value, from);
                let rank = Rank::of(value, &pivot);
                let behind = rest_of(value, rank.common());
                part[at].field = ranked_digit(rank, behind, self.descends);
            })?;
        }
        entry::sort(entries);
        Ok(SortedPart { entries: range, pivot_from: Some(from) })
    }

    /// Sorts short runs. Their names are looked up in one walk over the index.
    fn sort_short(&self, entries: &mut [SortEntry], runs: &[Run]) -> Result<()> {
        let named = runs.iter().flat_map(|run| &entries[run.entries.clone()]);
        let named: Vec<SortEntry> = named.copied().collect();
        let mut names = self.names_of(&named)?;
        drop(named);
        let mut names = &mut names[..];
        for run in runs {
            let entries = &mut entries[run.entries.clone()];
            let (of_run, rest) = std::mem::take(&mut names).split_at_mut(entries.len());
            names = rest;
            let mut open = vec![Run { entries: 0..entries.len(), from: run.from }];
            while let Some(Run { entries: ties, from }) = open.pop() {
                let (entries, names) = (&mut entries[ties.clone()], &mut of_run[ties.clone()]);
                let inner = self.sort_by_heads(entries, names, from)?.into_iter();
                open.extend(inner.map(|Run { entries: inner, from }| Run {
                    entries: ties.start + inner.start..ties.start + inner.end,
                    from,
                }));
            }
        }
        Ok(())
    }

    /// Sorts one run by its heads. Returns the runs whose values may differ after their heads.
    fn sort_by_heads(
        &self,
        entries: &mut [SortEntry],
        names: &mut [Revision],
        from: usize,
    ) -> Result<Vec<Run>> {
        // The pivot is moved to the front, so that it is read first.
        let chosen = pivot_place(entries.len());
        entries.swap(0, chosen);
        names.swap(0, chosen);
        let (mut heads, mut pivot) = (Vec::with_capacity(entries.len()), None);
        self.visit_values(names, &mut |at, value| {
            let value = rest_of(value, from);
            let pivot = pivot.get_or_insert_with(|| Box::<[u8]>::from(value));
            heads.push((Head::of(value, pivot), entries[at], names[at]));
        })?;
        let mut steps = YieldPoints::default();
        heads.sort_unstable_by(|(a, a_entry, _), (b, b_entry, _)| {
            steps.advance(HEAD_BYTES);
            let order = if self.descends { b.cmp(a) } else { a.cmp(b) };
            order.then(a_entry.number.cmp(&b_entry.number))
        });
        for (place, (_, entry, name)) in heads.iter().enumerate() {
            (entries[place], names[place]) = (*entry, *name);
        }
        let (mut at, mut open) = (0, Vec::new());
        for ties in heads.chunk_by(|(a, ..), (b, ..)| a == b) {
            let head = &ties[0].0;
            if ties.len() > 1 && head.is_open {
                let from = from + head.rank.common() + HEAD_BYTES;
                open.push(Run { entries: at..at + ties.len(), from });
            }
            at += ties.len();
        }
        Ok(open)
    }

    fn names_of(&self, entries: &[SortEntry]) -> Result<Vec<Revision>> {
        let numbers: Vec<u32> = entries.iter().map(|entry| entry.number).collect();
        self.keys.names_of(self.read_txn, self.request, &numbers)
    }

    /// Visits the values in the order of the names, each with the index of its name.
    fn visit_values(&self, names: &[Revision], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let (mut places, mut decoded) = (0.., Ok(()));
        let mut steps = YieldPoints::default();
        self.read_txn.visit_named_records(names, &mut |record| {
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

/// Chooses a pivot at random, so that no choice of keys and values makes all runs slow to sort.
fn pivot_place(values: usize) -> usize {
    RandomState::new().hash_one(values) as usize % values.max(1)
}

/// The bytes of a value from the position where it differs from the pivot.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    rank: Rank,
    bytes: Box<[u8]>,
    /// If true, the value has more bytes after `bytes`.
    is_open: bool,
}

impl Head {
    fn of(value: &[u8], pivot: &[u8]) -> Head {
        let rank = Rank::of(value, pivot);
        let rest = rest_of(value, rank.common());
        let bytes = rest[..rest.len().min(HEAD_BYTES)].into();
        Head { rank, bytes, is_open: rest.len() > HEAD_BYTES }
    }
}
