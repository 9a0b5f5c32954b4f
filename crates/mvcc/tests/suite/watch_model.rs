//! Compares watching with a simple model: a list of all revisions with their changes.
//!
//! Random operations run on a store, its watchers and a few streams. The limits are so small that
//! channels and the queue are full most of the time. Each response is compared with the list
//! immediately. A watcher must receive all its events from the list, in order, in whole revisions,
//! without repetitions or gaps. At the end everything is delivered, and no watcher may miss an
//! event.
//!
//! For each watcher, the model stores `next`: all events below this revision have been delivered,
//! unless the watcher did not want them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Config, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Event, INVALID_WATCH_ID, Response, ResponseKind, WakeSet, WatchConfig,
    WatchError, WatchRequest, WatchStream, WatchableStore, WatchedKeys,
};
use clearlane_mvcc::{
    Change, Changes, CompactionJob, SnapshotStore, SnapshotWatchableStore, Store as _, StoreConfig,
};
use proptest::prelude::*;

const STREAMS: usize = 3;

#[derive(Clone, Debug)]
enum Operation {
    /// Runs one transaction: each key is put (true) or deleted (false).
    Txn(BTreeMap<u8, bool>),
    /// Publishes this number of the transactions that are not published yet.
    Publish(usize),
    Deliver,
    CatchUp,
    Open(usize),
    Close(usize),
    Watch(usize, Start, WatchRequest),
    Cancel(usize, i64),
    Take(usize, usize),
    RequestProgress(usize),
    IntervalPassed(usize),
    /// Compacts at this number of revisions before the current one.
    Compact(i64),
    CompactStep,
    Commit,
}

#[derive(Clone, Copy, Debug)]
enum Start {
    Now,
    Absolute(i64),
    /// Relative to the current revision.
    Relative(i64),
}

fn key(key: u8) -> Bytes {
    Bytes::copy_from_slice(&[b'k', key])
}

fn keys() -> impl Strategy<Value = WatchedKeys> {
    prop_oneof![
        2 => (0..6_u8).prop_map(|one| WatchedKeys::Single(key(one))),
        3 => (0..6_u8, 0..5_u8).prop_map(|(from, len)| {
            WatchedKeys::Range(key(from), key(from + len))
        }),
        1 => (0..6_u8).prop_map(|from| WatchedKeys::From(key(from))),
    ]
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        2 => Just(Start::Now),
        2 => (1..12_i64).prop_map(Start::Absolute),
        2 => (-6..4_i64).prop_map(Start::Relative),
        1 => prop_oneof![Just(i64::MIN), Just(-1), Just(i64::MAX)].prop_map(Start::Absolute),
    ]
}

fn id() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => Just(0_i64),
        3 => 1..5_i64,
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(-1)],
    ]
}

fn request() -> impl Strategy<Value = WatchRequest> {
    let filter = || prop::bool::weighted(0.2);
    (keys(), id(), filter(), filter(), any::<bool>(), any::<bool>()).prop_map(
        |(keys, id, no_put, no_delete, previous, progress)| WatchRequest {
            id,
            no_put,
            no_delete,
            prev_kv: previous,
            // A progress notice for a watcher with the ID -1 would look like a progress response
            // for the whole stream.
            progress_notify: progress && id != INVALID_WATCH_ID,
            ..WatchRequest::new(keys)
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let stream = || 0..STREAMS;
    prop_oneof![
        12 => prop::collection::btree_map(0..8_u8, prop::bool::weighted(0.7), 1..4)
            .prop_map(Operation::Txn),
        8 => (1..4_usize).prop_map(Operation::Publish),
        6 => Just(Operation::Deliver),
        8 => Just(Operation::CatchUp),
        2 => stream().prop_map(Operation::Open),
        1 => stream().prop_map(Operation::Close),
        7 => (stream(), start(), request())
            .prop_map(|(stream, start, request)| Operation::Watch(stream, start, request)),
        2 => (stream(), prop_oneof![0..5_i64, Just(99)])
            .prop_map(|(stream, id)| Operation::Cancel(stream, id)),
        7 => (stream(), prop_oneof![Just(1_usize), 100..2000_usize, Just(usize::MAX)])
            .prop_map(|(stream, bytes)| Operation::Take(stream, bytes)),
        2 => stream().prop_map(Operation::RequestProgress),
        2 => stream().prop_map(Operation::IntervalPassed),
        2 => (-1..8_i64).prop_map(Operation::Compact),
        3 => Just(Operation::CompactStep),
        2 => Just(Operation::Commit),
    ]
}

fn config() -> impl Strategy<Value = WatchConfig> {
    let bytes = || prop_oneof![Just(0_usize), 1..1500_usize, Just(1 << 20)];
    (bytes(), bytes(), prop_oneof![0..5_usize, Just(1000)], bytes()).prop_map(
        |(stream_bytes_max, queue_bytes_max, step_records, step_bytes)| WatchConfig {
            stream_bytes_max,
            queue_bytes_max,
            sync_step_records: step_records,
            sync_step_bytes: step_bytes,
        },
    )
}

#[derive(Clone, Debug)]
struct ExpectedWatcher {
    request: WatchRequest,
    /// The first revision whose events have not been delivered yet.
    next: i64,
    /// The newest revision in the watcher's responses `Created` and `Events`.
    newest_revision: i64,
    created: bool,
    /// If true, the client has canceled the watcher. Events that were already in the stream's
    /// channel may still be returned.
    canceled: bool,
}

/// A stream and its expected watchers, in the order of their creation. An ID may be used again.
struct Client {
    stream: WatchStream,
    watchers: Vec<(i64, ExpectedWatcher)>,
    /// The expected rejections, in order.
    refusals: Vec<WatchError>,
    /// The store's revision at each progress request.
    progress_requested_at: Vec<i64>,
    next_id: i64,
}

impl Client {
    fn is_taken(&self, id: i64) -> bool {
        self.watchers.iter().any(|(known, watcher)| *known == id && !watcher.canceled)
    }

    /// Returns the ID that a new watcher gets by etcd's rule if the client requests the ID `asked`.
    fn number(&mut self, asked: i64) -> i64 {
        if asked != 0 {
            return asked;
        }
        while self.is_taken(self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }
}

struct World {
    store: Arc<SnapshotStore<()>>,
    watchable_store: Arc<dyn WatchableStore>,
    clients: Vec<Option<Client>>,
    unpublished: Vec<(i64, Changes)>,
    /// The changes of each revision.
    history: BTreeMap<i64, Vec<Change>>,
    maps: BTreeMap<i64, BTreeMap<Bytes, Change>>,
    compacted: i64,
    job: Option<CompactionJob>,
}

impl World {
    fn new(config: WatchConfig) -> World {
        let engine = Arc::new(MemoryEngine::new());
        let store =
            SnapshotStore::open(StoreConfig::new(engine, Config::default(), PreCommit::none(), ()))
                .unwrap()
                .0;
        let store = Arc::new(store);
        let watchable_store = SnapshotWatchableStore::new(
            Arc::clone(&store),
            config,
            &Registry::new(),
            Box::new(|_| {}),
        );
        World {
            store,
            watchable_store: Arc::new(watchable_store),
            clients: (0..STREAMS).map(|_| None).collect(),
            unpublished: Vec::new(),
            history: BTreeMap::new(),
            maps: BTreeMap::from([(1, BTreeMap::new())]),
            compacted: -1,
            job: None,
        }
    }

    fn revision(&self) -> i64 {
        *self.maps.last_key_value().unwrap().0
    }

    fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Txn(changes) => self.txn(changes),
            Operation::Publish(count) => self.publish(*count),
            Operation::Deliver => drop(self.watchable_store.deliver().unwrap()),
            Operation::CatchUp => drop(self.watchable_store.sync_watchers().unwrap()),
            Operation::Open(number) => self.open(*number),
            Operation::Close(number) => self.clients[*number] = None,
            Operation::Watch(number, start, request) => self.watch(*number, *start, request),
            Operation::Cancel(number, id) => self.cancel(*number, *id),
            Operation::Take(number, bytes) => drop(self.take(*number, *bytes)),
            Operation::RequestProgress(number) => {
                let now = self.revision();
                if let Some(client) = &mut self.clients[*number] {
                    client.stream.request_progress();
                    client.progress_requested_at.push(now);
                }
            }
            Operation::IntervalPassed(number) => {
                if let Some(client) = &self.clients[*number] {
                    client.stream.notify_progress();
                }
            }
            Operation::Compact(back) => self.compact(self.revision() - back),
            Operation::CompactStep => self.compact_step(),
            Operation::Commit => self.store.commit().unwrap(),
        }
    }

    fn txn(&mut self, changes: &BTreeMap<u8, bool>) {
        let mut txn = self.store.begin_write().unwrap();
        for (number, puts) in changes {
            let key = key(*number);
            if *puts {
                txn.put(&key, &[*number; 20], 0).unwrap();
            } else {
                let end = [&key[..], &[0]].concat();
                txn.delete_range(KeyRange::new(&key, &end)).unwrap();
            }
        }
        let ended = txn.end(()).unwrap();
        if ended.changes.is_empty() {
            return;
        }
        let mut map = self.maps.last_key_value().unwrap().1.clone();
        let changes: Vec<Change> = ended.changes.clone().into_changes().collect();
        for change in &changes {
            match change {
                Change::Put(record) => drop(map.insert(record.key.clone(), change.clone())),
                Change::Delete(record) => drop(map.remove(&record.key).unwrap()),
            }
        }
        self.maps.insert(ended.revision, map);
        self.history.insert(ended.revision, changes);
        self.unpublished.push((ended.revision, ended.changes));
    }

    fn publish(&mut self, count: usize) {
        let count = count.min(self.unpublished.len());
        for (revision, changes) in self.unpublished.drain(..count) {
            self.watchable_store.publish_all(vec![(revision, changes)]);
        }
    }

    fn open(&mut self, number: usize) {
        let stream = WatchStream::open(
            CurrentWatchableStore::of(Arc::clone(&self.watchable_store)),
            WakeSet::new(|| {}),
        );
        self.clients[number] = Some(Client {
            stream,
            watchers: Vec::new(),
            refusals: Vec::new(),
            progress_requested_at: Vec::new(),
            next_id: 0,
        });
    }

    fn watch(&mut self, number: usize, start: Start, request: &WatchRequest) {
        let now = self.revision();
        // If the next revision of a watcher is compacted, the watcher ends when a sync step reads
        // for it. The client cannot know whether this happens before its next request. So all
        // responses are taken before an ID is used again.
        self.take(number, usize::MAX);
        let Some(client) = &mut self.clients[number] else { return };
        let start = match start {
            Start::Now => 0,
            Start::Absolute(revision) => revision,
            Start::Relative(by) => now + by,
        };
        let request = WatchRequest { start_revision: start, ..request.clone() };
        client.stream.watch(request.clone());
        let refusal = if start < 0 {
            Some(WatchError::NegativeStartRevision)
        } else if request.keys.is_empty() {
            Some(WatchError::EmptyRange)
        } else if request.id != 0 && client.is_taken(request.id) {
            Some(WatchError::DuplicateId)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            client.refusals.push(refusal);
            return;
        }
        let id = client.number(request.id);
        let start = if start == 0 { now + 1 } else { start };
        let known = ExpectedWatcher {
            request,
            next: start,
            newest_revision: 0,
            created: false,
            canceled: false,
        };
        client.watchers.push((id, known));
    }

    fn cancel(&mut self, number: usize, id: i64) {
        self.take(number, usize::MAX);
        let Some(client) = &mut self.clients[number] else { return };
        client.stream.cancel(id);
        let known =
            client.watchers.iter_mut().find(|(known, watcher)| *known == id && !watcher.canceled);
        if let Some((_, watcher)) = known {
            watcher.canceled = true;
        }
    }

    fn compact(&mut self, at: i64) {
        if self.job.is_none() && at > self.compacted && at <= self.revision() {
            let (job, ended) = self.store.compact(at, ()).unwrap();
            drop(ended);
            (self.job, self.compacted) = (Some(job), at);
        }
    }

    fn compact_step(&mut self) {
        if let Some(job) = &mut self.job
            && self.store.compact_step(job, 2).unwrap()
        {
            self.job = None;
        }
    }

    /// Takes and checks responses. Returns their number.
    fn take(&mut self, number: usize, bytes: usize) -> usize {
        let Some(mut client) = self.clients[number].take() else { return 0 };
        let responses = client.stream.take_responses(bytes).unwrap();
        responses.iter().for_each(|response| self.check(&mut client, response));
        self.clients[number] = Some(client);
        responses.len()
    }

    fn check(&self, client: &mut Client, response: &Response) {
        match &response.kind {
            ResponseKind::Rejected(refusal) => {
                assert_eq!((response.id, client.refusals.remove(0)), (INVALID_WATCH_ID, *refusal));
                return;
            }
            ResponseKind::Progress if response.id == INVALID_WATCH_ID => {
                return self.check_progress(client, response);
            }
            _ => {}
        }
        let of_that_id = client.watchers.iter_mut().filter(|(id, _)| *id == response.id);
        let (_, watcher) = of_that_id.into_iter().next().expect("a response is of a watcher");
        assert_eq!(watcher.created, response.kind != ResponseKind::Created, "{response:?}");
        match &response.kind {
            ResponseKind::Created => {
                watcher.created = true;
                watcher.newest_revision = response.revision;
                return;
            }
            ResponseKind::Events { events, .. } => self.check_events(watcher, response, events),
            ResponseKind::Progress => {
                assert!(
                    watcher.request.progress_notify && response.revision >= watcher.newest_revision
                );
                self.check_nothing_missed(watcher, response.revision);
            }
            ResponseKind::Compacted(at) => {
                assert!(watcher.next < *at && *at <= self.compacted, "{watcher:?} at {at}");
            }
            ResponseKind::Canceled => assert!(watcher.canceled),
            ResponseKind::Rejected(_) => unreachable!("seen above"),
        }
        if matches!(response.kind, ResponseKind::Compacted(_) | ResponseKind::Canceled) {
            // No response may follow for this watcher. A later response with this ID belongs to
            // another watcher.
            let position = client.watchers.iter().position(|(id, _)| *id == response.id).unwrap();
            client.watchers.remove(position);
        }
    }

    /// Checks that the events are all wanted events from the watcher's `next` up to the last
    /// revision of the response.
    fn check_events(&self, watcher: &mut ExpectedWatcher, response: &Response, events: &[Event]) {
        let up_to = mod_revision(&events.last().expect("no response is empty").change);
        let wanted: Vec<&Change> = self.wanted(watcher, up_to);
        let received: Vec<&Change> = events.iter().map(|event| &event.change).collect();
        assert_eq!(received, wanted, "{watcher:?}");
        assert!(response.revision >= up_to && response.revision <= self.revision());
        assert!(response.revision >= watcher.newest_revision, "{watcher:?}: {response:?}");
        for event in events {
            self.check_previous(watcher, event);
        }
        (watcher.next, watcher.newest_revision) = (up_to + 1, response.revision);
    }

    fn check_previous(&self, watcher: &ExpectedWatcher, event: &Event) {
        let before = mod_revision(&event.change) - 1;
        let expected = self.maps[&before].get(key_of(&event.change));
        let expected = expected.filter(|_| watcher.request.prev_kv).map(|change| match change {
            Change::Put(record) | Change::Delete(record) => record,
        });
        let compacted = before < self.compacted && event.prev_kv.is_none();
        assert!(compacted || event.prev_kv.as_ref() == expected, "{watcher:?}: {event:?}");
    }

    fn wanted(&self, watcher: &ExpectedWatcher, up_to: i64) -> Vec<&Change> {
        if watcher.next > up_to {
            return Vec::new();
        }
        let changes = self.history.range(watcher.next..=up_to).flat_map(|(_, changes)| changes);
        let wants = |change: &&Change| {
            let filtered = match change {
                Change::Put(_) => watcher.request.no_put,
                Change::Delete(_) => watcher.request.no_delete,
            };
            !filtered && watcher.request.keys.contains(key_of(change))
        };
        changes.filter(wants).collect()
    }

    /// Checks that the watcher has received everything up to a revision, and that the watcher does
    /// not start after this revision.
    fn check_nothing_missed(&self, watcher: &ExpectedWatcher, revision: i64) {
        assert!(watcher.created && watcher.request.start_revision <= revision, "{watcher:?}");
        assert!(revision <= self.revision());
        assert_eq!(self.wanted(watcher, revision), Vec::<&Change>::new(), "{watcher:?}");
    }

    fn check_progress(&self, client: &mut Client, response: &Response) {
        let position =
            client.progress_requested_at.iter().position(|asked| *asked <= response.revision);
        client
            .progress_requested_at
            .remove(position.expect("no progress was requested, or not yet"));
        for (_, watcher) in &client.watchers {
            // If the response `Created` of a watcher has not been taken yet, the watcher was
            // created after the progress request. Canceled watchers are not checked.
            if watcher.created && !watcher.canceled {
                self.check_nothing_missed(watcher, response.revision);
            }
        }
    }

    /// Publishes, delivers and syncs until nothing is left to do. Then no watcher may miss an
    /// event.
    fn settle(&mut self) {
        self.publish(usize::MAX);
        let mut idle = false;
        let mut rounds = 0;
        while !idle {
            rounds += 1;
            assert!(rounds < 10_000, "it does not settle");
            let delivered = self.watchable_store.deliver().unwrap();
            let caught_up = self.watchable_store.sync_watchers().unwrap();
            let taken: usize = (0..STREAMS).map(|number| self.take(number, 300)).sum();
            idle = !delivered
                && !caught_up
                && taken == 0
                && self.watchable_store.metrics().queued == 0;
        }
        for client in self.clients.iter().flatten() {
            assert!(client.refusals.is_empty());
            for (_, watcher) in &client.watchers {
                assert!(watcher.created && !watcher.canceled);
                let lacking = self.wanted(watcher, self.revision());
                assert_eq!(lacking, Vec::<&Change>::new(), "{watcher:?}");
            }
        }
        let watchers = self.clients.iter().flatten().map(|client| client.watchers.len()).sum();
        let figures = self.watchable_store.metrics();
        assert_eq!((figures.watchers, figures.unsynced), (watchers, 0));
        self.settled_progress();
    }

    /// Checks progress after `settle`. A stream that requests progress now must get a response,
    /// unless it has no watcher, or a watcher that starts in the future.
    fn settled_progress(&mut self) {
        let now = self.revision();
        for number in 0..STREAMS {
            let Some(client) = &mut self.clients[number] else { continue };
            client.progress_requested_at.clear();
            client.stream.request_progress();
            let future =
                client.watchers.iter().any(|(_, watcher)| watcher.request.start_revision > now);
            let answered = !future && !client.watchers.is_empty();
            let answers = client.stream.take_responses(usize::MAX).unwrap();
            assert_eq!(answers.len(), usize::from(answered), "{answers:?}");
            for answer in answers {
                assert_eq!((answer.id, answer.kind), (INVALID_WATCH_ID, ResponseKind::Progress));
                assert_eq!(answer.revision, now);
            }
        }
    }
}

fn key_of(change: &Change) -> &Bytes {
    let (Change::Put(record) | Change::Delete(record)) = change;
    &record.key
}

fn mod_revision(change: &Change) -> i64 {
    let (Change::Put(record) | Change::Delete(record)) = change;
    record.mod_revision
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn watchers_get_what_the_list_has(
        config in config(),
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut world = World::new(config);
        world.open(0);
        operations.iter().for_each(|operation| world.run(operation));
        world.settle();
    }
}
