//! A cluster of a few members on hosts. Nothing happens in it unless a test makes it happen.
//!
//! Messages stay in a pool until they are delivered. A batch for the log is written immediately,
//! unless a test holds it back. A crash loses the data that the disk has not synced, and the data
//! that the store has not committed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Config, Era};
use clearlane_mvcc::{Changes, RangeOptions};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, PutRequest};
use clearlane_raft::{Message, Role};
use clearlane_replica::membership::Member;
use clearlane_replica::raft_snapshot::{
    MemoryStoreDir, ReceivedSnapshot, SnapshotReceiver, SnapshotSender, StoreDir,
};
use clearlane_replica::{
    ReplicaConfig, ReplicaReady, RequestOutcome, SlowEntry, StorageConfig, bootstrap, start,
};
use clearlane_wal::Metadata;
use clearlane_wal::files::{Fault, SimulatedDisk};
use clearlane_wal::group_commit::Batch;
use clearlane_wal::{Options, Wal, exists};

use crate::halves::test_replica::{PollResult, ReadOutcome, TestReplica};

pub(crate) const DIR: &str = "/member/wal";

/// The members, and the messages in flight between them.
pub(crate) struct ReplicaCluster {
    pub(crate) hosts: BTreeMap<u64, ReplicaHost>,
    pub(crate) in_flight: Vec<Message>,
    /// Snapshot messages of all members. Each of them waits until a test sends its raft snapshot.
    pub(crate) raft_snapshots: Vec<Message>,
    pub(crate) now: Duration,
    pub(crate) config: ReplicaConfig,
    /// Isolated members. Messages from them and to them are dropped.
    pub(crate) isolated: Vec<u64>,
}

/// The environment of one member: its disk, its stores and its settings, which survive a crash, and
/// the outputs that tests check.
pub(crate) struct ReplicaHost {
    id: u64,
    /// The disk with the log.
    pub(crate) disk: Arc<SimulatedDisk>,
    pub(crate) wal: Options,
    pub(crate) store_dir: Arc<MemoryStoreDir>,
    pub(crate) running: Option<(TestReplica, Wal)>,
    pub(crate) results: BTreeMap<u64, RequestOutcome>,
    pub(crate) reads: Vec<ReadOutcome>,
    /// The time for which the last released readers waited only for entries to be applied. `None`
    /// if no reader was released yet.
    pub(crate) applying: Option<Duration>,
    pub(crate) slow_entries: Vec<SlowEntry>,
    pub(crate) changes: Vec<(i64, Changes)>,
    pub(crate) is_stopping: bool,
    /// If true, a commit of the store was requested after the last commit.
    pub(crate) is_commit_due: bool,
    pub(crate) stores_replaced: usize,
    /// The era of a member that starts.
    pub(crate) era: Era,
    /// For each step of the `Applier`, the number of outcomes that it returned.
    pub(crate) steps: Vec<usize>,
    starts: u64,
}

pub(crate) fn member(id: u64) -> Member {
    let peer_urls = vec![format!("http://127.0.0.1:{id}")];
    Member { id, peer_urls, name: format!("m{id}"), ..Member::default() }
}

pub(crate) fn put(key: &str, value: &str) -> InternalRaftRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    let put = Some(PutRequest { key, value, ..PutRequest::default() });
    InternalRaftRequest { put, ..InternalRaftRequest::default() }
}

impl ReplicaHost {
    fn new(id: u64) -> ReplicaHost {
        ReplicaHost {
            id,
            disk: Arc::new(SimulatedDisk::new(["/", "/member"])),
            wal: Options { segment_bytes: 4096, segments_max: Some(2), ..Options::default() },
            store_dir: Arc::new(MemoryStoreDir::default()),
            running: None,
            results: BTreeMap::new(),
            reads: Vec::new(),
            applying: None,
            slow_entries: Vec::new(),
            changes: Vec::new(),
            is_stopping: false,
            is_commit_due: false,
            stores_replaced: 0,
            era: Era::Clearlane,
            steps: Vec::new(),
            starts: 0,
        }
    }

    fn bootstrap(&self, first: &[Member]) -> clearlane_replica::Result<()> {
        bootstrap(&self.storage(), Metadata { node_id: self.id, cluster_id: 77 }, first)
    }

    pub(crate) fn storage(&self) -> StorageConfig {
        StorageConfig {
            files: Arc::clone(&self.disk) as _,
            wal_dir: Path::new(DIR).to_owned(),
            wal: self.wal,
            store_dir: Arc::clone(&self.store_dir) as _,
            era: self.era,
            backend: Config::default(),
            learners_max: 1,
        }
    }

    pub(crate) fn replica(&mut self) -> &mut TestReplica {
        &mut self.running.as_mut().unwrap().0
    }

    pub(crate) fn segments(&self) -> usize {
        self.running.as_ref().unwrap().1.segment_count()
    }

    /// Starts the member and drops it again. Returns the error if it does not start.
    pub(crate) fn try_start(&self, settings: ReplicaConfig) -> clearlane_replica::Result<()> {
        start(self.storage(), settings).map(drop)
    }

    /// Makes the next start use the same start time as the first start.
    pub(crate) fn reset_start_time(&mut self) {
        self.starts = 0;
    }

    /// Returns the indexes of the received stores that the member keeps.
    pub(crate) fn kept_indexes(&self) -> Vec<u64> {
        self.store_dir.kept_indexes().unwrap()
    }

    /// Returns the value of a key, or `None` if the key does not exist, and the store's revision.
    pub(crate) fn get(&mut self, key: &str) -> (Option<String>, i64) {
        let read = self.replica().store().begin_read();
        let end = format!("{key}\0");
        let range = clearlane_engine::KeyRange::new(key.as_bytes(), end.as_bytes());
        let found = read.range(range, RangeOptions::default()).unwrap();
        let value = found.records.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
        (value, read.revision())
    }
}

impl ReplicaCluster {
    /// Creates a cluster of this number of new voters.
    pub(crate) fn new(voters: u64, settings: ReplicaConfig) -> ReplicaCluster {
        let mut cluster = ReplicaCluster {
            hosts: BTreeMap::new(),
            in_flight: Vec::new(),
            raft_snapshots: Vec::new(),
            now: Duration::ZERO,
            config: settings,
            isolated: Vec::new(),
        };
        let first: Vec<Member> = (1..=voters).map(member).collect();
        for id in 1..=voters {
            cluster.add(id, &first);
        }
        cluster
    }

    /// Adds a member that has never run.
    pub(crate) fn add(&mut self, id: u64, first: &[Member]) {
        let host = ReplicaHost::new(id);
        host.bootstrap(first).unwrap();
        self.hosts.insert(id, host);
        self.start(id);
    }

    /// Creates the log of a member. The power fails at the given operation of the member's disk.
    /// Returns whether the disk has a log afterwards.
    pub(crate) fn add_with_power_cut_at(&mut self, id: u64, operation: u64, seed: u64) -> bool {
        let mut host = ReplicaHost::new(id);
        host.disk.fail_at(operation, Fault::PowerCut);
        let _ = host.bootstrap(&[member(id)]);
        host.disk = Arc::new(host.disk.after_power_cut(seed));
        let has_log = exists(&*host.disk, Path::new(DIR)).unwrap();
        self.hosts.insert(id, host);
        has_log
    }

    pub(crate) fn host(&mut self, id: u64) -> &mut ReplicaHost {
        self.hosts.get_mut(&id).unwrap()
    }

    pub(crate) fn start(&mut self, id: u64) {
        let settings = ReplicaConfig { unix_ms: 1, ..self.config.clone() };
        let host = self.host(id);
        host.starts += 1;
        let settings = ReplicaConfig { unix_ms: host.starts * 1_000, ..settings };
        let (raft, apply, wal) = start(host.storage(), settings).unwrap();
        host.running = Some((TestReplica::new(raft, apply), wal));
        self.poll(id);
    }

    /// Crashes a member as if the power failed.
    pub(crate) fn crash(&mut self, id: u64) {
        let host = self.host(id);
        host.running = None;
        host.disk = Arc::new(host.disk.after_power_cut(id));
        self.in_flight.retain(|message| message.from() != id && message.to() != id);
    }

    /// Returns the disk as if the power failed now: with the synced part of the log.
    pub(crate) fn synced_log(&mut self, id: u64) -> SimulatedDisk {
        self.host(id).disk.after_power_cut(id)
    }

    /// Crashes a member as if the power failed, and replaces its log by an earlier one.
    pub(crate) fn crash_with_log(&mut self, id: u64, log: SimulatedDisk) {
        self.crash(id);
        self.host(id).disk = Arc::new(log);
    }

    pub(crate) fn call<T>(&mut self, id: u64, input: impl FnOnce(&mut TestReplica) -> T) -> T {
        let result = input(self.host(id).replica());
        self.poll(id);
        result
    }

    /// Polls a member until it has nothing more to do.
    pub(crate) fn poll(&mut self, id: u64) {
        while !self.poll_once(id) {}
    }

    /// Polls a member once, and writes its batch. Returns whether it had nothing to write.
    pub(crate) fn poll_once(&mut self, id: u64) -> bool {
        let now = self.now;
        let Some((core, wal)) = &mut self.host(id).running else { return true };
        let PollResult { raft, apply, answers, reads, applying, steps } = core.poll(now).unwrap();
        let ReplicaReady {
            messages: send,
            raft_snapshots: copies,
            wal_batch: write,
            purge_below: purge,
            is_stopping: stops,
            is_commit_due,
            ..
        } = raft;
        if let Some(index) = purge {
            wal.purge(index).unwrap();
        }
        let is_done = write.is_none();
        if let Some(batch) = write {
            core.written(batch.write(wal)).unwrap();
        }
        let host = self.host(id);
        host.applying = applying.or(host.applying);
        host.reads.extend(reads);
        host.results.extend(answers);
        host.steps.extend(steps);
        host.is_stopping |= stops;
        host.is_commit_due |= is_commit_due;
        for outputs in apply {
            host.slow_entries.extend(outputs.slow_entries);
            host.changes.extend(outputs.changes);
            host.stores_replaced += usize::from(outputs.new_store.is_some());
        }
        self.in_flight.extend(send);
        self.raft_snapshots.extend(copies);
        is_done
    }

    /// Polls a member, and returns its batch without writing it.
    pub(crate) fn poll_without_writing(&mut self, id: u64) -> Batch {
        let now = self.now;
        let outputs = self.host(id).replica().poll(now).unwrap();
        self.in_flight.extend(outputs.raft.messages);
        outputs.raft.wal_batch.expect("something to be written")
    }

    /// Writes a batch and reports it.
    pub(crate) fn write(&mut self, id: u64, batch: Batch) {
        let (core, wal) = self.host(id).running.as_mut().unwrap();
        core.written(batch.write(wal)).unwrap();
        self.poll(id);
    }

    /// Delivers messages until none are in flight.
    pub(crate) fn deliver_all(&mut self) {
        for _ in 0..100_000 {
            if self.in_flight.is_empty() {
                return;
            }
            let message = self.in_flight.remove(0);
            let (from, to) = (message.from(), message.to());
            let is_up = self.hosts.get(&to).is_some_and(|host| host.running.is_some());
            if is_up && !self.isolated.contains(&from) && !self.isolated.contains(&to) {
                // The error is ignored, because raft may be unable to use a message.
                let _ = self.call(to, |core| core.receive(message));
            }
        }
        panic!("messages without end");
    }

    /// Removes a proposal that is in flight, as if it were lost. Returns it.
    pub(crate) fn lose_proposal(&mut self) -> Message {
        let at = self.in_flight.iter().position(Message::is_proposal).unwrap();
        self.in_flight.remove(at)
    }

    /// Lets time pass, and delivers all messages after each tick.
    pub(crate) fn tick(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.now += Duration::from_millis(100);
            let up = self.hosts.values().filter(|host| host.running.is_some());
            for id in up.map(|host| host.id).collect::<Vec<_>>() {
                self.call(id, TestReplica::tick);
            }
            self.deliver_all();
        }
    }

    /// Lets time pass until a member leads. Returns that member.
    pub(crate) fn leader(&mut self) -> u64 {
        for _ in 0..200 {
            let mut running = self.hosts.values().filter_map(|host| {
                let (core, _) = host.running.as_ref()?;
                let leads = core.raft.raft().leadership().role == Role::Leader;
                (leads && !self.isolated.contains(&host.id)).then_some(host.id)
            });
            if let Some(id) = running.next() {
                return id;
            }
            self.tick(1);
        }
        panic!("no member leads");
    }

    /// Proposes a put at a member and waits for the outcome.
    pub(crate) fn put(&mut self, id: u64, key: &str, value: &str) -> RequestOutcome {
        self.propose_and_wait(id, put(key, value))
    }

    /// Proposes a request at a member and waits for the outcome.
    pub(crate) fn propose_and_wait(
        &mut self,
        id: u64,
        request: InternalRaftRequest,
    ) -> RequestOutcome {
        let request = self.call(id, |core| core.propose(request));
        self.deliver_all();
        // The outcome may need some ticks, for example if a leader must be elected first.
        for _ in 0..20 {
            if let Some(answer) = self.host(id).results.remove(&request) {
                return answer;
            }
            self.tick(1);
        }
        panic!("no answer");
    }

    /// Commits the store of a member, and reports the commit.
    pub(crate) fn commit(&mut self, id: u64) {
        self.host(id).is_commit_due = false;
        self.host(id).replica().store().commit().unwrap();
        self.call(id, TestReplica::store_committed).unwrap();
    }

    /// Sends at most this number of chunks of a raft snapshot. If the snapshot is complete, passes
    /// it to the receiving member. Returns whether it is complete, and reports this to the sending
    /// member.
    pub(crate) fn send_raft_snapshot(&mut self, message: Message, chunks: usize) -> bool {
        let (from, to) = (message.from(), message.to());
        let exporter = self.host(from).replica().store().snapshot().unwrap();
        let mut sender = SnapshotSender::new(exporter, message).unwrap();
        let store_dir = Arc::clone(&self.host(to).store_dir) as Arc<dyn StoreDir>;
        let mut receiver = SnapshotReceiver::new(store_dir);
        for _ in 0..chunks {
            let Some(chunk) = sender.next_chunk().unwrap() else {
                let copy = receiver.finish().unwrap();
                self.call(to, |core| core.receive_raft_snapshot(copy));
                self.call(from, |core| core.report_raft_snapshot(to, true));
                self.deliver_all();
                return true;
            };
            receiver.feed(&chunk).unwrap();
        }
        drop(receiver);
        self.call(from, |core| core.report_raft_snapshot(to, false));
        self.deliver_all();
        false
    }

    /// Transfers a complete raft snapshot to a member, and reports nothing to raft.
    pub(crate) fn keep_raft_snapshot(&mut self, message: Message) -> ReceivedSnapshot {
        let (from, to) = (message.from(), message.to());
        let exporter = self.host(from).replica().store().snapshot().unwrap();
        let mut sender = SnapshotSender::new(exporter, message).unwrap();
        let mut receiver =
            SnapshotReceiver::new(Arc::clone(&self.host(to).store_dir) as Arc<dyn StoreDir>);
        while let Some(chunk) = sender.next_chunk().unwrap() {
            receiver.feed(&chunk).unwrap();
        }
        receiver.finish().unwrap()
    }

    /// Transfers a raft snapshot to a member. Kills the member's process after it has written the
    /// record of the snapshot, and before it has synced the record.
    pub(crate) fn receive_and_kill(&mut self, message: Message) {
        let to = message.to();
        let copy = self.keep_raft_snapshot(message);
        let now = self.now;
        let host = self.host(to);
        let (core, wal) = host.running.as_mut().unwrap();
        core.receive_raft_snapshot(copy);
        let batch = core.poll(now).unwrap().raft.wal_batch.expect("the record");
        // The first disk operation writes the record, and the second would sync it.
        host.disk.fail_at(2, Fault::PowerCut);
        core.written(batch.write(wal)).unwrap_err();
        host.running = None;
        host.disk = Arc::new(host.disk.after_kill());
    }

    /// Starts a member whose disk fails at an operation, counted from this call. Returns whether it
    /// starts, and the number of operations.
    pub(crate) fn start_that_fails_at(&mut self, id: u64, operation: u64) -> (bool, u64) {
        let settings = self.config.clone();
        let host = self.host(id);
        let before = host.disk.operations();
        host.disk.fail_at(operation, Fault::Error);
        let starts = host.try_start(settings).is_ok();
        (starts, host.disk.operations() - before)
    }

    /// Transfers a raft snapshot to a member, and stops the member when its log has the record of
    /// the snapshot. Returns the index of the snapshot.
    pub(crate) fn receive_and_stop(&mut self, message: Message) -> u64 {
        let to = message.to();
        let copy = self.keep_raft_snapshot(message);
        let (index, now) = (copy.index, self.now);
        let host = self.host(to);
        let (core, wal) = host.running.as_mut().unwrap();
        core.receive_raft_snapshot(copy);
        let batch = core.poll(now).unwrap().raft.wal_batch.expect("the record");
        let _written = batch.write(wal);
        self.crash(to);
        index
    }
}
