//! The result of a transaction's compares. They are evaluated before the transaction is proposed,
//! so that the apply loop need not walk over many keys.
//!
//! ```text
//!   revision 70          compares evaluated over all keys: all hold, or one fails for a key k
//!   revisions 71 to 95   entries before the transaction put b and d, and delete c
//!   apply loop           evaluates the compares for b, c and d, or only for k if one failed
//! ```
//!
//! There is a third possible result: a compare failed because its span had no keys. In this case
//! the apply loop only checks whether a compare still fails for lack of keys.
//!
//! The updated result equals the result of a full evaluation at the time when the entry is applied.
//! Other members make a full evaluation. So the effect of an entry does not depend on whether a
//! member has an earlier result. The store has the records of all changes since the evaluation,
//! unless they were compacted.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Bound, ControlFlow};

use clearlane_contention::YieldPoints;
use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::Compare;

use super::compare::{SortedCompares, SpanCompares};
use super::key_span::KeySpan;
use super::rejection::ApplyError;

/// The cost of visiting a change, expressed in bytes read.
const CHANGE_COST_BYTES: usize = 256;
/// The cost of looking up a key, expressed in bytes read.
const LOOKUP_COST_BYTES: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluatedCompares {
    compares: ComparesHash,
    /// The revision of the evaluated state.
    revision: i64,
    /// Upper bound for the keys that the evaluation has visited: the sum over its walks of the keys
    /// in each span.
    keys: u64,
    outcome: Outcome,
}

/// Distinguishes the compares of this result from the compares of another transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ComparesHash {
    count: usize,
    hash: u64,
}

impl ComparesHash {
    fn new(compares: &[Compare]) -> ComparesHash {
        let mut hasher = DefaultHasher::new();
        compares.hash(&mut hasher);
        ComparesHash { count: compares.len(), hash: hasher.finish() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Hold,
    /// A compare does not hold for this key, which exists.
    FailForKey(Vec<u8>),
    /// A compare does not hold because its span has no keys.
    FailWithoutKeys,
}

impl EvaluatedCompares {
    /// Evaluates the compares for all keys of their spans.
    pub fn evaluate(
        read: &(dyn ReadTxn + '_),
        compares: &[Compare],
    ) -> Result<EvaluatedCompares, ApplyError> {
        let (revision, mut keys) = (read.revision(), 0);
        let hash = ComparesHash::new(compares);
        for compares in SortedCompares::new(compares).by_walk() {
            let mut failed_for = None;
            keys += compares.key_count(read)?;
            if !compares.hold(read, &mut |key| failed_for = Some(key.to_vec()))? {
                let outcome = failed_for.map_or(Outcome::FailWithoutKeys, Outcome::FailForKey);
                return Ok(EvaluatedCompares { compares: hash, revision, keys, outcome });
            }
        }
        Ok(EvaluatedCompares { compares: hash, revision, keys, outcome: Outcome::Hold })
    }

    pub fn hold(&self) -> bool {
        self.outcome == Outcome::Hold
    }

    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the result for the state of `read`. Visits at most `changes_max` changes since the
    /// evaluated state.
    ///
    /// Returns `None` if this result is about other compares, or about a later state than `read`.
    /// Also returns `None` if a full evaluation costs less, or if only a full evaluation can
    /// decide: there were more changes, some changes were compacted, the store is of an old era, or
    /// the earlier failure no longer exists.
    pub fn update(
        &self,
        read: &(dyn ReadTxn + '_),
        compares: &[Compare],
        changes_max: usize,
    ) -> Result<Option<EvaluatedCompares>, ApplyError> {
        if self.revision > read.revision() || self.compares != ComparesHash::new(compares) {
            return Ok(None);
        }
        let compares = SortedCompares::new(compares);
        let outcome = match &self.outcome {
            Outcome::Hold => {
                let changes_max = self.limit_changes(&compares, changes_max);
                match changed_keys(read, self.revision, changes_max)? {
                    Some(changed) => Some(outcome_after_changes(read, &compares, &changed)?),
                    None => None,
                }
            }
            Outcome::FailForKey(key) => {
                let fails = any_fails(&compares, |compares| fails_for(compares, read, key))?;
                fails.then(|| Outcome::FailForKey(key.clone()))
            }
            Outcome::FailWithoutKeys => {
                let fails = any_fails(&compares, |compares| fails_without_keys(compares, read))?;
                fails.then_some(Outcome::FailWithoutKeys)
            }
        };
        let revision = read.revision();
        Ok(outcome.map(|outcome| EvaluatedCompares { revision, outcome, ..*self }))
    }

    /// Returns the maximum number of changes for which an update costs less than a full evaluation.
    /// An update reads a record for each change. A full evaluation reads no records if the index is
    /// sufficient for the compares.
    fn limit_changes(&self, compares: &SortedCompares<'_>, changes_max: usize) -> usize {
        if compares.by_walk().any(|compares| compares.needs_records()) {
            return changes_max;
        }
        usize::try_from(self.keys).map_or(changes_max, |keys| keys.min(changes_max))
    }
}

/// Returns the outcome for compares that held before the changes. They still hold for each
/// unchanged key.
fn outcome_after_changes(
    read: &(dyn ReadTxn + '_),
    compares: &SortedCompares<'_>,
    changed: &BTreeSet<Vec<u8>>,
) -> Result<Outcome, ApplyError> {
    let mut steps = YieldPoints::default();
    for compares in compares.by_walk() {
        let range = compares.range();
        let from = changed.range::<[u8], _>((Bound::Included(range.from), Bound::Unbounded));
        for key in from.take_while(|key| range.contains(key)) {
            steps.advance(LOOKUP_COST_BYTES);
            if fails_for(&compares, read, key)? {
                return Ok(Outcome::FailForKey(key.clone()));
            }
        }
        if fails_without_keys(&compares, read)? {
            return Ok(Outcome::FailWithoutKeys);
        }
    }
    Ok(Outcome::Hold)
}

/// Returns the keys that were changed after revision `after`, each once. Returns `None` if some of
/// the changes may have been compacted, if there were more than `changes_max` changes, or in an old
/// era.
fn changed_keys(
    read: &(dyn ReadTxn + '_),
    after: i64,
    changes_max: usize,
) -> Result<Option<BTreeSet<Vec<u8>>>, ApplyError> {
    // Each revision has at least one change, so there are too many changes if there are too many
    // revisions.
    if read.revision().abs_diff(after) > changes_max as u64 {
        return Ok(None);
    }
    let (mut keys, mut changes, mut steps) = (BTreeSet::new(), 0, YieldPoints::default());
    let are_known = read.visit_changed_keys(after, &mut |key, record_len| {
        changes += 1;
        if changes > changes_max {
            return ControlFlow::Break(());
        }
        steps.advance(CHANGE_COST_BYTES + record_len);
        if !keys.contains(key) {
            keys.insert(key.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    Ok((are_known && changes <= changes_max).then_some(keys))
}

fn any_fails(
    compares: &SortedCompares<'_>,
    mut fails: impl FnMut(&SpanCompares<'_>) -> Result<bool, ApplyError>,
) -> Result<bool, ApplyError> {
    for compares in compares.by_walk() {
        if fails(&compares)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether the key exists and one of the compares does not hold for it.
fn fails_for(
    compares: &SpanCompares<'_>,
    read: &(dyn ReadTxn + '_),
    key: &[u8],
) -> Result<bool, ApplyError> {
    if !compares.range().contains(key) {
        return Ok(false);
    }
    let one_key = KeySpan::one_key(key);
    Ok(compares.hold_in(read, one_key.range(), &mut |_| {})? == Some(false))
}

fn fails_without_keys(
    compares: &SpanCompares<'_>,
    read: &(dyn ReadTxn + '_),
) -> Result<bool, ApplyError> {
    Ok(!compares.hold_without_keys() && compares.key_count(read)? == 0)
}

/// Returns the maximum number of keys that an evaluation visits.
pub fn count_compared_keys(
    read: &(dyn ReadTxn + '_),
    compares: &[Compare],
) -> Result<u64, ApplyError> {
    SortedCompares::new(compares).by_walk().map(|compares| compares.key_count(read)).sum()
}

#[cfg(test)]
mod tests;
