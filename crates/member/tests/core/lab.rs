//! A few members on a bench: nothing happens unless a test lets it.
//!
//! Messages lie in a pool until they are delivered. A log is written at once, and a crash loses what
//! the disk has not synced and what the store has not committed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Config, Design};
use clearlane_member::copies::{MemoryVault, Received, Receiver, Sender, Vault};
use clearlane_member::core::{Answer, Ground, Outputs, Settings, Slow, bootstrap, start};
use clearlane_member::membership::Member;
use clearlane_mvcc::{Change, OneAfterTheOther, RangeOptions};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, PutRequest};
use clearlane_raft_log::Metadata;
use clearlane_raft_log::driver::{Message, Role};
use clearlane_raft_log::files::{Fault, SimulatedDisk};
use clearlane_raft_log::wal::group::Batch;
use clearlane_raft_log::wal::{Options, Wal, exists};

use crate::both::{Both, Polled, Reads};

const DIR: &str = "/member/wal";

/// Members, and what is on its way between them.
pub(crate) struct Lab {
    pub(crate) benches: BTreeMap<u64, Bench>,
    pub(crate) pool: Vec<Message>,
    /// Snapshots, by who sends them.
    pub(crate) copies: Vec<Message>,
    pub(crate) now: Duration,
    pub(crate) settings: Settings,
    /// From whom and to whom nothing gets through.
    pub(crate) cut: Vec<u64>,
}

/// One member's place.
pub(crate) struct Bench {
    id: u64,
    disk: Arc<SimulatedDisk>,
    pub(crate) vault: Arc<MemoryVault>,
    pub(crate) running: Option<(Both, Wal)>,
    pub(crate) answers: BTreeMap<u64, Answer>,
    pub(crate) reads: Vec<Reads>,
    /// How long the last readers waited for entries to be applied.
    pub(crate) applying: Option<Duration>,
    pub(crate) slow: Vec<Slow>,
    pub(crate) changes: Vec<(i64, Vec<Change>)>,
    pub(crate) stops: bool,
    pub(crate) replaced: usize,
    /// The era that it is started in.
    pub(crate) design: Design,
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

impl Bench {
    fn new(id: u64) -> Bench {
        Bench {
            id,
            disk: Arc::new(SimulatedDisk::new(["/", "/member"])),
            vault: Arc::new(MemoryVault::default()),
            running: None,
            answers: BTreeMap::new(),
            reads: Vec::new(),
            applying: None,
            slow: Vec::new(),
            changes: Vec::new(),
            stops: false,
            replaced: 0,
            design: Design::SnapshotReadTx,
            steps: Vec::new(),
            starts: 0,
        }
    }

    fn bootstrap(&self, first: &[Member]) -> clearlane_member::Result<()> {
        bootstrap(&self.ground(), Metadata { node_id: self.id, cluster_id: 77 }, first)
    }

    fn ground(&self) -> Ground {
        Ground {
            files: Arc::clone(&self.disk) as _,
            wal_dir: Path::new(DIR).to_owned(),
            wal: Options { segment_bytes: 4096, segments_max: Some(2) },
            vault: Arc::clone(&self.vault) as _,
            parts: self.design.into(),
            backend: Config::default(),
            learners_max: 1,
            workers: Arc::new(OneAfterTheOther),
        }
    }

    pub(crate) fn core(&mut self) -> &mut Both {
        &mut self.running.as_mut().unwrap().0
    }

    pub(crate) fn segments(&self) -> usize {
        self.running.as_ref().unwrap().1.segments()
    }

    /// Starts it, if it can.
    pub(crate) fn try_start(&self, settings: Settings) -> clearlane_member::Result<()> {
        start(self.ground(), settings).map(drop)
    }

    /// The next start is at the time of the first.
    pub(crate) fn set_back_the_clock(&mut self) {
        self.starts = 0;
    }

    /// The copies that it keeps.
    pub(crate) fn kept(&self) -> Vec<u64> {
        self.vault.kept().unwrap()
    }

    /// The values under a key, and the store's revision.
    pub(crate) fn get(&mut self, key: &str) -> (Option<String>, i64) {
        let read = self.core().store().read();
        let end = format!("{key}\0");
        let range = clearlane_engine::KeyRange::new(key.as_bytes(), end.as_bytes());
        let found = read.range(range, RangeOptions::default()).unwrap();
        let value = found.records.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
        (value, read.revision())
    }
}

impl Lab {
    /// A cluster of so many voters that have just been made.
    pub(crate) fn new(voters: u64, settings: Settings) -> Lab {
        let mut lab = Lab {
            benches: BTreeMap::new(),
            pool: Vec::new(),
            copies: Vec::new(),
            now: Duration::ZERO,
            settings,
            cut: Vec::new(),
        };
        let first: Vec<Member> = (1..=voters).map(member).collect();
        for id in 1..=voters {
            lab.add(id, &first);
        }
        lab
    }

    /// A member that has never run.
    pub(crate) fn add(&mut self, id: u64, first: &[Member]) {
        let bench = Bench::new(id);
        bench.bootstrap(first).unwrap();
        self.benches.insert(id, bench);
        self.start(id);
    }

    /// A member that is being made when the power fails, at an operation of its disk. Says whether it
    /// has a log then.
    pub(crate) fn add_with_power_cut_at(&mut self, id: u64, operation: u64, seed: u64) -> bool {
        let mut bench = Bench::new(id);
        bench.disk.fail_at(operation, Fault::PowerCut);
        let _ = bench.bootstrap(&[member(id)]);
        bench.disk = Arc::new(bench.disk.after_power_cut(seed));
        let has_log = exists(&*bench.disk, Path::new(DIR)).unwrap();
        self.benches.insert(id, bench);
        has_log
    }

    pub(crate) fn bench(&mut self, id: u64) -> &mut Bench {
        self.benches.get_mut(&id).unwrap()
    }

    pub(crate) fn start(&mut self, id: u64) {
        let settings = Settings { unix_ms: 1, ..self.settings.clone() };
        let bench = self.bench(id);
        bench.starts += 1;
        let settings = Settings { unix_ms: bench.starts * 1_000, ..settings };
        let (raft, apply, wal) = start(bench.ground(), settings).unwrap();
        bench.running = Some((Both::new(raft, apply), wal));
        self.poll(id);
    }

    /// Power fails.
    pub(crate) fn crash(&mut self, id: u64) {
        let bench = self.bench(id);
        bench.running = None;
        bench.disk = Arc::new(bench.disk.after_power_cut(id));
        self.pool.retain(|message| message.from() != id && message.to() != id);
    }

    pub(crate) fn call<T>(&mut self, id: u64, input: impl FnOnce(&mut Both) -> T) -> T {
        let result = input(self.bench(id).core());
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
        let Some((core, wal)) = &mut self.bench(id).running else { return true };
        let Polled { raft, apply, answers, reads, applying, steps } = core.poll(now).unwrap();
        let Outputs { send, copies, write, purge, stops, .. } = raft;
        if let Some(index) = purge {
            wal.purge(index).unwrap();
        }
        let is_done = write.is_none();
        if let Some(batch) = write {
            core.written(batch.write(wal)).unwrap();
        }
        let bench = self.bench(id);
        bench.applying = applying.or(bench.applying);
        bench.reads.extend(reads);
        bench.answers.extend(answers);
        bench.steps.extend(steps);
        bench.stops |= stops;
        for outputs in apply {
            bench.slow.extend(outputs.slow);
            bench.changes.extend(outputs.changes);
            bench.replaced += usize::from(outputs.replaced.is_some());
        }
        self.pool.extend(send);
        self.copies.extend(copies);
        is_done
    }

    /// What a member wants to have written, which stays on its way.
    pub(crate) fn poll_without_writing(&mut self, id: u64) -> Batch {
        let now = self.now;
        let outputs = self.bench(id).core().poll(now).unwrap();
        self.pool.extend(outputs.raft.send);
        outputs.raft.write.expect("something to be written")
    }

    /// It is written now.
    pub(crate) fn write(&mut self, id: u64, batch: Batch) {
        let (core, wal) = self.bench(id).running.as_mut().unwrap();
        core.written(batch.write(wal)).unwrap();
        self.poll(id);
    }

    /// Delivers until nothing is on its way.
    pub(crate) fn run(&mut self) {
        for _ in 0..100_000 {
            if self.pool.is_empty() {
                return;
            }
            let message = self.pool.remove(0);
            let (from, to) = (message.from(), message.to());
            let is_up = self.benches.get(&to).is_some_and(|bench| bench.running.is_some());
            if is_up && !self.cut.contains(&from) && !self.cut.contains(&to) {
                // What raft cannot use is nobody's loss.
                let _ = self.call(to, |core| core.receive(message));
            }
        }
        panic!("messages without end");
    }

    /// A proposal that is on its way gets lost.
    pub(crate) fn lose_proposal(&mut self) -> Message {
        let at = self.pool.iter().position(Message::is_proposal).unwrap();
        self.pool.remove(at)
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.now += Duration::from_millis(100);
            let up = self.benches.values().filter(|bench| bench.running.is_some());
            for id in up.map(|bench| bench.id).collect::<Vec<_>>() {
                self.call(id, Both::tick);
            }
            self.run();
        }
    }

    /// Lets time pass until somebody leads, and says who.
    pub(crate) fn leader(&mut self) -> u64 {
        for _ in 0..200 {
            let mut running = self.benches.values().filter_map(|bench| {
                let (core, _) = bench.running.as_ref()?;
                let leads = core.raft.leadership().role == Role::Leader;
                (leads && !self.cut.contains(&bench.id)).then_some(bench.id)
            });
            if let Some(id) = running.next() {
                return id;
            }
            self.tick(1);
        }
        panic!("nobody leads");
    }

    /// Proposes at a member and waits for the answer.
    pub(crate) fn put(&mut self, id: u64, key: &str, value: &str) -> Answer {
        self.ask(id, put(key, value))
    }

    /// Proposes at a member and waits for the answer.
    pub(crate) fn ask(&mut self, id: u64, request: InternalRaftRequest) -> Answer {
        let request = self.call(id, |core| core.propose(request));
        self.run();
        // A follower hears with the next heartbeat that it is committed.
        for _ in 0..20 {
            if let Some(answer) = self.bench(id).answers.remove(&request) {
                return answer;
            }
            self.tick(1);
        }
        panic!("no answer");
    }

    /// The store of a member is committed.
    pub(crate) fn commit(&mut self, id: u64) {
        self.bench(id).core().store().commit().unwrap();
        self.call(id, Both::store_committed).unwrap();
    }

    /// Sends a copy of a member's store, up to so many chunks, and tells both sides.
    pub(crate) fn send_copy(&mut self, message: Message, chunks: usize) -> bool {
        let (from, to) = (message.from(), message.to());
        let exporter = self.bench(from).core().store().copy().unwrap();
        let mut sender = Sender::new(exporter, message).unwrap();
        let vault = Arc::clone(&self.bench(to).vault) as Arc<dyn Vault>;
        let mut receiver = Receiver::new(vault);
        for _ in 0..chunks {
            let Some(chunk) = sender.next_chunk().unwrap() else {
                let copy = receiver.finish().unwrap();
                self.call(to, |core| core.copy_received(copy));
                self.call(from, |core| core.copy_sent(to, true));
                self.run();
                return true;
            };
            receiver.chunk(&chunk).unwrap();
        }
        drop(receiver);
        self.call(from, |core| core.copy_sent(to, false));
        self.run();
        false
    }

    /// Brings a whole copy to a member, and tells raft nothing.
    pub(crate) fn keep_copy(&mut self, message: Message) -> Received {
        let (from, to) = (message.from(), message.to());
        let exporter = self.bench(from).core().store().copy().unwrap();
        let mut sender = Sender::new(exporter, message).unwrap();
        let mut receiver = Receiver::new(Arc::clone(&self.bench(to).vault) as Arc<dyn Vault>);
        while let Some(chunk) = sender.next_chunk().unwrap() {
            receiver.chunk(&chunk).unwrap();
        }
        receiver.finish().unwrap()
    }

    /// Brings a copy to a member, whose process is killed between writing its record and the sync.
    pub(crate) fn receive_and_be_killed(&mut self, message: Message) {
        let to = message.to();
        let copy = self.keep_copy(message);
        let now = self.now;
        let bench = self.bench(to);
        let (core, wal) = bench.running.as_mut().unwrap();
        core.copy_received(copy);
        let batch = core.poll(now).unwrap().raft.write.expect("the record");
        // The first operation writes, the second would sync.
        bench.disk.fail_at(2, Fault::PowerCut);
        core.written(batch.write(wal)).unwrap_err();
        bench.running = None;
        bench.disk = Arc::new(bench.disk.after_kill());
    }

    /// Starts a member whose disk fails at an operation, counted from here. Says whether it starts,
    /// and how many operations there were.
    pub(crate) fn start_that_fails_at(&mut self, id: u64, operation: u64) -> (bool, u64) {
        let settings = self.settings.clone();
        let bench = self.bench(id);
        let before = bench.disk.operations();
        bench.disk.fail_at(operation, Fault::Error);
        let starts = bench.try_start(settings).is_ok();
        (starts, bench.disk.operations() - before)
    }

    /// Brings a copy to a member, which stops when the log has its record. Returns its index.
    pub(crate) fn receive_and_stop(&mut self, message: Message) -> u64 {
        let to = message.to();
        let copy = self.keep_copy(message);
        let (index, now) = (copy.index, self.now);
        let bench = self.bench(to);
        let (core, wal) = bench.running.as_mut().unwrap();
        core.copy_received(copy);
        let batch = core.poll(now).unwrap().raft.write.expect("the record");
        let _written = batch.write(wal);
        self.crash(to);
        index
    }
}
