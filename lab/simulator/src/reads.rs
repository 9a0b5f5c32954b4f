//! ReadIndex: the confirmation that a linearizable read waits for.
//!
//! ```text
//!   readers     │ │  │         │    │          one request for all readers that arrived before it;
//!   reads       ├─ request ────┤├─ request ───  later readers wait for the next one
//!                \      /       \      /
//!   members       ▶────▶         ▶────▶         heartbeats: a quorum must respond
//! ```
//!
//! A follower sends its ReadIndex request to the leader. The reader then waits until the committed
//! index is applied at its member.
//!
//! The era `clearlane` has two shortcuts. A sole member needs no request, whereas in etcd it needs
//! a turn of raft. The request of a follower also confirms the leader, as a response to a heartbeat
//! does. With two or three voters, this follower and the leader are a quorum, so there are no
//! heartbeats.

use std::cell::Cell;
use std::rc::Rc;

use crate::account::{Account, TimeKind};
use crate::cluster::Cluster;
use crate::entries::{LEADER, Message, QuorumRound};
use crate::era::{LinearizableMode, linearizable_mode};
use crate::signal::Signal;
use crate::sim_task::SimTask;

impl Cluster {
    pub(crate) async fn confirm_read(&self, place: usize, task: &mut SimTask) {
        let member = self.member(place);
        if linearizable_mode(member.build.era) == LinearizableMode::ReadIndexWithShortcuts
            && self.members.len() == 1
        {
            return;
        }
        task.wait_for_threads(member.build.costs.round_wakeups_ns).await;
        let done = Signal::new(&self.world);
        member.reads.queue.push(done.clone());
        task.wait_for_worker(member.reads.name, &member.reads.time_account, &done).await;
    }

    pub(crate) async fn confirm_reads(self: Rc<Self>, place: usize, mut task: SimTask) {
        let (member, leader) = (self.member(place), self.member(LEADER));
        loop {
            let readers = member.reads.queue.drain().await;
            task.run(member.build.costs.raft_turn_ns).await;
            if place != LEADER {
                task.network(self.link(place, LEADER).one_way_ns()).await;
            }
            let index = leader.committed.get();
            match self.is_confirmed_by_request(place) {
                true => self.leader_turn(&mut task).await,
                false => self.round(&mut task).await,
            }
            if place != LEADER {
                task.network(self.link(LEADER, place).one_way_ns()).await;
            }
            if index > member.applied.get() {
                let applied = Signal::new(&self.world);
                member.waiting_for_applied.borrow_mut().insert(index, applied.clone());
                task.wait_for_worker(member.applier.name, &member.applier.time_account, &applied)
                    .await;
            }
            for reader in readers {
                reader.set();
            }
        }
    }

    /// Returns whether the request alone confirms the leader. The era must allow this, and the
    /// leader and the requesting member must be a quorum. They are a quorum if the member is a
    /// voting follower and there are two or three voters.
    fn is_confirmed_by_request(&self, place: usize) -> bool {
        let era = self.member(place).build.era;
        let asks_and_votes = place != LEADER && place < self.model.members;
        linearizable_mode(era) == LinearizableMode::ReadIndexWithShortcuts
            && asks_and_votes
            && self.model.members / 2 == 1
    }

    async fn leader_turn(&self, task: &mut SimTask) {
        let begin_ns = self.world.now_ns();
        let path = self.raft_turn(LEADER).await;
        let time_account = task.time_account.clone();
        task.book_wait(self.quorum, &time_account, path, begin_ns, self.world.now_ns());
    }

    /// Simulates a turn of a member's raft loop. Returns the account of the turn.
    async fn raft_turn(&self, place: usize) -> Account {
        let member = self.member(place);
        let turn_ns = member.build.costs.raft_turn_ns;
        let mut path = Account::default();
        path[TimeKind::CORE] = member.cores.run(turn_ns).await;
        path[TimeKind::RUNNING] = turn_ns;
        path
    }

    /// Sends heartbeats, and waits until a quorum has responded to them. Returns immediately if the
    /// leader is the only voter.
    async fn round(&self, task: &mut SimTask) {
        let missing = self.model.members / 2;
        if missing == 0 {
            return;
        }
        let begin_ns = self.world.now_ns();
        let round = Rc::new(QuorumRound {
            begin_ns,
            missing: Cell::new(missing),
            done: Signal::new(&self.world),
            path: Cell::default(),
        });
        for other in 1..self.model.members {
            self.link(LEADER, other).send(Message::Heartbeat(Rc::clone(&round)));
        }
        round.done.wait().await;
        let (time_account, path) = (task.time_account.clone(), round.path.get());
        task.book_wait(self.quorum, &time_account, path, begin_ns, self.world.now_ns());
    }

    pub(crate) async fn on_heartbeat(&self, place: usize, round: Rc<QuorumRound>) {
        let path = self.raft_turn(place).await;
        self.link(place, LEADER).send(Message::Follows { round, path });
    }

    /// Handles the response to a heartbeat. The response that completes the quorum sets the account
    /// of the ReadIndex request. Time that was spent neither waiting nor computing is attributed to
    /// the network.
    pub(crate) fn on_heartbeat_response(&self, round: &QuorumRound, mut path: Account) {
        match round.missing.get() {
            0 => {}
            1 => {
                let took_ns = self.world.now_ns() - round.begin_ns;
                path[TimeKind::NETWORK] = took_ns - path.total_ns();
                round.path.set(path);
                round.missing.set(0);
                round.done.set();
            }
            more => round.missing.set(more - 1),
        }
    }
}
