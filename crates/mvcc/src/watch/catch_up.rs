//! What did a watcher miss? Reading the past from a snapshot, bounded by what it delivers.
//!
//! # The problem
//!
//! A watcher that starts at an old revision, or was too slow, must be told what happened since. The
//! records are all there, in the order of revisions, of all keys. A watcher of one key that is
//! 200,000 revisions behind has perhaps three events among them; a watcher of everything has
//! 200,000, far more than its client takes at a time.
//!
//! etcd reads the whole stretch from the oldest watcher's revision to now in each round, with the
//! lock held that writes need, and delivers a thousand revisions of it (its issue 22264 measured
//! 210,000 records read to deliver 20,000, in rounds that stopped all writes). Three rules keep
//! that from happening here:
//!
//! 1. **No lock is held.** A step reads one moment of the store, a view.
//! 2. **What was read is not read again.** A step goes on where the one before has stopped, and it
//!    stops when the stream has enough.
//! 3. **What nobody asked for is not read.** The index knows what happened to which key.
//!
//! # The plan
//!
//! For the third rule there are two ways to read, and each is bad where the other is good:
//!
//! ```text
//!   a list     walk the index over the watched keys, collect the revisions of their changes,
//!              sort them; then fetch record by record
//!   a scan     read the records from the watcher's revision on, pass over those of other keys
//! ```
//!
//! A list costs a step per watched key and a look-up per event; a scan costs a step per record. So
//! a scan is planned if there are fewer records than watched keys, or if the walk finds that a
//! quarter of the records or more is wanted: then it reads at most four records for each that it
//! delivers. A list has at most [`LIST_MAX`] revisions, the earliest ones; when they are told, the
//! next list is made. (Each walk costs as much as the first, but has delivered thousands.)
//!
//! # Invariants
//!
//! * All events of a revision are in one step.
//! * A step that ends before everything is told leaves `next` at a revision of which nothing is
//!   told yet.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::response::{Event, WatchRequest};
use crate::error::{Error, Result};
use crate::revision::{Mark, RecordKey, Revision};
use crate::store::Change;
use crate::store::moment::{Moment, fetch, whole};
use crate::tree_index::IndexView;

/// So many revisions a list has at most: all that a watcher that lags keeps in memory.
const LIST_MAX: usize = 4096;
/// A scan may read so many records for each one that is wanted.
const SCANNED_PER_EVENT: u64 = 4;

/// How much one step reads at most, if one revision is not more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Records looked at.
    pub(super) records: usize,
    /// Bytes of the events.
    pub(super) bytes: usize,
}

/// How far a watcher is that has fallen behind.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// The first revision that was not told.
    next: i64,
    plan: Plan,
}

#[derive(Debug)]
enum Plan {
    /// Not made yet, or carried out.
    None,
    /// These changes, the last one first, are all there are up to the revision.
    List { changes: Vec<(Revision, Mark)>, up_to: i64 },
    /// The records up to the revision.
    Scan { up_to: i64 },
}

/// What a step found.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// What there is to tell, perhaps nothing. `done` if that was all the view has.
    Told { events: Vec<Event>, done: bool },
    /// What should have been told was compacted, up to this revision.
    Compacted(i64),
}

impl CatchUp {
    pub(super) fn from(next: i64) -> CatchUp {
        CatchUp { next, plan: Plan::None }
    }

    /// The first revision that was not told.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// Goes on.
    pub(super) fn step<M: Moment>(
        &mut self,
        view: &M,
        request: &WatchRequest,
        budget: Budget,
    ) -> Result<Step> {
        if self.next < view.compact_revision() {
            return Ok(Step::Compacted(view.compact_revision()));
        }
        if self.next > view.revision() {
            return Ok(Step::Told { events: Vec::new(), done: true });
        }
        if matches!(self.plan, Plan::None) {
            self.make_plan(view, request);
            if whole(view.index(), self.next).is_err() {
                // A compaction was there before the walk. A newer view knows of it.
                self.plan = Plan::None;
                return Ok(Step::Told { events: Vec::new(), done: false });
            }
        }
        let mut reading = Reading { view, request, budget, events: Vec::new(), bytes: 0 };
        let (next, up_to) = match &mut self.plan {
            Plan::None => unreachable!("a plan has just been made"),
            Plan::List { changes, up_to } => (reading.take(changes)?, *up_to),
            Plan::Scan { up_to } => (reading.scan(self.next, *up_to)?, *up_to),
        };
        // Between here and the next change of a list there is nothing to miss.
        self.next = next.unwrap_or(up_to + 1);
        if next.is_none() {
            self.plan = Plan::None;
        }
        Ok(Step::Told { events: reading.finish()?, done: self.next > view.revision() })
    }

    fn make_plan<M: Moment>(&mut self, view: &M, request: &WatchRequest) {
        let index = view.index();
        let (since, up_to) = (self.next, view.revision());
        let backlog = up_to.abs_diff(since) + 1;
        let mut single = Vec::new();
        let range = request.keys.as_range(&mut single);
        if index.count(range, up_to) >= backlog {
            self.plan = Plan::Scan { up_to };
            return;
        }
        let mut list = Earliest::default();
        index.changes(range, since, &mut |revision, mark| {
            // The index under a lock may know more than this view.
            if revision.main <= up_to {
                list.add(revision, mark);
            }
            let dense = list.found * SCANNED_PER_EVENT > backlog;
            if dense { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let dense = list.found * SCANNED_PER_EVENT > backlog;
        self.plan = if dense { Plan::Scan { up_to } } else { list.into_plan(up_to) };
    }
}

/// The earliest changes of those that come along in any order.
#[derive(Default)]
struct Earliest {
    changes: Vec<(Revision, Mark)>,
    found: u64,
    /// The earliest main revision of the changes that found no place.
    left_out: Option<i64>,
}

impl Earliest {
    fn add(&mut self, revision: Revision, mark: Mark) {
        self.changes.push((revision, mark));
        self.found += 1;
        if self.changes.len() == 2 * LIST_MAX {
            self.cut();
        }
    }

    /// Keeps the earlier half.
    fn cut(&mut self) {
        if self.changes.len() > LIST_MAX {
            let (_, (first_out, _), _) =
                self.changes.select_nth_unstable_by_key(LIST_MAX, |(revision, _)| *revision);
            let earliest = self.left_out.map_or(first_out.main, |main| main.min(first_out.main));
            self.left_out = Some(earliest);
            self.changes.truncate(LIST_MAX);
        }
    }

    fn into_plan(mut self, newest: i64) -> Plan {
        self.cut();
        let mut up_to = newest;
        if let Some(left_out) = self.left_out {
            // A revision that is not here as a whole is for the next list.
            up_to = left_out - 1;
            self.changes.retain(|(revision, _)| revision.main <= up_to);
            if self.changes.is_empty() {
                // One transaction has changed more keys than a list takes.
                return Plan::Scan { up_to: left_out };
            }
        }
        self.changes.sort_unstable_by_key(|(revision, _)| std::cmp::Reverse(*revision));
        Plan::List { changes: self.changes, up_to }
    }
}

/// A step under way.
struct Reading<'r, M> {
    view: &'r M,
    request: &'r WatchRequest,
    budget: Budget,
    events: Vec<Event>,
    bytes: usize,
}

impl<M: Moment> Reading<'_, M> {
    /// Fetches changes from the end of a list until there is enough. Returns the main revision of
    /// the next one.
    fn take(&mut self, changes: &mut Vec<(Revision, Mark)>) -> Result<Option<i64>> {
        let (mut seen, mut last) = (0, 0);
        while let Some(&(revision, mark)) = changes.last() {
            if revision.main > last && self.is_enough(seen) {
                return Ok(Some(revision.main));
            }
            (seen, last) = (seen + 1, revision.main);
            changes.pop();
            let record = match mark {
                Mark::Put => revision.put_key(),
                Mark::Tombstone => revision.tombstone_key(),
            };
            match self.view.tx().get(Bucket::Key, &record)? {
                Some(value) => self.add(revision.main, mark, value)?,
                None => self.check_compacted(revision)?,
            }
        }
        Ok(None)
    }

    /// Reads records from a main revision up to another, until there is enough. Returns the main
    /// revision to go on from; `None` if that was all.
    fn scan(&mut self, from: i64, up_to: i64) -> Result<Option<i64>> {
        let (first, end) =
            (Revision::new(from, 0).put_key(), Revision::new(up_to + 1, 0).put_key());
        let (mut seen, mut last) = (0, from);
        let (mut next, mut outcome) = (None, Ok(()));
        let view = self.view;
        view.tx().range(Bucket::Key, KeyRange::new(&first, &end), &mut |key, value| {
            let (revision, mark) = match RecordKey::decode(key) {
                Ok(decoded) => decoded,
                Err(error) => {
                    outcome = Err(Error::Damaged(error.to_string()));
                    return ControlFlow::Break(());
                }
            };
            if revision.main > last && self.is_enough(seen) {
                next = Some(revision.main);
                return ControlFlow::Break(());
            }
            (seen, last) = (seen + 1, revision.main);
            outcome = self.add(revision.main, mark, value.to_bytes());
            if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        outcome.map(|()| next)
    }

    fn is_enough(&self, seen: usize) -> bool {
        seen >= self.budget.records || self.bytes >= self.budget.bytes
    }

    /// Adds a record if the watcher wants it.
    fn add(&mut self, main: i64, mark: Mark, value: Bytes) -> Result<()> {
        if !self.request.wants(mark) {
            return Ok(());
        }
        let damaged = |error| Error::Damaged(format!("a record of revision {main}: {error}"));
        let record = KeyValue::decode(value).map_err(damaged)?;
        if self.request.keys.contains(&record.key) {
            let change = match mark {
                Mark::Put => Change::Put(record),
                Mark::Tombstone => Change::Delete(KeyValue { mod_revision: main, ..record }),
            };
            let event = Event { change, previous: None };
            self.bytes += event.size();
            self.events.push(event);
        }
        Ok(())
    }

    /// What was found, with the records before if they are asked for.
    fn finish(mut self) -> Result<Vec<Event>> {
        if self.request.previous {
            for event in &mut self.events {
                event.previous = previous(self.view, &event.change)?;
            }
        }
        Ok(self.events)
    }

    /// A record that is gone must have gone with a compaction since the list was made.
    fn check_compacted(&self, revision: Revision) -> Result<()> {
        if revision.main <= self.view.compact_revision() {
            return Ok(());
        }
        Err(Error::Damaged(format!("the index names revision {revision}, which has no record")))
    }
}

/// The record that a change has replaced, as far as it can still be known.
pub(super) fn previous<M: Moment>(view: &M, change: &Change) -> Result<Option<KeyValue>> {
    let (Change::Put(record) | Change::Delete(record)) = change;
    let before = record.mod_revision - 1;
    let created = matches!(change, Change::Put(_)) && record.create_revision > before;
    if created || before < view.compact_revision() {
        return Ok(None);
    }
    let found = view.index().get(&record.key, before);
    if whole(view.index(), before).is_err() {
        return Ok(None);
    }
    found.map(|version| fetch(view.tx(), version.modified)).transpose()
}
