//! What a watcher has missed: reading it from a snapshot, bounded by what is delivered.
//!
//! Three rules, where etcd reads everything since the oldest watcher in each round (issue 22264):
//! 1. A step reads a snapshot, with no lock of the watchable store held.
//! 2. What was read is not read again: a step goes on where the one before has stopped.
//! 3. What no watcher asked for is read only if a list of the wanted revisions would cost more. A
//!    *list* walks the index over the watched keys, then fetches record by record. A *scan* reads
//!    the records in order, and reads at most [`SCANNED_PER_EVENT`] for each one that is wanted.
//!
//! Invariants:
//! * All events of a revision are in one step.
//! * A step that ends early leaves `next_revision` at one of which nothing was delivered.
//!
//! How a plan is chosen is in `docs/watch.md`. In etcd: `syncWatchers`.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::error::{Error, Result};
use crate::interface::{Change, ReadTxn};
use crate::kv_hasher::try_range;
use crate::range::{IndexedRead, check_not_compacted, get_key_value};
use crate::revision::{RecordKind, Revision, RevisionKey};
use crate::tree_index::IndexSnapshot;
use crate::watch::response::{Event, WatchRequest};

/// Number of revisions a list has at most: all that an unsynced watcher keeps in memory.
const LIST_MAX: usize = 4096;
/// Number of records that a scan may read for each one that is wanted.
const SCANNED_PER_EVENT: u64 = 4;

/// Exceeded only by a single revision that is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncBudget {
    /// Looked at, whether or not the watcher wants them.
    pub(super) records: usize,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct UnsyncedReader {
    /// The first revision that was not delivered.
    pub(super) next_revision: i64,
    plan: Plan,
    /// Number of records of a revision, as far as was seen.
    records_per_revision: u64,
}

#[derive(Debug)]
enum Plan {
    /// Not made yet, or carried out.
    None,
    /// These changes, the last one first, are all there are up to the revision.
    List { changes: Vec<(Revision, RecordKind)>, up_to: i64 },
    /// The records up to the revision.
    Scan { up_to: i64 },
}

#[derive(Debug, PartialEq)]
pub(super) enum SyncStep {
    /// What there is to deliver, perhaps nothing. `done` if that was all the read transaction has.
    Events { events: Vec<Event>, done: bool },
    /// What should have been delivered was compacted, up to this revision.
    Compacted(i64),
}

impl UnsyncedReader {
    pub(super) fn starting_at(next_revision: i64) -> UnsyncedReader {
        UnsyncedReader { next_revision, plan: Plan::None, records_per_revision: 1 }
    }

    /// May be tried again after an error.
    pub(super) fn step<M: IndexedRead>(
        &mut self,
        read_txn: &M,
        request: &WatchRequest,
        budget: SyncBudget,
    ) -> Result<SyncStep> {
        if self.next_revision < read_txn.compact_revision() {
            return Ok(SyncStep::Compacted(read_txn.compact_revision()));
        }
        if self.next_revision > read_txn.revision() {
            return Ok(SyncStep::Events { events: Vec::new(), done: true });
        }
        if matches!(self.plan, Plan::None) {
            self.make_plan(read_txn, request);
            if check_not_compacted(read_txn.index(), self.next_revision).is_err() {
                // A compaction was there before the walk. A newer read transaction knows of it.
                self.plan = Plan::None;
                return Ok(SyncStep::Events { events: Vec::new(), done: false });
            }
        }
        let reader = StepReader {
            read_txn,
            request,
            budget,
            records_read: 0,
            events: Vec::new(),
            events_with_prev_kv: 0,
            bytes: 0,
        };
        let events = self.execute_plan(reader);
        if events.is_err() {
            // A list has lost what it has handed out.
            self.plan = Plan::None;
        }
        Ok(SyncStep::Events { events: events?, done: self.next_revision > read_txn.revision() })
    }

    fn execute_plan<M: IndexedRead>(
        &mut self,
        mut reader: StepReader<'_, M>,
    ) -> Result<Vec<Event>> {
        let (from, planned_for) = (self.next_revision, self.records_per_revision);
        let (next, up_to) = match &mut self.plan {
            Plan::None => unreachable!("a plan has just been made"),
            Plan::List { changes, up_to } => (reader.read_list(changes)?, *up_to),
            Plan::Scan { up_to } => {
                let next = reader.scan(from, *up_to)?;
                let revisions = next.unwrap_or(*up_to + 1).abs_diff(from).max(1);
                self.records_per_revision = (reader.records_read as u64 / revisions).max(1);
                (next, *up_to)
            }
        };
        // Between here and the next change of a list there is nothing to miss.
        self.next_revision = next.unwrap_or(up_to + 1);
        if next.is_none() || self.records_per_revision >= 2 * planned_for {
            self.plan = Plan::None;
        }
        Ok(reader.events)
    }

    fn make_plan<M: IndexedRead>(&mut self, read_txn: &M, request: &WatchRequest) {
        let index = read_txn.index();
        let (since, up_to) = (self.next_revision, read_txn.revision());
        let revisions = up_to.abs_diff(since) + 1;
        let records = revisions.saturating_mul(self.records_per_revision);
        let mut single = Vec::new();
        let range = request.keys.as_range(&mut single);
        let keys = index.count(range, up_to);
        if keys >= records {
            self.plan = Plan::Scan { up_to };
            return;
        }
        let is_dense = |found: u64| {
            let walks = found / LIST_MAX as u64;
            found * SCANNED_PER_EVENT > records || walks.saturating_mul(keys) > records
        };
        let mut list = EarliestChanges::default();
        index.changes_since(range, since, &mut |revision, mark| {
            // The index under a lock may know more than this read transaction.
            if revision.main <= up_to && request.wants(mark) {
                list.add(revision, mark);
            }
            if is_dense(list.found) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if is_dense(list.found) {
            self.plan = Plan::Scan { up_to };
        } else {
            (self.next_revision, self.plan) = list.into_plan(since, up_to);
        }
    }
}

/// Of changes that are added in any order.
#[derive(Default)]
struct EarliestChanges {
    changes: Vec<(Revision, RecordKind)>,
    found: u64,
    /// The earliest main revision of the changes that were left out.
    first_omitted: Option<i64>,
}

impl EarliestChanges {
    fn add(&mut self, revision: Revision, mark: RecordKind) {
        self.changes.push((revision, mark));
        self.found += 1;
        if self.changes.len() == 2 * LIST_MAX {
            self.keep_earliest();
        }
    }

    fn keep_earliest(&mut self) {
        if self.changes.len() > LIST_MAX {
            let (_, (first_out, _), _) =
                self.changes.select_nth_unstable_by_key(LIST_MAX, |(revision, _)| *revision);
            let first_out = first_out.main;
            self.first_omitted = Some(self.first_omitted.unwrap_or(first_out).min(first_out));
            self.changes.truncate(LIST_MAX);
        }
    }

    /// The first revision that is wanted, and the plan.
    fn into_plan(mut self, since: i64, newest: i64) -> (i64, Plan) {
        self.keep_earliest();
        let mut up_to = newest;
        if let Some(left_out) = self.first_omitted {
            // A revision that is not here as a whole is for the next list.
            up_to = left_out - 1;
            self.changes.retain(|(revision, _)| revision.main <= up_to);
            if self.changes.is_empty() {
                // One transaction has changed more keys than a list takes, and is the first.
                return (left_out, Plan::Scan { up_to: left_out });
            }
        }
        self.changes.sort_unstable_by_key(|(revision, _)| std::cmp::Reverse(*revision));
        // It may be kept for as long as the client does not read.
        self.changes.shrink_to_fit();
        (since, Plan::List { changes: self.changes, up_to })
    }
}

struct StepReader<'r, M> {
    read_txn: &'r M,
    request: &'r WatchRequest,
    budget: SyncBudget,
    records_read: usize,
    events: Vec<Event>,
    /// How many of the events have the record before, if that is asked for.
    events_with_prev_kv: usize,
    bytes: usize,
}

impl<M: IndexedRead> StepReader<'_, M> {
    /// Fetches changes from the end of a list until there is enough. Returns the main revision of
    /// the next one.
    fn read_list(&mut self, changes: &mut Vec<(Revision, RecordKind)>) -> Result<Option<i64>> {
        let mut last = 0;
        while let Some(&(revision, mark)) = changes.last() {
            if revision.main > last && self.is_budget_spent() {
                return Ok(Some(revision.main));
            }
            self.records_read += 1;
            last = revision.main;
            changes.pop();
            match self.read_txn.tx().get(Bucket::Key, &revision.key_of(mark))? {
                Some(value) => self.add(revision.main, mark, value)?,
                None => self.check_compacted(revision)?,
            }
            self.add_prev_kvs()?;
        }
        Ok(None)
    }

    /// Reads records from a main revision up to another, until there is enough. Returns the main
    /// revision to go on from; `None` if that was all.
    fn scan(&mut self, mut from: i64, up_to: i64) -> Result<Option<i64>> {
        loop {
            let next = self.scan_chunk(from, up_to)?;
            self.add_prev_kvs()?;
            match next {
                Some(next) if !self.is_budget_spent() => from = next,
                next => return Ok(next),
            }
        }
    }

    /// Scans until there is enough, or until there is a record before to be read: that cannot be
    /// done inside a scan, and may be much greater than the event.
    fn scan_chunk(&mut self, from: i64, up_to: i64) -> Result<Option<i64>> {
        let (first, end) =
            (Revision::new(from, 0).put_key(), Revision::new(up_to + 1, 0).put_key());
        let mut last = from;
        let mut next = None;
        let tx = self.read_txn.tx();
        try_range(tx, Bucket::Key, KeyRange::new(&first, &end), |key, value| {
            let (revision, kind) = RevisionKey::decode(key)?;
            if revision.main > last && (self.is_budget_spent() || self.lacks_prev_kv()) {
                next = Some(revision.main);
                return Ok(ControlFlow::Break(()));
            }
            self.records_read += 1;
            last = revision.main;
            self.add(revision.main, kind, value.to_bytes()).map(ControlFlow::Continue)
        })?;
        Ok(next)
    }

    /// A step reads at least one record, whatever its budget.
    fn is_budget_spent(&self) -> bool {
        self.records_read > 0
            && (self.records_read >= self.budget.records || self.bytes >= self.budget.bytes)
    }

    fn lacks_prev_kv(&self) -> bool {
        self.request.prev_kv && self.events_with_prev_kv < self.events.len()
    }

    fn add(&mut self, main: i64, mark: RecordKind, value: Bytes) -> Result<()> {
        if !self.request.wants(mark) {
            return Ok(());
        }
        let damaged = |error| Error::Damaged(format!("a record of revision {main}: {error}"));
        let record = KeyValue::decode(value).map_err(damaged)?;
        if self.request.keys.contains(&record.key) {
            let event = Event::new(Change::of(mark, record, main));
            self.bytes += event.size();
            self.events.push(event);
        }
        Ok(())
    }

    fn add_prev_kvs(&mut self) -> Result<()> {
        while self.lacks_prev_kv() {
            let event = &mut self.events[self.events_with_prev_kv];
            self.bytes -= event.size();
            event.prev_kv = previous_record(self.read_txn, &event.change)?;
            self.bytes += event.size();
            self.events_with_prev_kv += 1;
        }
        Ok(())
    }

    /// A record that is gone must have gone with a compaction since the list was made.
    fn check_compacted(&self, revision: Revision) -> Result<()> {
        if revision.main <= self.read_txn.compact_revision() {
            return Ok(());
        }
        Err(Error::Damaged(format!("the index names revision {revision}, which has no record")))
    }
}

/// `None` also if the record was compacted.
pub(super) fn previous_record<M: IndexedRead>(
    read_txn: &M,
    change: &Change,
) -> Result<Option<KeyValue>> {
    let record = change.record();
    let before = record.mod_revision - 1;
    let created = matches!(change, Change::Put(_)) && record.create_revision > before;
    if created || before < read_txn.compact_revision() {
        return Ok(None);
    }
    let found = read_txn.index().get(&record.key, before);
    if check_not_compacted(read_txn.index(), before).is_err() {
        return Ok(None);
    }
    found.map(|version| get_key_value(read_txn.tx(), version.modified)).transpose()
}
