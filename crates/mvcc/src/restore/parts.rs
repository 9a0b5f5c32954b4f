//! Cutting the records into parts when their number is unknown.
//!
//! First and last record give the range of revisions, cut into equal parts. But revisions are not
//! records: one transaction may have written thousands, and a compaction leaves gaps. So a part is
//! read up to a number of records, and what is left is cut again:
//!
//! ```text
//!   records      |    |      |      |           |   ||||||||||||||||||
//!   first round  ├───────────┼────────────┼────────────┼────────────┤   at most 6 records each
//!   second                                                   ├─┼─┼─┼─┤
//! ```
//!
//! Invariants: the parts of a round, and what was read before, cover each possible key of the
//! bucket once, in order, damaged ones too (a cut is any eight bytes). Two records of one revision,
//! which is damage, are in one part, where it is noticed.

use std::ops::ControlFlow;

use clearlane_engine::{Bucket, KeyRange, Snapshot};

use super::part_reader::{PartContents, PartReader};
use crate::error::Result;
use crate::workers::{self, Workers};

/// How the records are cut into parts. What is restored does not depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Partitioning {
    /// Into how many parts the revisions are cut; and what is left of each that was too long, too.
    pub parts: usize,
    /// Number of records after which a part is too long: what is left is cut again.
    pub records_max: usize,
}

impl Partitioning {
    /// Several parts for each worker, for one has more to do than another. Shorter parts would make
    /// more runs to join, longer ones would leave workers without work.
    pub fn for_workers(workers: &dyn Workers) -> Partitioning {
        Partitioning { parts: workers.parallelism() * 4, records_max: 1 << 18 }
    }
}

/// A range of record keys.
#[derive(Debug)]
struct RecordKeyRange {
    /// The first key.
    from: Vec<u8>,
    /// The main revision after the last one; `None` at the end of the bucket.
    to: Option<u64>,
}

/// A part, before and after it is read.
enum Part {
    Unread(RecordKeyRange),
    Read(PartContents),
}

/// Reads all records. What comes back is in the order of revisions.
pub(super) fn read_all(
    snapshot: &dyn Snapshot,
    workers: &dyn Workers,
    cut: Partitioning,
) -> Result<Vec<PartContents>> {
    let Some((all, last)) = whole_bucket(snapshot)? else { return Ok(Vec::new()) };
    let unread = |keys: RecordKeyRange| keys.split(cut.parts, last).into_iter().map(Part::Unread);
    let mut parts: Vec<Part> = unread(all).collect();
    let mut damage = None;
    while parts.iter().any(|part| matches!(part, Part::Unread(_))) {
        let outcomes = workers::map(workers, parts, |part| match part {
            Part::Unread(keys) => read_part(snapshot, &keys, cut.records_max),
            Part::Read(read) => Ok((read, None)),
        });
        parts = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok((read, rest)) => {
                    parts.extend((!read.run.is_empty()).then_some(Part::Read(read)));
                    parts.extend(rest.into_iter().flat_map(unread));
                }
                Err(error) => {
                    // What comes after it does not matter any more; what is left before it does,
                    // for there may be an error that is lower.
                    damage = Some(error);
                    break;
                }
            }
        }
    }
    let read = |part| match part {
        Part::Read(read) => read,
        Part::Unread(_) => unreachable!("the last round has left nothing"),
    };
    damage.map_or_else(|| Ok(parts.into_iter().map(read).collect()), Err)
}

/// The whole bucket and the main revision of its last record; `None` if it has none.
fn whole_bucket(snapshot: &dyn Snapshot) -> Result<Option<(RecordKeyRange, u64)>> {
    let mut first = None;
    let scanned = snapshot.scan(Bucket::Key, KeyRange::ALL, &mut |key, _| {
        first = Some(key.to_vec());
        ControlFlow::Break(())
    });
    scanned.map_err(clearlane_backend::Error::from)?;
    let last = snapshot.last_key(Bucket::Key).map_err(clearlane_backend::Error::from)?;
    let ends = first.zip(last);
    Ok(ends.map(|(from, last)| (RecordKeyRange { from, to: None }, main_revision_of(&last))))
}

/// The main revision in a record key, or what is there in a damaged one.
fn main_revision_of(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(bytes.len());
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

impl RecordKeyRange {
    /// Up to `pieces` ranges that have the same number of main revisions; `last` is the last
    /// one of the bucket.
    fn split(mut self, pieces: usize, last: u64) -> Vec<RecordKeyRange> {
        let first = main_revision_of(&self.from);
        let last = self.to.map_or(last, |to| to - 1);
        let pieces = (pieces as u64).max(1);
        let width = (last.saturating_sub(first) / pieces).saturating_add(1);
        let cuts = (1..pieces).map_while(|at| first.checked_add(width.checked_mul(at)?));
        let mut ranges = Vec::new();
        for to in cuts.take_while(|cut| *cut <= last) {
            let from = std::mem::replace(&mut self.from, to.to_be_bytes().to_vec());
            ranges.push(RecordKeyRange { from, to: Some(to) });
        }
        ranges.push(self);
        ranges
    }
}

/// Reads up to `records_max` records of a part. Returns what is left.
fn read_part(
    snapshot: &dyn Snapshot,
    keys: &RecordKeyRange,
    records_max: usize,
) -> Result<(PartContents, Option<RecordKeyRange>)> {
    let to = keys.to.map(u64::to_be_bytes);
    let range = KeyRange { from: &keys.from, to: to.as_ref().map(|to| &to[..]) };
    let mut reading = PartReader::default();
    let mut rest = None;
    let mut outcome = Ok(());
    let scanned = snapshot.scan(Bucket::Key, range, &mut |key, value| {
        if reading.records() >= records_max.max(1) && !reading.is_same_revision(key) {
            rest = Some(RecordKeyRange { from: key.to_vec(), to: keys.to });
            return ControlFlow::Break(());
        }
        outcome = reading.add(key, value);
        if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    scanned.map_err(clearlane_backend::Error::from)?;
    outcome?;
    Ok((reading.finish(), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record_key_range(from: &[u8], to: Option<u64>) -> RecordKeyRange {
        RecordKeyRange { from: from.to_vec(), to }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn pieces_follow_each_other_and_cover_all(
            from in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..20),
                (0..40_u64).prop_map(|main| main.to_be_bytes().to_vec()),
            ],
            to in prop_oneof![Just(None), (1..50_u64).prop_map(Some), (1..=u64::MAX).prop_map(Some)],
            last in prop_oneof![0..100_u64, any::<u64>()],
            pieces in 0..20_usize,
        ) {
            prop_assume!(to.is_none_or(|to| from[..] < to.to_be_bytes()[..]));
            let cut = record_key_range(&from, to).split(pieces, last);
            prop_assert!(cut.len() <= pieces.max(1));
            prop_assert_eq!(&cut[0].from, &from);
            prop_assert_eq!(cut[cut.len() - 1].to, to);
            for pair in cut.windows(2) {
                prop_assert_eq!(pair[0].to.map(u64::to_be_bytes), pair[1].from.first_chunk().copied());
            }
            for keys in cut {
                prop_assert!(keys.to.is_none_or(|to| keys.from[..] < to.to_be_bytes()[..]));
            }
        }
    }

    #[test]
    fn pieces_have_as_many_revisions() {
        let cut = record_key_range(&2_u64.to_be_bytes(), None).split(4, 101);
        assert_eq!(
            cut.iter().map(|keys| keys.to).collect::<Vec<_>>(),
            [Some(27), Some(52), Some(77), None,]
        );
        assert_eq!(
            record_key_range(&2_u64.to_be_bytes(), None).split(4, 3).len(),
            2,
            "no piece for nothing"
        );
    }
}
