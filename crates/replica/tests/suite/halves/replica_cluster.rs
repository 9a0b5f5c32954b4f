//! A few members on a bench: nothing happens unless a test lets it.
//!
//! Messages lie in a pool until they are delivered. A log is written at once, and a crash loses
//! what the disk has not synced and what the store has not committed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Config, Era};
use clearlane_mvcc::{Changes, RangeOptions};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, PutRequest};
use clearlane_raft::{Message, Role};
use clearlane_server::membership::Member;
use clearlane_server::raft_snapshot::{
    MemoryStoreDir, ReceivedSnapshot, SnapshotReceiver, SnapshotSender, StoreDir,
};
use clearlane_server::replica::{
    ReplicaConfig, ReplicaReady, RequestOutcome, SlowEntry, StorageConfig, bootstrap, start,
};
use clearlane_wal::Metadata;
use clearlane_wal::files::{Fault, SimulatedDisk};
use clearlane_wal::group_commit::Batch;
use clearlane_wal::{Options, Wal, exists};

use crate::test_replica::{PollResult, ReadOutcome, TestReplica};

pub(crate) const DIR: &str = "/member/wal";

/// Members, and what is on its way between them.
pub(crate) struct ReplicaCluster {
    pub(crate) hosts: BTreeMap<u64, ReplicaHost>,
    pub(crate) in_flight: Vec<Message>,
    /// Snapshots, by the member that sends them.
    pub(crate) raft_snapshots: Vec<Message>,
    pub(crate) now: Duration,
    pub(crate) config: ReplicaConfig,
    /// The members from which and to which nothing gets through.
    pub(crate) isolated: Vec<u64>,
}

/// One member's place.
pub(crate) struct ReplicaHost {
    id: u64,
    /// The disk with the log.
    pub(crate) disk: Arc<SimulatedDisk>,
    pub(crate) wal: Options,
    pub(crate) store_dir: Arc<MemoryStoreDir>,
    pub(crate) running: Option<(TestReplica, Wal)>,
    pub(crate) results: BTreeMap<u64, RequestOutcome>,
    pub(crate) reads: Vec<ReadOutcome>,
    /// How long the last readers waited for entries to be applied.
    pub(crate) applying: Option<Duration>,
    pub(crate) slow_entries: Vec<SlowEntry>,
    pub(crate) changes: Vec<(i64, Changes)>,
    pub(crate) is_stopping: bool,
    /// Since the last commit.
    pub(crate) is_commit_due: bool,
    pub(crate) stores_replaced: usize,
    /// The era that it is started in.
    pub(crate) era: Era,
    /// Outcomes of each step of its apply half.
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

    fn bootstrap(&self, first: &[Member]) -> clearlane_server::Result<()> {
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

    /// Starts it, if it can.
    pub(crate) fn try_start(&self, settings: ReplicaConfig) -> clearlane_server::Result<()> {
        start(self.storage(), settings).map(drop)
    }

    /// The next start is at the time of the first.
    pub(crate) fn reset_start_time(&mut self) {
        self.starts = 0;
    }

    /// The copies that it keeps.
    pub(crate) fn kept_indexes(&self) -> Vec<u64> {
        self.store_dir.kept_indexes().unwrap()
    }

    /// The values under a key, and the store's revision.
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
    /// A cluster of so many voters that have just been made.
    pub(crate) fn new(voters: u64, settings: ReplicaConfig) -> ReplicaCluster {
        let mut lab = ReplicaCluster {
            hosts: BTreeMap::new(),
            in_flight: Vec::new(),
            raft_snapshots: Vec::new(),
            now: Duration::ZERO,
            config: settings,
            isolated: Vec::new(),
        };
        let first: Vec<Member> = (1..=voters).map(member).collect();
        for id in 1..=voters {
            lab.add(id, &first);
        }
        lab
    }

    /// A member that has never run.
    pub(crate) fn add(&mut self, id: u64, first: &[Member]) {
        let bench = ReplicaHost::new(id);
        bench.bootstrap(first).unwrap();
        self.hosts.insert(id, bench);
        self.start(id);
    }

    /// A member that is being made when the power fails, at an operation of its disk. Says whether
    /// it has a log then.
    pub(crate) fn add_with_power_cut_at(&mut self, id: u64, operation: u64, seed: u64) -> bool {
        let mut bench = ReplicaHost::new(id);
        bench.disk.fail_at(operation, Fault::PowerCut);
        let _ = bench.bootstrap(&[member(id)]);
        bench.disk = Arc::new(bench.disk.after_power_cut(seed));
        let has_log = exists(&*bench.disk, Path::new(DIR)).unwrap();
        self.hosts.insert(id, bench);
        has_log
    }

    pub(crate) fn host(&mut self, id: u64) -> &mut ReplicaHost {
        self.hosts.get_mut(&id).unwrap()
    }

    pub(crate) fn start(&mut self, id: u64) {
        let settings = ReplicaConfig { unix_ms: 1, ..self.config.clone() };
        let bench = self.host(id);
        bench.starts += 1;
        let settings = ReplicaConfig { unix_ms: bench.starts * 1_000, ..settings };
        let (raft, apply, wal) = start(bench.storage(), settings).unwrap();
        bench.running = Some((TestReplica::new(raft, apply), wal));
        self.poll(id);
    }

    /// Power fails.
    pub(crate) fn crash(&mut self, id: u64) {
        let bench = self.host(id);
        bench.running = None;
        bench.disk = Arc::new(bench.disk.after_power_cut(id));
        self.in_flight.retain(|message| message.from() != id && message.to() != id);
    }

    /// What is on disk of its log now.
    pub(crate) fn synced_log(&mut self, id: u64) -> SimulatedDisk {
        self.host(id).disk.after_power_cut(id)
    }

    /// Power fails, and the log is an earlier one.
    pub(crate) fn crash_with_log(&mut self, id: u64, log: SimulatedDisk) {
        self.crash(id);
        self.host(id).disk = Arc::new(log);
    }

    pub(crate) fn call<T>(&mut self, id: u64, input: impl FnOnce(&mut TestReplica) -> T) -> T {
        let result = input(self.host(id).replica());
        self.poll(id);
        result
    }

    /// Lets a member do what there is to do.
    pub(crate) fn poll(&mut self, id: u64) {
        while !self.poll_once(id) {}
    }

    /// Lets it poll once, writes what it wants to have written, and says whether that was all.
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
        let bench = self.host(id);
        bench.applying = applying.or(bench.applying);
        bench.reads.extend(reads);
        bench.results.extend(answers);
        bench.steps.extend(steps);
        bench.is_stopping |= stops;
        bench.is_commit_due |= is_commit_due;
        for outputs in apply {
            bench.slow_entries.extend(outputs.slow_entries);
            bench.changes.extend(outputs.changes);
            bench.stores_replaced += usize::from(outputs.new_store.is_some());
        }
        self.in_flight.extend(send);
        self.raft_snapshots.extend(copies);
        is_done
    }

    /// What a member wants to have written, which stays on its way.
    pub(crate) fn poll_without_writing(&mut self, id: u64) -> Batch {
        let now = self.now;
        let outputs = self.host(id).replica().poll(now).unwrap();
        self.in_flight.extend(outputs.raft.messages);
        outputs.raft.wal_batch.expect("something to be written")
    }

    /// It is written now.
    pub(crate) fn write(&mut self, id: u64, batch: Batch) {
        let (core, wal) = self.host(id).running.as_mut().unwrap();
        core.written(batch.write(wal)).unwrap();
        self.poll(id);
    }

    /// Delivers until nothing is on its way.
    pub(crate) fn deliver_all(&mut self) {
        for _ in 0..100_000 {
            if self.in_flight.is_empty() {
                return;
            }
            let message = self.in_flight.remove(0);
            let (from, to) = (message.from(), message.to());
            let is_up = self.hosts.get(&to).is_some_and(|bench| bench.running.is_some());
            if is_up && !self.isolated.contains(&from) && !self.isolated.contains(&to) {
                // It does no harm if raft cannot use the message.
                let _ = self.call(to, |core| core.receive(message));
            }
        }
        panic!("messages without end");
    }

    /// A proposal that is on its way gets lost.
    pub(crate) fn lose_proposal(&mut self) -> Message {
        let at = self.in_flight.iter().position(Message::is_proposal).unwrap();
        self.in_flight.remove(at)
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.now += Duration::from_millis(100);
            let up = self.hosts.values().filter(|bench| bench.running.is_some());
            for id in up.map(|bench| bench.id).collect::<Vec<_>>() {
                self.call(id, TestReplica::tick);
            }
            self.deliver_all();
        }
    }

    /// Lets time pass until a member leads, and returns which.
    pub(crate) fn leader(&mut self) -> u64 {
        for _ in 0..200 {
            let mut running = self.hosts.values().filter_map(|bench| {
                let (core, _) = bench.running.as_ref()?;
                let leads = core.raft.raft().leadership().role == Role::Leader;
                (leads && !self.isolated.contains(&bench.id)).then_some(bench.id)
            });
            if let Some(id) = running.next() {
                return id;
            }
            self.tick(1);
        }
        panic!("no member leads");
    }

    /// Proposes at a member and waits for the answer.
    pub(crate) fn put(&mut self, id: u64, key: &str, value: &str) -> RequestOutcome {
        self.propose_and_wait(id, put(key, value))
    }

    /// Proposes at a member and waits for the answer.
    pub(crate) fn propose_and_wait(
        &mut self,
        id: u64,
        request: InternalRaftRequest,
    ) -> RequestOutcome {
        let request = self.call(id, |core| core.propose(request));
        self.deliver_all();
        // A follower learns with the next heartbeat that it is committed.
        for _ in 0..20 {
            if let Some(answer) = self.host(id).results.remove(&request) {
                return answer;
            }
            self.tick(1);
        }
        panic!("no answer");
    }

    /// The store of a member is committed.
    pub(crate) fn commit(&mut self, id: u64) {
        self.host(id).is_commit_due = false;
        self.host(id).replica().store().commit().unwrap();
        self.call(id, TestReplica::store_committed).unwrap();
    }

    /// Sends a copy of a member's store, up to so many chunks, and tells both sides.
    pub(crate) fn send_raft_snapshot(&mut self, message: Message, chunks: usize) -> bool {
        let (from, to) = (message.from(), message.to());
        let exporter = self.host(from).replica().store().snapshot().unwrap();
        let mut sender = SnapshotSender::new(exporter, message).unwrap();
        let vault = Arc::clone(&self.host(to).store_dir) as Arc<dyn StoreDir>;
        let mut receiver = SnapshotReceiver::new(vault);
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

    /// Brings a whole copy to a member, and tells raft nothing.
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

    /// Brings a copy to a member, whose process is killed between writing its record and the sync.
    pub(crate) fn receive_and_kill(&mut self, message: Message) {
        let to = message.to();
        let copy = self.keep_raft_snapshot(message);
        let now = self.now;
        let bench = self.host(to);
        let (core, wal) = bench.running.as_mut().unwrap();
        core.receive_raft_snapshot(copy);
        let batch = core.poll(now).unwrap().raft.wal_batch.expect("the record");
        // The first operation writes, the second would sync.
        bench.disk.fail_at(2, Fault::PowerCut);
        core.written(batch.write(wal)).unwrap_err();
        bench.running = None;
        bench.disk = Arc::new(bench.disk.after_kill());
    }

    /// Starts a member whose disk fails at an operation, counted from here. Says whether it starts,
    /// and how many operations there were.
    pub(crate) fn start_that_fails_at(&mut self, id: u64, operation: u64) -> (bool, u64) {
        let settings = self.config.clone();
        let bench = self.host(id);
        let before = bench.disk.operations();
        bench.disk.fail_at(operation, Fault::Error);
        let starts = bench.try_start(settings).is_ok();
        (starts, bench.disk.operations() - before)
    }

    /// Brings a copy to a member, which stops when the log has its record. Returns its index.
    pub(crate) fn receive_and_stop(&mut self, message: Message) -> u64 {
        let to = message.to();
        let copy = self.keep_raft_snapshot(message);
        let (index, now) = (copy.index, self.now);
        let bench = self.host(to);
        let (core, wal) = bench.running.as_mut().unwrap();
        core.receive_raft_snapshot(copy);
        let batch = core.poll(now).unwrap().raft.wal_batch.expect("the record");
        let _written = batch.write(wal);
        self.crash(to);
        index
    }
}
