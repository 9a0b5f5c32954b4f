//! The raft half and the apply half of a member, run one after the other in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clearlane_lease::Lessor;
use clearlane_mvcc::WatchableKv;
use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft as raft;
use clearlane_raft::Message;
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::alarms::Alarms;
use clearlane_replica::apply::EvaluatedCompares;
use clearlane_replica::membership::MemberChange;
use clearlane_replica::raft_snapshot::ReceivedSnapshot;
use clearlane_replica::{
    AppliedPosition, Applier, ApplyReady, MemberChangeError, Replica, ReplicaInput, ReplicaReady,
    RequestId, RequestOutcome, Result,
};
use clearlane_wal::group_commit::BatchResult;

/// A member without threads.
pub(crate) struct TestReplica {
    pub(crate) raft: Replica,
    pub(crate) apply: Applier,
    /// Number of requests so far.
    requests: u32,
    rejected: BTreeMap<u64, RequestOutcome>,
    has_started: bool,
    /// If true, the apply loop is paused, and committed entries wait in its queue.
    pub(crate) holds_apply: bool,
}

/// The results of a poll.
#[derive(Default)]
pub(crate) struct PollResult {
    pub(crate) raft: ReplicaReady,
    pub(crate) apply: Vec<ApplyReady>,
    pub(crate) answers: Vec<(u64, RequestOutcome)>,
    pub(crate) reads: Vec<ReadOutcome>,
    /// The time for which the last released readers waited only for entries to be applied. `None`
    /// if no reader was released.
    pub(crate) applying: Option<Duration>,
    /// For each step of the `Applier`, the number of outcomes that it returned.
    pub(crate) steps: Vec<usize>,
}

/// The outcome of a group of readers: they may read now, or they have failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    Ready(Vec<u64>),
    Failed(clearlane_raft::read_index::ReadIndexError, Vec<u64>),
}

fn reader(name: u64) -> RequestId {
    RequestId { queue: 1, slot: name as u32, generation: 0 }
}

impl TestReplica {
    pub(crate) fn new(raft: Replica, apply: Applier) -> TestReplica {
        TestReplica {
            raft,
            apply,
            requests: 0,
            rejected: BTreeMap::new(),
            has_started: false,
            holds_apply: false,
        }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId { queue: 0, slot: self.requests, generation: 0 }
    }

    /// Proposes a request. Its outcome is stored under the returned number.
    pub(crate) fn propose(&mut self, request: InternalRaftRequest) -> u64 {
        self.propose_evaluated(request, None)
    }

    pub(crate) fn propose_evaluated(
        &mut self,
        request: InternalRaftRequest,
        compares: Option<Box<EvaluatedCompares>>,
    ) -> u64 {
        let (of, request) = (self.request(), Box::new(request));
        self.raft.handle_input(ReplicaInput::Propose { request, compares, of }).unwrap();
        u64::from(of.slot)
    }

    pub(crate) fn change_members(&mut self, change: &MemberChange) -> u64 {
        let of = self.request();
        self.raft.handle_input(ReplicaInput::ChangeMembers(change.clone(), of)).unwrap();
        u64::from(of.slot)
    }

    /// Returns the outcome of a request that was rejected before it was proposed, or `None`.
    pub(crate) fn take_rejection(&mut self, request: u64) -> Option<RequestOutcome> {
        self.rejected.remove(&request)
    }

    /// Returns the error of a rejected membership change.
    pub(crate) fn take_change_error(&mut self, request: u64) -> MemberChangeError {
        match self.take_rejection(request) {
            Some(RequestOutcome::ChangeRejected(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn cancel(&mut self, request: u64) {
        let of = RequestId { queue: 0, slot: request as u32, generation: 0 };
        self.raft.handle_input(ReplicaInput::Cancel(of)).unwrap();
    }

    pub(crate) fn read(&mut self, name: u64) {
        self.raft.handle_input(ReplicaInput::ReadIndex(reader(name), ReadNeed::Applied)).unwrap();
    }

    pub(crate) fn cancel_read(&mut self, name: u64) {
        self.raft.handle_input(ReplicaInput::Cancel(reader(name))).unwrap();
    }

    pub(crate) fn receive(&mut self, message: Message) -> raft::Result<()> {
        self.raft.receive(message)
    }

    pub(crate) fn receive_raft_snapshot(&mut self, copy: ReceivedSnapshot) {
        self.raft.handle_input(ReplicaInput::RaftSnapshot(Box::new(copy))).unwrap();
    }

    pub(crate) fn report_raft_snapshot(&mut self, to: u64, arrived: bool) {
        self.raft
            .handle_input(ReplicaInput::RaftSnapshotSent { to, is_delivered: arrived })
            .unwrap();
    }

    pub(crate) fn written(&mut self, written: BatchResult) -> Result<()> {
        self.raft.handle_input(ReplicaInput::WalWritten(written))
    }

    pub(crate) fn store_committed(&mut self) -> Result<()> {
        let durable = AppliedPosition::read(&*self.apply.engine.snapshot().unwrap())?;
        self.raft.handle_input(ReplicaInput::StoreCommitted(durable))
    }

    pub(crate) fn tick(&mut self) {
        self.raft.tick();
    }

    /// Polls both halves until neither has a message for the other.
    pub(crate) fn poll(&mut self, now: Duration) -> Result<PollResult> {
        let mut polled = PollResult::default();
        loop {
            let mut outputs = self.raft.poll(now)?;
            let work = std::mem::take(&mut outputs.to_apply);
            self.merge_ready(outputs, &mut polled);
            work.into_iter().for_each(|work| self.apply.enqueue(work));
            let begins = !std::mem::replace(&mut self.has_started, true);
            if !begins && (self.holds_apply || !self.apply.has_work()) {
                return Ok(polled);
            }
            // The first step is made even without work: it reports the state after the start.
            let mut is_due = begins;
            while std::mem::take(&mut is_due) || self.apply.has_work() {
                let mut outputs = self.apply.step()?;
                outputs.make_deferred_reads()?;
                let granted = std::mem::take(&mut outputs.granted);
                granted.into_iter().for_each(|lease| self.apply.leases.start_expiry(lease, now));
                let applied = std::mem::take(&mut outputs.report);
                self.raft.handle_input(ReplicaInput::Applied(Box::new(applied)))?;
                polled.steps.push(outputs.completions.len());
                self.sort_completions(std::mem::take(&mut outputs.completions), &mut polled);
                polled.apply.push(outputs);
            }
        }
    }

    fn merge_ready(&mut self, mut outputs: ReplicaReady, polled: &mut PollResult) {
        self.sort_completions(std::mem::take(&mut outputs.completions), polled);
        let all = &mut polled.raft;
        all.messages.extend(outputs.messages);
        all.raft_snapshots.extend(outputs.raft_snapshots);
        all.wal_batch = all.wal_batch.take().or(outputs.wal_batch);
        all.purge_below = outputs.purge_below.or(all.purge_below);
        all.is_stopping |= outputs.is_stopping;
        all.is_commit_due |= outputs.is_commit_due;
    }

    fn sort_completions(
        &mut self,
        completions: Vec<(RequestId, RequestOutcome)>,
        polled: &mut PollResult,
    ) {
        let mut gone = Vec::new();
        for (of, outcome) in completions {
            let name = u64::from(of.slot);
            match outcome {
                RequestOutcome::Applied(_) | RequestOutcome::MembersChanged(_) => {
                    polled.answers.push((name, outcome));
                }
                RequestOutcome::ReadReady(applying) => {
                    gone.push(name);
                    polled.applying = Some(applying);
                }
                RequestOutcome::ReadFailed(error) => {
                    polled.reads.push(ReadOutcome::Failed(error, vec![name]))
                }
                refused => drop(self.rejected.insert(name, refused)),
            }
        }
        if !gone.is_empty() {
            polled.reads.push(ReadOutcome::Ready(gone));
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn WatchableKv<AppliedPosition>> {
        &self.apply.store
    }

    pub(crate) fn applied_position(&self) -> &AppliedPosition {
        &self.apply.applied_position
    }

    pub(crate) fn leases(&self) -> &Arc<Lessor> {
        &self.apply.leases
    }

    pub(crate) fn alarms(&self) -> &Arc<Alarms> {
        &self.raft.alarms
    }
}
