//! Compares the counts of each stream with a walk over its watchers after each operation.
//!
//! In these tests the store is only a revision number. Channels have a capacity of one byte. So if
//! the client has not taken all earlier responses, a watcher becomes unsynced at the next event
//! that it wants.

use std::ops::RangeInclusive;

use bytes::Bytes;
use clearlane_contention::Registry;
use clearlane_proto::mvccpb::KeyValue;
use proptest::prelude::*;

use super::*;
use crate::interface::Change;
use crate::watch::channel::{ChannelCapacity, WakeSet};
use crate::watch::watcher_group::WatchedKeys;

const STREAMS: RangeInclusive<usize> = 0..=2;
const KEY: &[u8] = b"key";

#[derive(Clone, Debug)]
enum Operation {
    Open,
    Close(usize),
    /// Adds a watcher whose start revision is this far above the store's revision, or below it if
    /// negative. `None` means "now", and so does a start revision of 0 or less.
    Watch(usize, WatchId, Option<i64>),
    Cancel(usize, WatchId),
    /// The store reaches its next revision.
    Write,
    Deliver,
    /// The queue drops up to this number of the next revisions.
    Overflow(i64),
    /// The client takes all its responses.
    Take(usize),
    StartTask,
    /// The oldest task ends after it has read this number of revisions, or fewer if the store has
    /// fewer.
    FinishTask(i64),
    Compact,
    FailTask,
    /// Another store replaces this store. The revision of the new store is this much higher, or
    /// lower if the number is negative.
    Replace(i64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = || prop_oneof![3 => Just(0_i64), 1 => 1..4_i64];
    let start = prop_oneof![Just(None), (-3..4_i64).prop_map(Some)];
    prop_oneof![
        1 => Just(Operation::Open),
        1 => STREAMS.prop_map(Operation::Close),
        6 => (STREAMS, id(), start).prop_map(|(of, id, start)| Operation::Watch(of, id, start)),
        2 => (STREAMS, 0..4_i64).prop_map(|(of, id)| Operation::Cancel(of, id)),
        5 => Just(Operation::Write),
        5 => Just(Operation::Deliver),
        1 => (0..4_i64).prop_map(Operation::Overflow),
        3 => STREAMS.prop_map(Operation::Take),
        4 => Just(Operation::StartTask),
        4 => (0..3_i64).prop_map(Operation::FinishTask),
        1 => Just(Operation::Compact),
        1 => Just(Operation::FailTask),
        1 => (-2..3_i64).prop_map(Operation::Replace),
    ]
}

struct World {
    watchers: Watchers,
    /// The store's revision.
    revision: i64,
    tasks: VecDeque<SyncTask>,
    channels: Vec<Arc<WatchChannel>>,
}

impl World {
    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Open => self.open(),
            Operation::Close(number) => {
                if let Some(channel) = self.stream(number) {
                    self.watchers.close(channel.stream);
                    self.channels.retain(|open| open.stream != channel.stream);
                }
            }
            Operation::Watch(number, id, start) => self.watch(number, id, start),
            Operation::Cancel(number, id) => {
                if let Some(channel) = self.stream(number) {
                    self.watchers.cancel(channel.stream, id, self.revision);
                }
            }
            Operation::Write => self.revision += 1,
            Operation::Deliver => self.deliver(),
            Operation::Overflow(revisions) => {
                let up_to = self.watchers.delivered_revision + revisions;
                self.watchers.unsync_up_to(up_to.min(self.revision));
            }
            Operation::Take(number) => {
                if let Some(channel) = self.stream(number) {
                    channel.take(usize::MAX);
                    self.watchers.schedule_stream(channel.stream);
                }
            }
            Operation::StartTask => self.tasks.extend(self.watchers.next_sync_task()),
            Operation::FinishTask(revisions) => self.finish_task(revisions),
            Operation::Compact => {
                if let Some(task) = self.tasks.pop_front() {
                    let step = SyncStep::Compacted(self.revision);
                    self.watchers.finish_sync_task(task, step, self.revision);
                }
            }
            Operation::FailTask => {
                if let Some(task) = self.tasks.pop_front() {
                    self.watchers.requeue_sync_task(task);
                }
            }
            Operation::Replace(by) => self.replace(by),
        }
    }

    fn stream(&self, number: usize) -> Option<Arc<WatchChannel>> {
        self.channels.get(number).cloned()
    }

    fn open(&mut self) {
        let (capacity, locks) = (ChannelCapacity::Bytes(1), Registry::new());
        let make = |stream| WatchChannel::new(stream, capacity, &locks, WakeSet::new(|| {}));
        let channel = self.watchers.open(make);
        if self.channels.len() > *STREAMS.end() {
            let oldest = self.channels.remove(0);
            self.watchers.close(oldest.stream);
        }
        self.channels.push(channel);
    }

    fn watch(&mut self, number: usize, id: WatchId, start: Option<i64>) {
        let Some(channel) = self.stream(number) else { return };
        if self.watchers.is_empty() {
            self.watchers.advance_to(self.revision);
        }
        let start_revision = start.map_or(0, |above| (self.revision + above).max(0));
        let keys = WatchedKeys::Single(Bytes::from_static(KEY));
        let request = WatchRequest { id, start_revision, ..WatchRequest::new(keys) };
        self.watchers.watch(channel.stream, request, self.revision);
    }

    fn deliver(&mut self) {
        let revision = self.watchers.delivered_revision + 1;
        if revision <= self.revision {
            let events = Arc::from([event()]);
            let mut delivered = DeliveryResult::default();
            self.watchers.notify(revision, &events, &events, &mut delivered);
        }
    }

    fn finish_task(&mut self, revisions: i64) {
        let Some(mut task) = self.tasks.pop_front() else { return };
        let next = (task.reader.next_revision + revisions).min(self.revision + 1);
        task.reader.next_revision = next;
        let events = if revisions == 0 { vec![event()] } else { Vec::new() };
        let step = SyncStep::Events { events, done: next > self.revision };
        self.watchers.finish_sync_task(task, step, self.revision);
    }

    fn replace(&mut self, by: i64) {
        let detached = self.watchers.detach_streams();
        self.check();
        self.revision = (self.revision + by).max(1);
        self.watchers = Watchers::new(self.revision);
        for stream in detached {
            self.watchers.attach_stream(stream, self.revision);
        }
        self.tasks.clear();
    }

    fn check(&self) {
        let (watchers, delivered) = (&self.watchers, self.watchers.delivered_revision);
        let mut unsynced_total = 0;
        for stream in watchers.streams.values() {
            let all = || stream.watchers.values();
            let unsynced = all().filter(|watcher| !watcher.is_synced()).count();
            unsynced_total += unsynced;
            assert_eq!(stream.unsynced_count, unsynced);
            let is_synced = !stream.watchers.is_empty()
                && all().all(|watcher| watcher.progress_revision(delivered).is_some());
            assert_eq!(stream.is_synced(delivered), is_synced);
            let exists = |id| stream.watchers.contains_key(id);
            assert!(stream.undelivered_starts.iter().all(|(_, id)| exists(id)));
        }
        assert_eq!(watchers.unsynced_count, unsynced_total);
    }
}

fn event() -> Event {
    Event::new(Change::Put(KeyValue { key: Bytes::from_static(KEY), ..KeyValue::default() }))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_counts_of_a_stream_agree_with_a_walk_over_its_watchers(
        operations in prop::collection::vec(operation(), 1..100),
    ) {
        let mut world = World {
            watchers: Watchers::new(1),
            revision: 1,
            tasks: VecDeque::new(),
            channels: Vec::new(),
        };
        world.open();
        for operation in &operations {
            world.run(operation);
            world.check();
        }
    }
}
