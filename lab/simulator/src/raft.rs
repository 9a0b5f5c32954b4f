//! Replication of a write to a quorum, without terms, votes and lost messages.
//!
//! Entries that are proposed while the leader is busy form the next batch:
//!
//! ```text
//!   leader      ├ encode ┤├─── sync ───┤                ├ apply ──▶ answer
//!                        │\                            /▲
//!   member 2             │ └─ network ─▶├─ sync ─┤─ network        two of three have it
//!   member 3             └─── network ──────▶├─ sync ─┤─ network ─▶
//! ```
//!
//! An entry is committed when a majority of the voting members has synced it. In etcd the leader
//! must be part of this majority. The account of the request shows the waits of the member that
//! completed the quorum, and the time of the messages to and from this member. The model has no
//! elections, no snapshots for members that are behind, and no flow control.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::account::{Account, TimeKind};
use crate::cluster::Cluster;
use crate::costs::{Costs, times};
use crate::entries::{Batch, Entry, LEADER, Message, Work};
use crate::signal::Signal;
use crate::sim_task::SimTask;
use clearlane_backend::Era;

/// The leader's knowledge of the logs of the voting members.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) appended: Cell<u64>,
    /// For each voting member, the last entry that is known to be synced in its log.
    pub(crate) synced: RefCell<Vec<u64>>,
    pub(crate) uncommitted: RefCell<VecDeque<Rc<Batch>>>,
}

impl Progress {
    pub(crate) fn new(voters: usize) -> Progress {
        Progress { synced: RefCell::new(vec![0; voters]), ..Progress::default() }
    }

    /// Returns the last entry that a quorum has. If `leader_first` is true, the leader must be part
    /// of the quorum.
    pub(crate) fn of_a_quorum(&self, leader_first: bool) -> u64 {
        let synced = self.synced.borrow();
        let has = |entry: u64| synced.iter().filter(|last| **last >= entry).count();
        let by_most = synced.iter().copied().filter(|last| 2 * has(*last) > synced.len()).max();
        let by_most = by_most.unwrap_or(0);
        if leader_first { by_most.min(synced[LEADER]) } else { by_most }
    }
}

impl Cluster {
    /// Proposes an entry at a member, and waits until it is applied there.
    pub(crate) async fn propose(&self, place: usize, task: &mut SimTask, work: Work) {
        if place != LEADER {
            task.network(self.link(place, LEADER).one_way_ns()).await;
        }
        let (member, leader) = (self.member(place), self.member(LEADER));
        let entry = Rc::new(Entry {
            actor: task.label,
            work,
            member: place,
            done: Signal::new(&self.world),
            batch: RefCell::default(),
            handed: Cell::default(),
        });
        let (log, applier) = (&leader.log, &member.applier);
        let Costs { write_awake_ns, write_wakeups_ns, doze_ns, .. } = leader.build.costs;
        task.wait_for_wakeups(write_awake_ns, write_wakeups_ns, doze_ns).await;
        let (begin_ns, before) = (self.world.now_ns(), log.time_account.account());
        log.queue.push(Rc::clone(&entry));
        entry.done.wait().await;
        let batch = entry.batch.take().expect("it was committed");
        let (handed_ns, handed) = entry.handed.get();
        let encoded = batch.spent.since(&before);
        task.book_wait(log.name, &log.time_account, encoded, begin_ns, batch.sent_ns);
        let committed_ns = batch.committed_ns.get();
        let quorum = if self.model.members == 1 { log.name } else { self.quorum };
        task.book_wait(quorum, &log.time_account, batch.path.get(), batch.sent_ns, committed_ns);
        let network = Account::default();
        task.book_wait(TimeKind::NETWORK, &log.time_account, network, committed_ns, handed_ns);
        let applied = applier.time_account.account().since(&handed);
        let now_ns = self.world.now_ns();
        task.book_wait(applier.name, &applier.time_account, applied, handed_ns, now_ns);
    }

    pub(crate) async fn lead_log(self: Rc<Self>, mut task: SimTask) {
        let leader = self.member(LEADER);
        let Costs { log_entry_ns, log_byte_ns, .. } = leader.build.costs;
        loop {
            let entries = leader.log.queue.drain().await;
            let bytes = entries.iter().map(|entry| entry.work.bytes()).sum();
            task.run(log_entry_ns * entries.len() as u64 + times(bytes, log_byte_ns)).await;
            let last = self.progress.appended.get() + entries.len() as u64;
            self.progress.appended.set(last);
            let (sent_ns, spent) = (self.world.now_ns(), task.time_account.account());
            let (committed_ns, path) = Default::default();
            let batch = Rc::new(Batch { entries, last, bytes, sent_ns, spent, committed_ns, path });
            self.progress.uncommitted.borrow_mut().push_back(Rc::clone(&batch));
            for other in 1..self.members.len() {
                self.link(LEADER, other).send(Message::Append(Rc::clone(&batch)));
            }
            task.disk(leader.log_syncs.next_ns()).await;
            self.on_synced(LEADER, &batch, task.time_account.account().since(&batch.spent));
        }
    }

    pub(crate) fn on_append(&self, place: usize, batch: Rc<Batch>) {
        let log = &self.member(place).appends;
        log.queue.push((batch, log.time_account.account()));
    }

    pub(crate) async fn follow_log(self: Rc<Self>, place: usize, mut task: SimTask) {
        let member = self.member(place);
        let Costs { log_entry_ns, log_byte_ns, .. } = member.build.costs;
        loop {
            let arrived = member.appends.queue.drain().await;
            let entries: usize = arrived.iter().map(|(batch, _)| batch.entries.len()).sum();
            let bytes = arrived.iter().map(|(batch, _)| batch.bytes).sum();
            task.run(log_entry_ns * entries as u64 + times(bytes, log_byte_ns)).await;
            task.disk(member.log_syncs.next_ns()).await;
            for (batch, spent) in arrived {
                let path = task.time_account.account().since(&spent);
                let response = Message::Appended { batch: Rc::clone(&batch), path };
                self.link(place, LEADER).send(response);
                if member.applies {
                    member.unapplied.borrow_mut().push_back(batch);
                }
            }
            self.pass_to_applier(place);
        }
    }

    /// Called when the leader learns that a follower has synced a batch. The time since the batch's
    /// `sent_ns` that is not in `path` is attributed to the network.
    pub(crate) fn on_appended(&self, place: usize, batch: &Rc<Batch>, mut path: Account) {
        let took_ns = self.world.now_ns() - batch.sent_ns;
        path.cut_to(took_ns);
        path[TimeKind::NETWORK] += took_ns - path.total_ns();
        self.on_synced(place, batch, path);
    }

    fn on_synced(&self, place: usize, batch: &Rc<Batch>, path: Account) {
        let progress = &self.progress;
        match progress.synced.borrow_mut().get_mut(place) {
            Some(last) => *last = batch.last,
            None => return,
        }
        let leader = self.member(LEADER);
        let committed = progress.of_a_quorum(leader.build.era != Era::Clearlane);
        if committed == leader.committed.get() {
            return;
        }
        leader.committed.set(committed);
        let is_committed = |batch: &mut Rc<Batch>| batch.last <= committed;
        while let Some(batch) = progress.uncommitted.borrow_mut().pop_front_if(is_committed) {
            batch.committed_ns.set(self.world.now_ns());
            batch.path.set(path);
            leader.unapplied.borrow_mut().push_back(batch);
        }
        self.pass_to_applier(LEADER);
        for other in (1..self.members.len()).filter(|other| self.member(*other).applies) {
            self.link(LEADER, other).send(Message::Committed(committed));
        }
    }

    /// Passes entries to the applier if they are in this member's log and the member knows that
    /// they are committed.
    pub(crate) fn pass_to_applier(&self, place: usize) {
        let member = self.member(place);
        let is_committed = |batch: &mut Rc<Batch>| batch.last <= member.committed.get();
        let handed = (self.world.now_ns(), member.applier.time_account.account());
        while let Some(batch) = member.unapplied.borrow_mut().pop_front_if(is_committed) {
            for entry in batch.entries.iter().filter(|entry| entry.member == place) {
                *entry.batch.borrow_mut() = Some(Rc::clone(&batch));
                entry.handed.set(handed);
            }
            member.applier.queue.push(batch);
        }
    }
}
