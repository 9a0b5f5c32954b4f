//! A copy of one key range of the cluster, with its recent history.
//!
//! It has the shape of etcd's own store: an index maps each key to its revisions, and the records
//! are stored by revision. Both are immutable trees, so a [`Snapshot`] costs two pointers, and a
//! reader of a snapshot waits for nobody.
//!
//! ```text
//!   index    a: 4  b: 6 9  c: 7        snapshot: both roots and `revision`
//!   records  4 6 7 9
//!   history  [7: put c] [9: put b]     the events after `base`, for watchers
//!            base = 6    revision = 9
//! ```
//!
//! Invariants:
//! * The snapshot has exactly the keys that the range had in the cluster at `revision`.
//! * The history has all events of the range with `history_base < revision of the event <=
//!   revision`. `history_base` is `base`, or lower after [`Contents::extend_history`].
//! * A read at revision `at` gives the cluster's answer if `base <= at <= revision`: the records
//!   that such a read needs are kept until `base` passes them.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{
    EncodedLen, IndexSnapshot as _, PersistentIndex, PersistentSnapshot, Revision,
    SortedRunBuilder, TreeIndex as _, Version,
};
use clearlane_proto::mvccpb::event::EventType;
use clearlane_proto::mvccpb::{Event, KeyValue};
use imbl::OrdMap;

/// Estimated memory of a record in addition to its key and value: two tree slots and two counted
/// pointers.
const RECORD_OVERHEAD_BYTES: usize = 200;
/// Number of keys that one step of a compaction of the index visits.
const COMPACTION_KEYS: usize = 1000;
/// The index is compacted when this number of its changes is no longer needed, or as many as there
/// are live keys, whichever is larger. So the cost of a compaction is shared by many changes.
const COMPACTED_CHANGES_MIN: usize = 4096;

/// Limits of the history. Old events are dropped when one limit is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    pub revisions_max: usize,
    pub bytes_max: usize,
}

impl Default for HistoryLimits {
    fn default() -> HistoryLimits {
        HistoryLimits { revisions_max: 100_000, bytes_max: 64 << 20 }
    }
}

/// A change of one key.
#[derive(Clone, Debug)]
pub struct CachedEvent {
    pub kind: EventType,
    /// The new version. For a deletion, it has only the key and the revision of the deletion.
    pub current: Arc<KeyValue>,
    /// The version that the change has replaced. `None` if the key had no value before.
    pub previous: Option<Arc<KeyValue>>,
    /// The revision under which `previous` is stored.
    previous_revision: Option<Revision>,
}

/// All changes of one main revision, in the order of the transaction.
#[derive(Debug)]
pub struct RevisionEvents {
    pub revision: i64,
    pub events: Vec<CachedEvent>,
    bytes: usize,
}

impl RevisionEvents {
    /// Returns the approximate memory of the events.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The state of the range at one revision.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    index: PersistentSnapshot,
    records: OrdMap<Revision, Arc<KeyValue>>,
    pub revision: i64,
    /// The oldest revision that can be read.
    pub base: i64,
}

/// An upstream member sent something that no correct member sends. The copy cannot be trusted any
/// more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenFeed {
    #[error("an event without a key and value")]
    NoRecord,
    #[error("an event of revision {got} after revision {seen}")]
    Order { got: i64, seen: i64 },
}

#[derive(Debug)]
pub struct Contents {
    index: PersistentIndex,
    records: OrdMap<Revision, Arc<KeyValue>>,
    history: VecDeque<Arc<RevisionEvents>>,
    history_bytes: usize,
    record_bytes: usize,
    revision: i64,
    base: i64,
    history_base: i64,
    limits: HistoryLimits,
    /// Number of changes in the index that no read needs any more.
    stale_changes: usize,
}

impl Contents {
    /// Takes all keys of the range, as they were at `revision`.
    pub fn new(mut keys: Vec<KeyValue>, revision: i64, limits: HistoryLimits) -> Contents {
        keys.sort_by(|a, b| (a.mod_revision, &a.key).cmp(&(b.mod_revision, &b.key)));
        let mut builder = SortedRunBuilder::default();
        let mut records = Vec::with_capacity(keys.len());
        let mut record_bytes = 0;
        let mut modified = Revision::default();
        for key in keys {
            // The listing does not say which change of its transaction a key was. Any distinct
            // numbers will do, because clients see only the main revision.
            modified = match modified.main == key.mod_revision {
                true => Revision::new(modified.main, modified.sub + 1),
                false => Revision::new(key.mod_revision, 0),
            };
            builder.put(
                &key.key,
                Version {
                    modified,
                    created: key.create_revision,
                    version: key.version,
                    encoded_len: EncodedLen::UNKNOWN,
                },
            );
            record_bytes += bytes_of(&key);
            records.push((modified, Arc::new(own(key))));
        }
        let mut index = PersistentIndex::default();
        index.restore(vec![builder.finish()]);
        Contents {
            index,
            records: records.into_iter().collect(),
            history: VecDeque::new(),
            history_bytes: 0,
            record_bytes,
            revision,
            base: revision,
            history_base: revision,
            limits,
            stale_changes: 0,
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            index: self.index.snapshot(),
            records: self.records.clone(),
            revision: self.revision,
            base: self.base,
        }
    }

    /// Returns the revision of the contents: all changes up to it are known.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The oldest revision that can be read. The events after it have their previous values.
    pub fn base(&self) -> i64 {
        self.base
    }

    /// The history has every event after this revision.
    pub fn history_base(&self) -> i64 {
        self.history_base
    }

    /// Returns the memory of the keys, of old versions and of events, estimated.
    pub fn bytes(&self) -> usize {
        self.record_bytes + self.history_bytes
    }

    /// Returns the events from this revision on, oldest first.
    pub fn events_from(&self, revision: i64) -> impl Iterator<Item = &Arc<RevisionEvents>> {
        let first = self.history.partition_point(|events| events.revision < revision);
        self.history.range(first..)
    }

    /// Applies the events of a watch response, which are in the order of their revisions. All
    /// events of a revision arrive in one response. Returns the events by revision.
    ///
    /// Events up to the current revision are skipped: after a reconnect, a member may send them
    /// again.
    pub fn apply(&mut self, events: Vec<Event>) -> Result<Vec<Arc<RevisionEvents>>, BrokenFeed> {
        let known = self.revision;
        let mut applied = Vec::new();
        let mut events = events.into_iter().peekable();
        while let Some(first) = events.peek() {
            let revision = first.kv.as_ref().ok_or(BrokenFeed::NoRecord)?.mod_revision;
            let is_same = |event: &Event| event.kv.as_ref().map(|kv| kv.mod_revision);
            let mut batch = Vec::new();
            while let Some(event) = events.next_if(|next| is_same(next) == Some(revision)) {
                batch.push(event);
            }
            if revision <= known {
                continue;
            }
            if revision <= self.revision {
                return Err(BrokenFeed::Order { got: revision, seen: self.revision });
            }
            applied.push(self.apply_revision(revision, batch));
        }
        self.trim();
        Ok(applied)
    }

    /// Puts the events from `from + 1` to `base` before the history. They have no previous values.
    /// Returns false if the history does not begin after `base`, or has no room for them.
    pub fn extend_history(&mut self, events: Vec<Event>, from: i64, base: i64) -> bool {
        let events = events.into_iter().filter_map(|event| {
            let kind = event.r#type();
            event.kv.map(own).map(|record| (kind, Arc::new(record)))
        });
        let mut older: Vec<RevisionEvents> = Vec::new();
        for (kind, current) in events {
            let revision = current.mod_revision;
            if older.last().is_none_or(|last| last.revision != revision) {
                older.push(RevisionEvents { revision, events: Vec::new(), bytes: 0 });
            }
            let Some(last) = older.last_mut() else { continue };
            last.bytes += bytes_of(&current);
            let event = CachedEvent { kind, current, previous: None, previous_revision: None };
            last.events.push(event);
        }
        let bytes: usize = older.iter().map(RevisionEvents::bytes).sum();
        if base != self.history_base
            || self.history.len() + older.len() > self.limits.revisions_max
            || self.history_bytes + bytes > self.limits.bytes_max
        {
            return false;
        }
        self.history_bytes += bytes;
        self.history_base = from;
        older.into_iter().rev().for_each(|events| self.history.push_front(Arc::new(events)));
        true
    }

    fn apply_revision(&mut self, revision: i64, batch: Vec<Event>) -> Arc<RevisionEvents> {
        let mut events = Vec::with_capacity(batch.len());
        let mut bytes = 0;
        for (sub, event) in batch.into_iter().enumerate() {
            let kind = event.r#type();
            let Some(record) = event.kv.map(own) else { continue };
            let at = Revision::new(revision, sub as i64);
            let current = Arc::new(record);
            let ended = match kind {
                EventType::Put => self.put(at, &current),
                EventType::Delete => self.index.tombstone(&current.key, at).map(|it| it.modified),
            };
            let previous = ended.and_then(|ended| self.records.get(&ended).cloned());
            bytes += bytes_of(&current);
            events.push(CachedEvent { kind, current, previous, previous_revision: ended });
        }
        self.revision = revision;
        self.history_bytes += bytes;
        let events = Arc::new(RevisionEvents { revision, events, bytes });
        self.history.push_back(Arc::clone(&events));
        events
    }

    /// Stores a put. Returns the revision of the version that it replaces.
    fn put(&mut self, at: Revision, record: &Arc<KeyValue>) -> Option<Revision> {
        let replaced = self.index.snapshot().get(&record.key, i64::MAX).map(|it| it.modified);
        self.index.put(&record.key, at, EncodedLen::UNKNOWN);
        self.records.insert(at, Arc::clone(record));
        self.record_bytes += bytes_of(record);
        replaced
    }

    /// Notes that no change of the range up to this revision is missing.
    pub fn advance(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    /// Drops the oldest events above the limits, and the records that only older reads need.
    fn trim(&mut self) {
        while self.history.len() > self.limits.revisions_max
            || self.history_bytes > self.limits.bytes_max
        {
            let Some(oldest) = self.history.pop_front() else { break };
            self.history_base = oldest.revision;
            self.base = self.base.max(oldest.revision);
            self.history_bytes -= oldest.bytes;
            for event in &oldest.events {
                self.stale_changes += 1;
                let Some(replaced) = event.previous_revision else { continue };
                if let Some(record) = self.records.remove(&replaced) {
                    self.record_bytes -= bytes_of(&record);
                }
            }
        }
        if self.stale_changes > COMPACTED_CHANGES_MIN.max(self.records.len()) {
            let mut compaction = self.index.begin_compaction(self.base);
            while !self.index.compact_step(&mut compaction, COMPACTION_KEYS) {}
            self.stale_changes = 0;
        }
    }
}

impl Snapshot {
    /// Calls `visit` for the first `limit` keys of the range at revision `at`, until it breaks.
    /// Returns the number of all keys of the range. `at` must be between `base` and `revision`.
    pub fn visit(
        &self,
        range: KeyRange<'_>,
        at: i64,
        limit: u64,
        visit: &mut dyn FnMut(&Arc<KeyValue>) -> ControlFlow<()>,
    ) -> u64 {
        debug_assert!((self.base..=self.revision).contains(&at), "revision {at} is not here");
        // The index compares `at` with the newest change that it has, so it finds the current
        // versions without their history.
        self.index.revisions(range, at, limit, &mut |_, version| match self
            .records
            .get(&version.modified)
        {
            Some(record) => visit(record),
            None => ControlFlow::Continue(()),
        })
    }

    pub fn get(&self, key: &[u8], at: i64) -> Option<&Arc<KeyValue>> {
        self.records.get(&self.index.get(key, at)?.modified)
    }

    pub fn count(&self, range: KeyRange<'_>, at: i64) -> u64 {
        self.index.count(range, at)
    }
}

/// Copies the key and the value. A decoded record shares the memory of the whole response, which
/// would stay in memory as long as one of its records.
fn own(record: KeyValue) -> KeyValue {
    let mut bytes = Vec::with_capacity(record.key.len() + record.value.len());
    bytes.extend_from_slice(&record.key);
    bytes.extend_from_slice(&record.value);
    let (mut key, value) = (Bytes::from(bytes), record.key.len());
    let value = key.split_off(value);
    KeyValue { key, value, ..record }
}

/// Returns the memory of a record, estimated.
pub(super) fn bytes_of(record: &KeyValue) -> usize {
    record.key.len() + record.value.len() + RECORD_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    type Model = BTreeMap<Vec<u8>, KeyValue>;

    fn read(snapshot: &Snapshot, at: i64) -> Model {
        let mut found = Model::new();
        let count = snapshot.visit(KeyRange::ALL, at, u64::MAX, &mut |record| {
            found.insert(record.key.to_vec(), (**record).clone());
            ControlFlow::Continue(())
        });
        assert_eq!(count, found.len() as u64);
        found
    }

    /// Makes the events of one random transaction, and changes the model in the same way.
    fn transaction(model: &mut Model, revision: i64, random: &mut SmallRng) -> Vec<Event> {
        let mut events = Vec::new();
        for key in 0..12_u8 {
            if !random.random_bool(0.2) {
                continue;
            }
            let key = vec![b'k', key];
            let old = model.get(&key).cloned();
            let mut event = Event::default();
            if random.random_bool(0.3) {
                if model.remove(&key).is_none() {
                    continue;
                }
                event.set_type(EventType::Delete);
                event.kv = Some(KeyValue {
                    key: key.into(),
                    mod_revision: revision,
                    ..KeyValue::default()
                });
            } else {
                let record = KeyValue {
                    key: key.clone().into(),
                    value: format!("{revision}").into_bytes().into(),
                    create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
                    mod_revision: revision,
                    version: old.as_ref().map_or(1, |old| old.version + 1),
                    lease: 0,
                };
                model.insert(key, record.clone());
                event.kv = Some(record);
            }
            events.push(event);
        }
        events
    }

    #[test]
    fn every_revision_of_the_window_reads_as_it_was() {
        for seed in 0..40 {
            let mut random = SmallRng::seed_from_u64(seed);
            let limits = HistoryLimits { revisions_max: 20, bytes_max: usize::MAX };
            let mut model = Model::new();
            transaction(&mut model, 2, &mut random);
            let mut contents = Contents::new(model.values().cloned().collect(), 3, limits);
            let mut states = BTreeMap::from([(3, model.clone())]);
            for revision in 4..120 {
                let events = transaction(&mut model, revision, &mut random);
                let told = contents.apply(events.clone()).unwrap();
                contents.advance(revision);
                states.insert(revision, model.clone());
                let sent: Vec<_> = told.iter().flat_map(|it| &it.events).collect();
                assert_eq!(sent.len(), events.len(), "seed {seed}");
                for event in sent {
                    let key = event.current.key.to_vec();
                    let before = states[&(revision - 1)].get(&key);
                    assert_eq!(event.previous.as_deref(), before, "seed {seed}");
                }
                let snapshot = contents.snapshot();
                for at in snapshot.base..=snapshot.revision {
                    assert_eq!(read(&snapshot, at), states[&at], "seed {seed}, revision {at}");
                }
            }
            assert!(contents.base() > 50, "seed {seed}: old events are dropped");
            assert_eq!(contents.events_from(0).count(), 20, "seed {seed}");
        }
    }

    #[test]
    fn older_events_are_dropped_before_newer_ones() {
        let put = |revision| Event {
            kv: Some(KeyValue { key: "k".into(), mod_revision: revision, ..KeyValue::default() }),
            ..Event::default()
        };
        let limits = HistoryLimits { revisions_max: 6, bytes_max: usize::MAX };
        let mut contents = Contents::new(vec![put(20).kv.unwrap()], 20, limits);
        contents.apply(vec![put(21), put(22)]).unwrap();
        assert!(!contents.extend_history(vec![put(18)], 16, 19), "19 is not where it begins");
        assert!(contents.extend_history(vec![put(17), put(17), put(20)], 16, 20));
        assert_eq!((contents.history_base(), contents.base()), (16, 20));
        let revisions = |contents: &Contents, from| -> Vec<i64> {
            contents.events_from(from).map(|it| it.revision).collect()
        };
        assert_eq!(revisions(&contents, 17), [17, 20, 21, 22]);
        assert!(!contents.extend_history((10..16).map(put).collect(), 9, 16), "there is no room");
        contents.apply((23..26).map(put).collect()).unwrap();
        assert_eq!(revisions(&contents, 0), [20, 21, 22, 23, 24, 25]);
        assert_eq!((contents.history_base(), contents.base()), (17, 20));
        assert_eq!(read(&contents.snapshot(), 20).len(), 1, "the newest base can be read");
        contents.apply((26..28).map(put).collect()).unwrap();
        assert_eq!((contents.history_base(), contents.base()), (21, 21));
    }

    #[test]
    fn records_that_no_read_needs_are_dropped() {
        let limits = HistoryLimits { revisions_max: 10, bytes_max: usize::MAX };
        let mut contents = Contents::new(Vec::new(), 1, limits);
        for revision in 2..20_000 {
            let record =
                KeyValue { key: "k".into(), mod_revision: revision, ..KeyValue::default() };
            contents.apply(vec![Event { kv: Some(record), ..Event::default() }]).unwrap();
        }
        assert!(contents.records.len() <= 11, "{} records", contents.records.len());
        assert!(contents.bytes() <= 21 * (RECORD_OVERHEAD_BYTES + 1), "{}", contents.bytes());
    }

    #[test]
    fn repeated_events_are_skipped_and_disorder_is_an_error() {
        let put = |revision| Event {
            kv: Some(KeyValue { key: "k".into(), mod_revision: revision, ..KeyValue::default() }),
            ..Event::default()
        };
        let mut contents = Contents::new(Vec::new(), 5, HistoryLimits::default());
        assert_eq!(contents.apply(vec![put(4), put(5), put(7)]).unwrap().len(), 1);
        let wrong = contents.apply(vec![put(9), put(8)]).unwrap_err();
        assert_eq!(wrong, BrokenFeed::Order { got: 8, seen: 9 });
        assert_eq!(contents.apply(vec![Event::default()]).unwrap_err(), BrokenFeed::NoRecord);
    }
}
