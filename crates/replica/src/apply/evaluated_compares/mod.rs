//! Compares of a transaction that were evaluated before it was proposed, so that the apply loop
//! does not walk over many keys.
//!
//! ```text
//!   revision 70   evaluated over all keys of their spans: hold, or not, because of key k
//!   71 .. 95      the entries before the transaction: puts of b and d, c deleted
//!   apply loop    evaluated for b, c and d; or for k
//! ```
//!
//! The result is what a whole evaluation at the place of the entry gives, and other members make
//! one: no entry depends on whether there is a result. A revision names the same state at all
//! members, and the records of the changes behind it are in the store, unless they were compacted.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Bound, ControlFlow};

use clearlane_mvcc::ReadTxn;
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::Compare;

use super::compare::{SortedCompares, SpanCompares};
use super::key_span::KeySpan;
use super::rejection::ApplyError;

/// The cost of a change that is visited, and of a key that is looked up, in bytes read.
const CHANGE_COST_BYTES: usize = 256;
const LOOKUP_COST_BYTES: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluatedCompares {
    compares: ComparesHash,
    /// All of its changes count.
    revision: i64,
    /// At how many keys the evaluation has looked, at most.
    keys: u64,
    outcome: Outcome,
}

/// Tells the compares of a result from those of another transaction.
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
    /// One does not hold for this key, which is there.
    FailForKey(Vec<u8>),
    /// One does not hold because its span has no keys.
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

    /// The result for a later state, by a look at no more than `changes_max` changes since. `None`
    /// if a whole evaluation costs less, or only that one tells: there were more changes, some were
    /// compacted, or what has failed before does not fail any more; and if it is a result of other
    /// compares.
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

    /// Each change is a record that is read. A key costs less if the index is enough for it.
    fn limit_changes(&self, compares: &SortedCompares<'_>, changes_max: usize) -> usize {
        if compares.by_walk().any(|compares| compares.needs_records()) {
            return changes_max;
        }
        usize::try_from(self.keys).map_or(changes_max, |keys| keys.min(changes_max))
    }
}

/// Of compares that held before the changes. A key that was not changed is there as it was, so they
/// hold for it.
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

/// Each of them once; `None` if not all are known, or more changes than these were made.
fn changed_keys(
    read: &(dyn ReadTxn + '_),
    after: i64,
    changes_max: usize,
) -> Result<Option<BTreeSet<Vec<u8>>>, ApplyError> {
    // Each revision has a change.
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

/// Whether the key is there, and one of the compares does not hold for it.
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

/// The number of keys that an evaluation looks at, at most.
pub(crate) fn count_compared_keys(
    read: &(dyn ReadTxn + '_),
    compares: &[Compare],
) -> Result<u64, ApplyError> {
    SortedCompares::new(compares).by_walk().map(|compares| compares.key_count(read)).sum()
}

#[cfg(test)]
mod tests;
