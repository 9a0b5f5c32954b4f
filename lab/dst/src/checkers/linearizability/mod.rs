//! Could a single store, which does one thing after the other, have given all these replies?
//!
//! A history is *linearizable* if each operation can be placed at a time between its start and its
//! end so that a plain map, in that order, gives the same replies. Each reply has the store's
//! revision, which shows the operation's place in the order. A change whose reply has revision 7
//! led from 6 to 7. An operation that changed nothing and whose reply has revision 7 happened
//! between 7 and 8. Two things are checked:
//!
//! 1. **Time.** No operation ended before an operation with an earlier place had started.
//! 2. **Values.** A plain map, in this order, gives every reply, with revisions and versions.
//!
//! A revision that no reply claims is a *gap*. The checker searches for an open operation that
//! fills the gap: see `docs/dst.md`. Revisions of lease operations are known from the log, and are
//! no gaps. Only the operations of the history and lease operations make revisions.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckResult, Rule, Violation};
use crate::event_queue::Micros;
use crate::history::{Operation, Record, Reply, Request, StoreModel};

/// Maximum number of attempts to fill gaps in one history. With the hints from the log, each gap
/// needs only one attempt.
const TRIES_MAX: usize = 20_000;

/// The operation that made each revision, according to the log.
pub type Hints = BTreeMap<i64, usize>;

/// Returns an error if a history is not linearizable. `others` are the revisions that lease
/// operations have made. They change only keys that no operation of the history reads.
pub fn check(operations: &[Operation], hints: &Hints, others: &BTreeSet<i64>) -> CheckResult {
    let mut places = RevisionOrder::new(operations, hints, others)?;
    places.check_time()?;
    places.check_values(1, StoreModel::default(), &mut BTreeSet::new())
}

fn violation(seen: String) -> Violation {
    Violation::new(Rule::Linearizability, seen)
}

/// The operations at the places that their replies claim.
struct RevisionOrder<'h> {
    operations: &'h [Operation],
    hints: &'h Hints,
    lease_revisions: &'h BTreeSet<i64>,
    /// The operation that made each revision.
    changes: BTreeMap<i64, usize>,
    /// The operations that saw a revision and changed nothing, by revision.
    reads: BTreeMap<i64, Vec<usize>>,
    /// Writes without a reply.
    open: Vec<usize>,
    /// The value that was put at a revision, as a later operation has seen it, by revision.
    observed_values: BTreeMap<i64, &'h str>,
    /// The earliest end of all operations that are placed at a revision or later, by revision.
    first_end: BTreeMap<i64, Micros>,
    last: i64,
    tries: usize,
    /// The situations in which a gap could not be filled: the gap's revision, the open operations
    /// that fill earlier gaps, and the records. The records are included because the same
    /// operations in another order may leave other records.
    failed: BTreeSet<(i64, Vec<usize>, Vec<Record>)>,
}

impl<'h> RevisionOrder<'h> {
    fn new(
        operations: &'h [Operation],
        hints: &'h Hints,
        others: &'h BTreeSet<i64>,
    ) -> Result<RevisionOrder<'h>, Violation> {
        let mut places = RevisionOrder {
            operations,
            hints,
            lease_revisions: others,
            changes: BTreeMap::new(),
            reads: BTreeMap::new(),
            open: Vec::new(),
            observed_values: BTreeMap::new(),
            first_end: BTreeMap::new(),
            last: 1,
            tries: 0,
            failed: BTreeSet::new(),
        };
        for (number, operation) in operations.iter().enumerate() {
            match operation.reply() {
                _ if operation.request.is_serializable() => {}
                Some(reply) => places.add(number, reply)?,
                None if operation.completed.is_none() && !operation.request.is_read() => {
                    places.open.push(number);
                }
                None => {}
            }
        }
        let mut earliest = Micros::MAX;
        for (_, end) in places.first_end.iter_mut().rev() {
            earliest = earliest.min(*end);
            *end = earliest;
        }
        Ok(places)
    }

    fn add(&mut self, number: usize, reply: &'h Reply) -> CheckResult {
        let at = reply.revision;
        if at < 1 || (reply.changed && at < 2) {
            return Err(violation(format!("{} at revision {at}", self.describe(number))));
        }
        if !reply.changed {
            self.reads.entry(at).or_default().push(number);
        } else if let Some(other) = self.changes.insert(at, number) {
            let (one, other) = (self.describe(number), self.describe(other));
            return Err(violation(format!("two changes made revision {at}: {one} and {other}")));
        }
        for record in &reply.records {
            let Record { value, mod_revision, .. } = record;
            let first = *self.observed_values.entry(*mod_revision).or_insert(value);
            Rule::Linearizability.check(first == value, || {
                let name = self.describe(number);
                format!("revision {mod_revision} has put {first}, but {name} returned {value}")
            })?;
        }
        let end = self.operations[number].completed.unwrap_or(Micros::MAX);
        let first = self.first_end.entry(at).or_insert(end);
        *first = end.min(*first);
        self.last = self.last.max(at);
        Ok(())
    }

    fn describe(&self, number: usize) -> String {
        let operation = &self.operations[number];
        let Operation { client, member, request, invoked, completed: ended, .. } = operation;
        format!("#{number} {request:?} of client {client} at {member}, {invoked} to {ended:?}")
    }

    /// Checks that no operation ended before an operation with an earlier place started.
    fn check_time(&self) -> CheckResult {
        let changes = self.changes.iter().map(|(at, number)| ((*at, false), vec![*number]));
        let looks = self.reads.iter().map(|(at, numbers)| ((*at, true), numbers.clone()));
        let places: BTreeMap<(i64, bool), Vec<usize>> = changes.chain(looks).collect();
        // The operation that started last, among the operations with an earlier place.
        let mut latest: Option<usize> = None;
        for ((at, _), numbers) in places {
            for number in &numbers {
                let ended = self.operations[*number].completed.unwrap_or(Micros::MAX);
                if let Some(latest) = latest
                    && ended < self.operations[latest].invoked
                {
                    let (late, early) = (self.describe(latest), self.describe(*number));
                    let told = self.operations[latest].reply();
                    return Err(violation(format!(
                        "{early} returned revision {at}; {late} started later and returned {told:?}"
                    )));
                }
            }
            let began = |number: &usize| self.operations[*number].invoked;
            latest = numbers.into_iter().chain(latest).max_by_key(began);
        }
        Ok(())
    }

    /// Checks that a plain map gives the same replies, starting with the change that makes revision
    /// `from`. `state` is the map before this change. `used` are the open operations that fill
    /// earlier gaps.
    fn check_values(
        &mut self,
        from: i64,
        mut state: StoreModel,
        used: &mut BTreeSet<usize>,
    ) -> CheckResult {
        for revision in from..=self.last {
            if self.lease_revisions.contains(&revision) && !self.changes.contains_key(&revision) {
                state.revision = revision;
            } else if revision > 1 {
                let Some(number) = self.changes.get(&revision) else {
                    return self.fill_gap(revision, &state, used);
                };
                self.compare(*number, &state)?;
                state.apply(&self.operations[*number].request);
            }
            self.check_reads(revision, &state)?;
        }
        Ok(())
    }

    fn check_reads(&self, revision: i64, state: &StoreModel) -> CheckResult {
        let mut looks = self.reads.get(&revision).into_iter().flatten();
        looks.try_for_each(|number| self.compare(*number, state))
    }

    fn compare(&self, number: usize, state: &StoreModel) -> CheckResult {
        let operation = &self.operations[number];
        let (was, is) = (operation.reply(), state.expected_reply(&operation.request));
        Rule::Linearizability.check(was == Some(&is), || {
            let name = self.describe(number);
            format!("{name} returned {was:?}, but a single store returns {is:?}")
        })
    }

    /// Tries each open operation that may have made the revision, until the rest of the history
    /// fits. Fails if none fits, or after `TRIES_MAX` attempts in this history.
    fn fill_gap(
        &mut self,
        revision: i64,
        state: &StoreModel,
        used: &mut BTreeSet<usize>,
    ) -> CheckResult {
        let records = state.records.values().cloned().collect();
        let situation = (revision, used.iter().copied().collect(), records);
        let unclaimed = violation(format!("no operation has made revision {revision}"));
        if self.failed.contains(&situation) {
            return Err(unclaimed);
        }
        // The first candidate is the most likely one, so its violation is reported.
        let mut told = None;
        for number in self.candidates(revision, state, used) {
            self.tries += 1;
            if self.tries > TRIES_MAX {
                break;
            }
            let mut next = state.clone();
            next.apply(&self.operations[number].request);
            used.insert(number);
            let fits = self
                .check_reads(revision, &next)
                .and_then(|()| self.check_values(revision + 1, next, used));
            match fits {
                Ok(()) => return Ok(()),
                Err(error) => told = told.or(Some(error)),
            }
            used.remove(&number);
        }
        self.failed.insert(situation);
        Err(told.unwrap_or(unclaimed))
    }

    /// Returns the open operations that may have made the revision. The most likely one is first.
    fn candidates(&self, revision: i64, state: &StoreModel, used: &BTreeSet<usize>) -> Vec<usize> {
        let by = self.first_end.range(revision..).next().map_or(Micros::MAX, |(_, end)| *end);
        let seen = self.observed_values.get(&revision);
        let fits = |number: &&usize| {
            let operation = &self.operations[**number];
            let request = &operation.request;
            let value_fits = match (seen, request.value()) {
                (Some(seen), value) => value == Some(seen),
                (None, Some(value)) => !self.observed_values.values().any(|seen| *seen == value),
                (None, None) => true,
            };
            value_fits
                && operation.invoked <= by
                && !used.contains(*number)
                && state.expected_reply(request).changed
        };
        let hint = self.hints.get(&revision);
        let mut candidates: Vec<usize> = self.open.iter().filter(fits).copied().collect();
        candidates.sort_by_key(|number| Some(number) != hint);
        // Open deletes of one key are interchangeable, so only one open delete of each key is
        // tried.
        let mut deleted = BTreeSet::new();
        candidates.retain(|number| match &self.operations[*number].request {
            Request::Delete { key } => deleted.insert(key.clone()),
            _ => true,
        });
        candidates
    }
}

#[cfg(test)]
mod tests;
