//! What a network thread has of a member: its desk, and the calls that requests become.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_mvcc::Store;
use clearlane_proto::etcdserverpb::{
    AlarmType, CompactionRequest, InternalRaftRequest, ResponseHeader, TxnRequest,
};
use clearlane_read_index::RequestIds;

use crate::alarms;
use crate::core::Answer;
use crate::in_time::in_time;
use crate::membership::{Change, Member};
use crate::node::{Desk, Node, Outcome, ReadPool};
use crate::progress::Progress;
use crate::quota;
use crate::range;
use crate::requests::{Limits, Refused, Reply, check, txn};
use crate::stages::{Card, Stage};
use crate::trouble::Trouble;

/// A member, for the requests of one thread.
#[derive(Clone, Debug)]
pub struct Handle {
    node: Arc<Node>,
    desk: Desk,
    limits: Limits,
}

impl Handle {
    /// For one thread. The desk's [task](Desk::run) must run there.
    pub fn new(node: &Arc<Node>, limits: Limits) -> Handle {
        Handle { node: Arc::clone(node), desk: node.desk(), limits }
    }

    /// The same for a client who waits until then only: see [`Desk::until`].
    pub fn until(&self, until_ns: u64) -> Handle {
        let (node, limits) = (Arc::clone(&self.node), self.limits);
        Handle { node, desk: self.desk.until(until_ns), limits }
    }

    /// The desk.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// The member.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// How much a request may ask for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The store that answers now.
    pub fn store(&self) -> Arc<dyn Store<Progress>> {
        self.node.store()
    }

    /// Waits until this member has applied all that was acknowledged before.
    pub async fn fresh(&self) -> Result<(), Trouble> {
        match self.node.is_alone() {
            true => Ok(()),
            false => self.asks().await.map(drop),
        }
    }

    /// The same, and notes for what it has waited: for others to confirm how far the log is
    /// committed, or for this member to apply it.
    pub async fn fresh_on(&self, card: &mut Card) -> Result<(), Trouble> {
        // Who asks nobody has not waited for anybody.
        if !self.node.is_alone() {
            let applying = self.asks().await?;
            card.stamp_read(applying);
        }
        Ok(())
    }

    /// Has the thread that speaks to raft say that this member is fresh, also where nobody need be asked: for
    /// those who want to know whether it answers.
    pub async fn answers(&self) -> Result<(), Trouble> {
        self.asks().await.map(drop)
    }

    async fn asks(&self) -> Result<Duration, Trouble> {
        match self.desk.read().await {
            Outcome::MayRead(applying) => Ok(applying),
            Outcome::MayNotRead(error) => Err(error.into()),
            Outcome::TimedOut => Err(Trouble::TimedOut),
            Outcome::TooLate => Err(Trouble::DeadlineExceeded),
            outcome => unreachable!("{outcome:?} is no answer to a reader"),
        }
    }

    /// For what takes long, or holds locks.
    pub(crate) fn read_pool(&self) -> &ReadPool {
        self.node.read_pool()
    }

    /// For what is small, and not in memory.
    pub(crate) fn cold_pool(&self) -> &ReadPool {
        self.node.cold_pool()
    }

    /// Has something done that takes long.
    pub(crate) async fn expensive<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> crate::Result<Result<T, Refused>> + Send + 'static,
    ) -> Result<T, Trouble> {
        match self.in_time(self.node.read_pool().run(work)).await? {
            Some(done) => Ok(done??),
            None => Err(Trouble::Stopped),
        }
    }

    /// Waits up to the request's deadline for something that does not go through the desk.
    pub async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, Trouble> {
        in_time(self.until_ns(), work).await.ok_or(Trouble::DeadlineExceeded)
    }

    /// The request's deadline, if it has one.
    pub fn until_ns(&self) -> Option<u64> {
        self.desk.until_ns()
    }

    /// Sends a request through the log, and waits until it is applied here.
    pub fn write(
        &self,
        request: impl Into<Box<InternalRaftRequest>>,
    ) -> impl Future<Output = Result<Reply, Trouble>> + Send {
        // It has a place for every kind of request. From here on a pointer is handed on.
        self.write_boxed(request.into())
    }

    async fn write_boxed(&self, mut request: Box<InternalRaftRequest>) -> Result<Reply, Trouble> {
        request.header.get_or_insert_default().id = long_id(self.node.metadata().node_id);
        check(&request, &self.limits)?;
        self.has_room(&request).await?;
        let started = Instant::now();
        match self.desk.propose(request).await {
            Outcome::Applied(Answer::Request(answer)) => {
                let mut reply = answer?;
                self.stamp(header_of(&mut reply));
                Ok(reply)
            }
            Outcome::NotProposed(error) => Err(error.into()),
            Outcome::TimedOut => Err(self.timed_out(started)),
            Outcome::TooLate => Err(Trouble::DeadlineExceeded),
            outcome => unreachable!("{outcome:?} is no answer to a request"),
        }
    }

    /// Whether the store may take a request. If not, everybody hears of it before the client does.
    async fn has_room(&self, request: &InternalRaftRequest) -> Result<(), Trouble> {
        let (cost, size) = (quota::cost(request), self.node.sizes().size());
        if cost == 0 {
            return Ok(());
        }
        // The thread that has found that out raises the alarm.
        if self.node.is_disk_low() {
            return Err(Refused::NoSpace.into());
        }
        if self.node.quota().has_room(size, cost) {
            return Ok(());
        }
        let member = self.node.metadata().node_id;
        if !self.node.alarms().is_raised_by(member, AlarmType::Nospace) {
            // Also if the alarm gets lost: the next one who asks raises it.
            let _ = self.desk.propose(Box::new(alarms::no_space(member))).await;
        }
        Err(Refused::NoSpace.into())
    }

    /// Forgets the past. A physical compaction has ended when this returns, any other has begun.
    pub async fn compact(&self, request: CompactionRequest) -> Result<Reply, Trouble> {
        let (at, is_physical) = (request.revision, request.physical);
        let compaction = Some(request);
        let reply = self.write(InternalRaftRequest { compaction, ..Default::default() }).await?;
        if is_physical {
            // The member's threads end with it, and then nobody waits here either.
            let mut compacted = self.node.compacted();
            let _ = self.in_time(compacted.wait_for(|done| *done >= at)).await?;
        }
        Ok(reply)
    }

    /// Hands leadership to another member, and waits until somebody else leads.
    pub async fn move_leader(&self, to: u64) -> Result<(), Trouble> {
        let this = self.node.metadata().node_id;
        let mut leadership = self.node.leadership();
        if leadership.borrow().leader != this {
            return Err(Trouble::NotLeader);
        }
        if to == this {
            return Ok(());
        }
        if self.node.members().get(to).is_none_or(|member| member.is_learner) {
            return Err(Trouble::BadTransferee);
        }
        self.node.transfer_leader(to);
        let _ = leadership.wait_for(|now| ![0, this].contains(&now.leader)).await;
        Ok(())
    }

    /// Runs a transaction; one that only reads does not go through the log.
    pub async fn txn(&self, request: TxnRequest, card: &mut Card) -> Result<Reply, Trouble> {
        check::txn(&request, &self.limits)?;
        if txn::is_read_only(&request) {
            let read = Box::pin(range::read_txn(self, request, card)).await;
            if read.is_err() {
                card.stamp(Stage::Backend);
            }
            return read.map(Reply::Txn);
        }
        let request = InternalRaftRequest { txn: Some(request), ..Default::default() };
        let reply = self.write(request).await;
        card.stamp(Stage::Apply);
        reply
    }

    /// Changes the members.
    pub async fn change_members(&self, change: Change) -> Result<Vec<Member>, Trouble> {
        let started = Instant::now();
        match self.desk.change_members(change).await {
            Outcome::Applied(Answer::Members(answer)) => Ok(answer?),
            Outcome::NotChanged(error) => Err(error.into()),
            Outcome::TimedOut => Err(self.timed_out(started)),
            Outcome::TooLate => Err(Trouble::DeadlineExceeded),
            outcome => unreachable!("{outcome:?} is no answer to a change of members"),
        }
    }

    /// Why a proposal has timed out, in etcd's words. What had been proposed when a leader was lost is perhaps
    /// lost with it.
    fn timed_out(&self, started: Instant) -> Trouble {
        let (node, own) = (&self.node, self.node.metadata().node_id);
        let status = node.status();
        let (elected, election_timeout) = (status.leader_elected(), node.election_timeout());
        let at = node.now().saturating_sub(started.elapsed());
        match status.leader() {
            _ if at < elected && at + 2 * election_timeout > elected => Trouble::LeaderLost,
            // It was not proposed: no leader was known all the time.
            0 if status.leader_lost() <= at => Trouble::DeadlineExceeded,
            0 => Trouble::TimedOut,
            leader if leader == own && !self.has_quorum_since(started) => Trouble::ConnectionLost,
            leader if leader != own && !self.is_connected_since(leader, started) => {
                Trouble::ConnectionLost
            }
            _ => Trouble::TimedOut,
        }
    }

    fn is_connected_since(&self, id: u64, started: Instant) -> bool {
        let since = self.node.others().and_then(|others| others.active_since(id));
        since.is_some_and(|since| since <= started)
    }

    fn has_quorum_since(&self, started: Instant) -> bool {
        let (members, own) = (self.node.members(), self.node.metadata().node_id);
        let voters = || members.iter().filter(|member| !member.is_learner);
        let is_connected = |id| id == own || self.is_connected_since(id, started);
        voters().filter(|voter| is_connected(voter.id)).count() > voters().count() / 2
    }

    /// Says who answers.
    pub fn stamp(&self, header: &mut Option<ResponseHeader>) {
        let metadata = self.node.metadata();
        let header = header.get_or_insert_default();
        header.cluster_id = metadata.cluster_id;
        header.member_id = metadata.node_id;
        header.raft_term = self.node.status().term();
    }
}

/// An id as long as those of this member's requests, which get theirs when they are proposed.
fn long_id(member: u64) -> u64 {
    RequestIds::new(member, u64::MAX).last()
}

fn header_of(reply: &mut Reply) -> &mut Option<ResponseHeader> {
    match reply {
        Reply::Put(response) => &mut response.header,
        Reply::DeleteRange(response) => &mut response.header,
        Reply::Range(response) => &mut response.header,
        Reply::Txn(response) => &mut response.header,
        Reply::Compact(response) => &mut response.header,
        Reply::Alarm(response) => &mut response.header,
        Reply::Downgrade(response) => &mut response.header,
        Reply::Users(header) => header,
        Reply::LeaseGrant(response) => &mut response.header,
        Reply::LeaseRevoke(response) => &mut response.header,
        Reply::LeaseCheckpoint(response) => &mut response.header,
    }
}
