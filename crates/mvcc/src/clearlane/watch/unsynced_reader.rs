//! Reads, from a snapshot of the store, the events that a watcher has missed.
//!
//! In each sync round etcd reads all records since the oldest revision that any watcher of the
//! round has missed (etcd issue 22264). This reader serves one watcher and follows three rules:
//!
//! 1. A step reads a snapshot, and holds no lock of the watchable store.
//! 2. A step continues where the previous step stopped. Only a step that failed is repeated.
//! 3. Records that the watcher did not request are read only by a scan, which is chosen if a list
//!    would cost more.
//!
//! A *list* walks the index over the watched keys, sorts the changes that it finds, and fetches
//! record by record. A *scan* reads all records in order and skips records of other keys. A scan is
//! chosen if
//!
//! * the watched range has at least as many keys as there are records to scan,
//! * or more than one in [`SCANNED_PER_EVENT`] records is wanted,
//! * or several lists are needed, and their walks together would visit more keys than there are
//!   records,
//! * or the first missed transaction has more wanted changes than a list can hold.
//!
//! The number of records is an estimate, so a scan may read more than [`SCANNED_PER_EVENT`] records
//! for each event that it delivers.
//!
//! Invariants:
//! * All events of a revision are in one step.
//! * After a step that ends early, no event of `next_revision` or later has been delivered.
//!
//! `docs/watch.md` explains the choice of a plan. In etcd: `syncWatchers`.

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

/// Maximum number of changes in a finished list. Between two steps, an unsynced watcher keeps only
/// its request and this list in memory.
const LIST_MAX: usize = 4096;
/// If more than one in this number of records is wanted, the reader scans all records. Otherwise it
/// reads a list, unless another condition that the head of this module lists requires a scan.
const SCANNED_PER_EVENT: u64 = 4;

/// The limits of one step. A step ends at the first new revision after it has reached a limit, so
/// it may exceed a limit by the rest of one revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncBudget {
    /// Maximum number of records to read, including records that the watcher does not want.
    pub(super) records: usize,
    /// Maximum number of bytes of events to collect.
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct UnsyncedReader {
    /// The first revision that has not been delivered to the watcher.
    pub(super) next_revision: i64,
    plan: Plan,
    /// The average number of records in a revision, as seen by the last scan. 1 before the first
    /// scan.
    records_per_revision: u64,
}

#[derive(Debug)]
enum Plan {
    /// There is no plan, because no plan has been made yet or the last plan is finished.
    None,
    /// A list of all wanted changes up to revision `up_to`. The next change to read is at the end.
    List { changes: Vec<(Revision, RecordKind)>, up_to: i64 },
    /// A scan of all records up to revision `up_to`.
    Scan { up_to: i64 },
}

#[derive(Debug, PartialEq)]
pub(super) enum SyncStep {
    /// The events to deliver, possibly none. `done` is true if the read transaction has no further
    /// events for the watcher.
    Events { events: Vec<Event>, done: bool },
    /// The next revision to deliver is below this compact revision, so some of its events may be
    /// missing.
    Compacted(i64),
}

impl UnsyncedReader {
    pub(super) fn starting_at(next_revision: i64) -> UnsyncedReader {
        UnsyncedReader { next_revision, plan: Plan::None, records_per_revision: 1 }
    }

    /// Reads the next events. After an error the caller can repeat the call.
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
                // A compaction changed the index before or during the walk, so the walk may have
                // missed changes. This happens only with an index under a lock. The next step gets
                // a newer read transaction, which has the new compact revision.
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
            // The changes that this step has already taken from the list are lost, so a new plan is
            // needed.
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
        // In a list, no change between the last change that was read and the next one is wanted, so
        // the revisions between them are skipped.
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
            // An index under a lock may be newer than this read transaction.
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

/// Collects changes in any order. When there are twice [`LIST_MAX`] changes, it drops all except
/// the earliest [`LIST_MAX`].
#[derive(Default)]
struct EarliestChanges {
    changes: Vec<(Revision, RecordKind)>,
    found: u64,
    /// The earliest main revision among the changes that were dropped. `None` if no change was
    /// dropped.
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

    /// Returns the first revision to read, and the plan.
    fn into_plan(mut self, since: i64, newest: i64) -> (i64, Plan) {
        self.keep_earliest();
        let mut up_to = newest;
        if let Some(left_out) = self.first_omitted {
            // The list ends before the first revision that has omitted changes. The next list
            // starts at this revision.
            up_to = left_out - 1;
            self.changes.retain(|(revision, _)| revision.main <= up_to);
            if self.changes.is_empty() {
                // The first revision in the list has more wanted changes than the list can hold. So
                // this revision is scanned.
                return (left_out, Plan::Scan { up_to: left_out });
            }
        }
        self.changes.sort_unstable_by_key(|(revision, _)| std::cmp::Reverse(*revision));
        // The list may be kept for as long as the client does not read.
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
    /// The number of events whose previous record was looked up, if previous records are requested.
    events_with_prev_kv: usize,
    bytes: usize,
}

impl<M: IndexedRead> StepReader<'_, M> {
    /// Fetches changes from the end of a list until a limit is reached. Returns the main revision
    /// of the next change, or `None` if the list has no more changes.
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

    /// Reads the records of the main revisions `from` to `up_to` until a limit is reached. Returns
    /// the main revision to continue from, or `None` if all records were read.
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

    /// Scans until a limit is reached, or until a previous record is needed. In both cases it ends
    /// before the next revision. Previous records cannot be read inside a scan. They are read
    /// before the scan continues, because they count towards the limit and may be much larger than
    /// the events.
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

    /// Returns true if a limit is reached. A step reads at least one record, whatever its limits.
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

    /// Called if a record of the list is missing. Fails unless a compaction has removed the record
    /// since the list was made.
    fn check_compacted(&self, revision: Revision) -> Result<()> {
        if revision.main <= self.read_txn.compact_revision() {
            return Ok(());
        }
        Err(Error::Damaged(format!("the index names revision {revision}, which has no record")))
    }
}

/// Returns the record that the key had before a change. Returns `None` if the key had no value, or
/// if the record was compacted.
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
