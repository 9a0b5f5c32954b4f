//! Two members that serve on one thread, and a third member on another thread, which joins and
//! leaves.
//!
//! Messages between the two members are delivered immediately and in order. Messages from and to
//! the third member pass through a channel. A raft snapshot is sent by a separate thread.
//!
//! Each member has a log, the engine bolt and etcd's defaults: it records the store's position
//! every 10,000 entries, and the log keeps the 5,000 entries before this position. The files of a
//! member are in the system's directory for temporary files. Each member has threads for its log
//! and its commits. The third member receives the first 1,000 entries, stops, and misses the next
//! 200,000 entries and the puts of phase `before`.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_benches::pace::processor_time;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, PutRequest};
use clearlane_raft::{Message, Role};
use clearlane_replica::raft_snapshot::{SnapshotReceiver, SnapshotSender, StoreDir};
use clearlane_replica::{ReplicaConfig, ReplicaInput, RequestId};

use crate::HEALTHY;
use crate::member::{EventSender, Member, PollOutput, bootstrap_member, storage_config};

const TICK: Duration = Duration::from_millis(100);
/// The id of the member that joins and leaves.
pub(crate) const THIRD: u64 = 3;

/// The progress that the threads share.
#[derive(Debug, Default)]
struct SharedProgress {
    /// The index that the leader has applied.
    leader_applied: AtomicU64,
    /// The index that the third member has applied.
    third_applied: AtomicU64,
    third_has_started: AtomicBool,
    third_has_caught_up: AtomicBool,
    stop_third: AtomicBool,
    /// Total processor time of the threads that have sent raft snapshots.
    snapshot_ns: AtomicU64,
    /// Processor time of the third member's main thread until the member had caught up.
    third_ns: AtomicU64,
}

/// The times of one raft snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotTimes {
    pub(crate) began: Instant,
    pub(crate) time: Duration,
    pub(crate) processor: Duration,
    pub(crate) bytes: u64,
    /// The index that the snapshot includes.
    pub(crate) index: u64,
}

/// The times of events of the third member, between its start and its stop.
pub(crate) struct ThirdMemberRun {
    /// The time when the third member had opened the data on its disk.
    pub(crate) started: Instant,
    /// The times at which a raft snapshot had replaced the third member's store.
    pub(crate) installed: Vec<Instant>,
    /// The first time when the third member had applied all entries that the leader had applied,
    /// and the index that it had applied then. `None` if it never caught up.
    pub(crate) caught_up: Option<(Instant, u64)>,
    /// Processor time of the thread that runs the third member, from `started` until `caught_up`.
    /// Its log thread and its commit thread are not counted.
    pub(crate) processor: Duration,
}

/// The longest times since the last call of [`Cluster::take_longest`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LongestTimes {
    /// The longest time during which the leader applied no entry.
    pub(crate) gap: Duration,
    /// The longest call of the leader's replica or applier, during which the thread can do nothing
    /// else.
    pub(crate) call: Duration,
    /// The longest write and sync of a batch by the log of either serving member. While the third
    /// member is stopped, an entry is committed only when both serving members have written it.
    pub(crate) write: Duration,
}

/// The cluster, as used by the thread of the two serving members.
pub(crate) struct Cluster {
    members: BTreeMap<u64, Member>,
    leader: u64,
    events: Receiver<(u64, ReplicaInput)>,
    event_sender: EventSender,
    /// Messages between the two serving members.
    messages: VecDeque<Message>,
    third: Option<(EventSender, JoinHandle<ThirdMemberRun>)>,
    third_directory: PathBuf,
    third_store_dir: Option<Arc<dyn StoreDir>>,
    snapshot_threads: Vec<JoinHandle<SnapshotTimes>>,
    shared: Arc<SharedProgress>,
    settings: ReplicaConfig,
    began: Instant,
    next_tick: Instant,
    last_apply: Instant,
    longest_gap: Duration,
    pub(crate) answered: Vec<u64>,
    proposed: u32,
}

impl Cluster {
    /// Creates three new members. Starts two of them, and makes one the leader.
    pub(crate) fn new(
        directory: &Path,
        third_directory: &Path,
        settings: ReplicaConfig,
    ) -> Cluster {
        let (to_inbox, inbox) = mpsc::channel();
        let mut two = BTreeMap::new();
        for id in 1..THIRD {
            let directory = directory.join(id.to_string());
            std::fs::create_dir(&directory).expect(HEALTHY);
            let storage = storage_config(&directory);
            bootstrap_member(&storage, id);
            two.insert(id, Member::start(id, storage, settings.clone(), &to_inbox));
        }
        bootstrap_member(&storage_config(third_directory), THIRD);
        let now = Instant::now();
        let mut cluster = Cluster {
            members: two,
            leader: 0,
            events: inbox,
            event_sender: to_inbox,
            messages: VecDeque::new(),
            third: None,
            third_directory: third_directory.to_owned(),
            third_store_dir: None,
            snapshot_threads: Vec::new(),
            shared: Arc::default(),
            settings,
            began: now,
            next_tick: now,
            last_apply: now,
            longest_gap: Duration::ZERO,
            answered: Vec::new(),
            proposed: 0,
        };
        while cluster.leader == 0 {
            cluster.run_until(now + TICK);
            let leads = |member: &&Member| member.replica.raft().leadership().role == Role::Leader;
            cluster.leader = cluster.members.values().find(leads).map_or(0, |member| member.id);
        }
        cluster
    }

    fn leader(&mut self) -> &mut Member {
        self.members.get_mut(&self.leader).expect("it is one of the two")
    }

    /// Proposes a put at the leader. Returns the number that identifies its result.
    pub(crate) fn put(&mut self, key: u64, value: &Bytes) -> u64 {
        let key = Bytes::from(format!("key-{key:028}"));
        let put = Some(PutRequest { key, value: value.clone(), ..PutRequest::default() });
        let request = InternalRaftRequest { put, ..InternalRaftRequest::default() };
        self.proposed += 1;
        let of = RequestId { queue: 0, slot: self.proposed, generation: 0 };
        let (request, compares) = (Box::new(request), None);
        self.leader().handle_event(ReplicaInput::Propose { request, compares, of });
        u64::from(of.slot)
    }

    /// Handles all pending inputs and their results. If there are none, waits for an input until
    /// `until` or the next tick, whichever is earlier.
    pub(crate) fn run_until(&mut self, until: Instant) {
        let until = until.min(self.next_tick);
        let wait = until.saturating_duration_since(Instant::now());
        let first = match wait.is_zero() {
            true => None,
            false => self.events.recv_timeout(wait).ok(),
        };
        let inputs: Vec<_> = first.into_iter().chain(self.events.try_iter()).collect();
        for (id, input) in inputs {
            self.members.get_mut(&id).expect("the inbox is for the two").handle_event(input);
        }
        if Instant::now() >= self.next_tick {
            self.next_tick += TICK;
            self.members.values_mut().for_each(|member| member.replica.tick());
        }
        loop {
            let mut is_more = false;
            for id in 1..THIRD {
                is_more |= self.poll(id);
            }
            if !is_more {
                return;
            }
        }
    }

    /// Processes the pending work of one serving member, and delivers its messages. Returns true if
    /// it has delivered a message, so that the receiver must be polled again.
    fn poll(&mut self, id: u64) -> bool {
        let member = self.members.get_mut(&id).expect("one of the two");
        let before = member.applier.applied_position.index;
        let outputs = member.poll();
        if id == self.leader {
            let applied = member.applier.applied_position.index;
            if applied > before {
                let now = Instant::now();
                self.longest_gap = self.longest_gap.max(now - self.last_apply);
                self.last_apply = now;
                self.shared.leader_applied.store(applied, Ordering::Release);
            }
        }
        let PollOutput { send, snapshots: copies, answered, .. } = outputs;
        self.answered.extend(answered);
        for message in send {
            self.send(message);
        }
        for message in copies {
            self.send_snapshot(message);
        }
        let is_more = !self.messages.is_empty();
        for message in std::mem::take(&mut self.messages) {
            let to = self.members.get_mut(&message.to()).expect("one of the two");
            to.handle_event(ReplicaInput::Message(message));
        }
        is_more
    }

    fn send(&mut self, message: Message) {
        let (from, to) = (message.from(), message.to());
        if to != THIRD {
            self.messages.push_back(message);
            return;
        }
        let is_sent = self
            .third
            .as_ref()
            .is_some_and(|(inbox, _)| inbox.send((THIRD, ReplicaInput::Message(message))).is_ok());
        if !is_sent {
            self.members
                .get_mut(&from)
                .expect("one of the two")
                .handle_event(ReplicaInput::Unreachable(to));
        }
    }

    /// Sends a raft snapshot to the third member, on a separate thread.
    fn send_snapshot(&mut self, message: Message) {
        let (from, inbox) = (message.from(), self.event_sender.clone());
        let member = self.members.get_mut(&from).expect("one of the two");
        let (Some((third, _)), Some(vault)) = (&self.third, &self.third_store_dir) else {
            member.handle_event(ReplicaInput::RaftSnapshotSent { to: THIRD, is_delivered: false });
            return;
        };
        let (store, third) = (Arc::clone(&member.applier.store), third.clone());
        let mut receiver = SnapshotReceiver::new(Arc::clone(vault));
        let seen = Arc::clone(&self.shared);
        self.snapshot_threads.push(std::thread::spawn(move || {
            let (began, mut bytes) = (Instant::now(), 0);
            let exporter = store.snapshot().expect(HEALTHY);
            let mut sender = SnapshotSender::new(exporter, message).expect(HEALTHY);
            while let Some(chunk) = sender.next_chunk().expect(HEALTHY) {
                bytes += chunk.len() as u64;
                receiver.feed(&chunk).expect(HEALTHY);
            }
            let copy = receiver.finish().expect(HEALTHY);
            let index = copy.index;
            let (time, processor) = (began.elapsed(), processor_time());
            seen.snapshot_ns.fetch_add(processor.as_nanos() as u64, Ordering::Release);
            third
                .send((THIRD, ReplicaInput::RaftSnapshot(Box::new(copy))))
                .expect("the third stays");
            inbox
                .send((from, ReplicaInput::RaftSnapshotSent { to: THIRD, is_delivered: true }))
                .expect("it stays");
            SnapshotTimes { began, time, processor, bytes, index }
        }));
    }

    /// Starts the third member.
    pub(crate) fn start_third(&mut self) {
        self.shared.stop_third.store(false, Ordering::Relaxed);
        self.shared.third_has_started.store(false, Ordering::Relaxed);
        self.shared.third_has_caught_up.store(false, Ordering::Relaxed);
        let (to_third, inbox) = mpsc::channel();
        let storage = storage_config(&self.third_directory);
        self.third_store_dir = Some(Arc::clone(&storage.store_dir));
        // The member derives the first ID of its proposals from this time. The IDs must differ from
        // the IDs that the member used before it stopped.
        let unix_ms = self.settings.unix_ms + self.began.elapsed().as_millis() as u64;
        let settings = ReplicaConfig { unix_ms, ..self.settings.clone() };
        let (own, two, seen) =
            (to_third.clone(), self.event_sender.clone(), Arc::clone(&self.shared));
        let thread = std::thread::spawn(move || {
            run_third(Member::start(THIRD, storage, settings, &own), &inbox, &two, &seen)
        });
        self.third = Some((to_third, thread));
    }

    /// Stops the third member. Returns the times of its run, and of the raft snapshots that were
    /// sent to it.
    pub(crate) fn stop_third(&mut self) -> (ThirdMemberRun, Vec<SnapshotTimes>) {
        let no_panic = "a thread of the bench does not panic";
        self.shared.stop_third.store(true, Ordering::Relaxed);
        let (_, thread) = self.third.take().expect("it is here");
        let visit = thread.join().expect(no_panic);
        self.third_store_dir = None;
        let copies = std::mem::take(&mut self.snapshot_threads).into_iter();
        (visit, copies.map(|copy| copy.join().expect(no_panic)).collect())
    }

    /// Returns whether the third member has opened the data on its disk.
    pub(crate) fn third_has_started(&self) -> bool {
        self.shared.third_has_started.load(Ordering::Acquire)
    }

    /// Returns whether the third member has caught up with the leader at any time since its start.
    pub(crate) fn third_has_caught_up(&self) -> bool {
        self.shared.third_has_caught_up.load(Ordering::Acquire)
    }

    /// Returns whether the third member has applied everything that the leader has applied so far.
    pub(crate) fn third_has_caught_up_now(&self) -> bool {
        let has = self.shared.third_applied.load(Ordering::Acquire);
        has >= self.shared.leader_applied.load(Ordering::Acquire)
    }

    /// Returns the index that the third member has applied.
    pub(crate) fn third_applied(&self) -> u64 {
        self.shared.third_applied.load(Ordering::Acquire)
    }

    /// Returns two processor times as shares of `time`, each at most 1. The first is the processor
    /// time of the threads that sent raft snapshots. The second is the processor time that the
    /// third member's main thread used until the member had caught up.
    pub(crate) fn processor_shares(&self, time: Duration) -> Vec<f64> {
        let share = |ns: &AtomicU64| ns.load(Ordering::Acquire) as f64 / time.as_nanos() as f64;
        [&self.shared.snapshot_ns, &self.shared.third_ns].map(|ns| share(ns).min(1.0)).to_vec()
    }

    /// Returns the longest times since the last call of this function.
    pub(crate) fn take_longest(&mut self) -> LongestTimes {
        let now = Instant::now();
        let open_gap = now - std::mem::replace(&mut self.last_apply, now);
        let gap = std::mem::take(&mut self.longest_gap);
        let call = self.leader().take_longest_call();
        let writes = self.members.values().map(Member::take_longest_write);
        let write = writes.max().unwrap_or_default();
        LongestTimes { gap: gap.max(open_gap), call, write }
    }

    /// Returns the index of the first entry that the leader has in memory.
    pub(crate) fn first_log_index(&self) -> u64 {
        self.members[&self.leader].replica.raft().kept_indexes().0
    }

    pub(crate) fn stop(self) {
        assert!(self.third.is_none(), "it goes before the two");
        self.members.into_values().for_each(Member::stop);
    }
}

/// Runs the third member until it is stopped.
fn run_third(
    mut member: Member,
    inbox: &Receiver<(u64, ReplicaInput)>,
    two: &Sender<(u64, ReplicaInput)>,
    seen: &SharedProgress,
) -> ThirdMemberRun {
    seen.third_has_started.store(true, Ordering::Release);
    let at_start = processor_time();
    let mut next_tick = Instant::now() + TICK;
    let mut visit = ThirdMemberRun {
        started: Instant::now(),
        installed: Vec::new(),
        caught_up: None,
        processor: Duration::ZERO,
    };
    while !seen.stop_third.load(Ordering::Relaxed) {
        let first = match inbox.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        for (_, input) in first.into_iter().chain(inbox.try_iter()) {
            member.handle_event(input);
        }
        if Instant::now() >= next_tick {
            next_tick += TICK;
            member.replica.tick();
        }
        let outputs = member.poll();
        if outputs.is_snapshot_installed {
            visit.installed.push(Instant::now());
        }
        for message in outputs.send {
            let _ = two.send((message.to(), ReplicaInput::Message(message)));
        }
        let applied = member.applier.applied_position.index;
        seen.third_applied.store(applied, Ordering::Release);
        if visit.caught_up.is_none() && applied >= seen.leader_applied.load(Ordering::Acquire) {
            visit.caught_up = Some((Instant::now(), applied));
            visit.processor = processor_time() - at_start;
            seen.third_ns.store(visit.processor.as_nanos() as u64, Ordering::Release);
            seen.third_has_caught_up.store(true, Ordering::Release);
        }
    }
    member.stop();
    visit
}
