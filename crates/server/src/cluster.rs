//! The service Cluster: who is a member, and how that changes.
//!
//! What a change needs of the table of members is [checked](clearlane_member::membership) when it is
//! applied. Here is what only somebody who is connected can know: whether the cluster would survive
//! it. A cluster of three with one member down has two of three; add a fourth that never starts, and it
//! has two of four, and nobody can take the fourth away again. So, unless that is
//! [switched off](Rules::is_strict):
//!
//! | change | needs |
//! |---|---|
//! | add | as many members that have started, and are connected, as the larger cluster needs |
//! | remove | the same of the smaller cluster, without the one that goes |
//! | promote | as many started ones as the cluster with one voter more needs |
//!
//! A cluster of one may always grow. A learner may always go, and so may a member that is down.
//!
//! Whether a learner has caught up is known to the leader alone, so a promotion is forwarded to it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clearlane_member::membership::{Change, Member, Members, Refused};
use clearlane_member::{Handle, Trouble};
use clearlane_proto::etcdserverpb::cluster_server::Cluster;
use clearlane_proto::etcdserverpb::{
    self as wire, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse, ResponseHeader,
};
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status};

use crate::{peer, status};

/// Between two looks for a leader.
const PAUSE: Duration = Duration::from_millis(50);

/// What a change must keep to.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether a change that could cost the quorum is refused: `--strict-reconfig-check`.
    pub is_strict: bool,
    /// A member counts as connected after so long.
    pub healthy_after: Duration,
    /// So long a change may take.
    pub patience: Duration,
}

impl Default for Rules {
    fn default() -> Rules {
        let (healthy_after, patience) = (Duration::from_secs(5), Duration::from_secs(7));
        Rules { is_strict: true, healthy_after, patience }
    }
}

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct ClusterService {
    member: Handle,
    rules: Rules,
}

/// How a member goes over the wire.
pub fn to_wire(member: &Member) -> wire::Member {
    let Member { id, peer_urls, is_learner, name, client_urls } = member.clone();
    wire::Member { id, name, peer_urls, client_urls, is_learner }
}

/// What came over it.
pub fn of_wire(member: wire::Member) -> Member {
    let wire::Member { id, name, peer_urls, client_urls, is_learner } = member;
    Member { id, peer_urls, is_learner, name, client_urls }
}

impl ClusterService {
    /// In front of a member.
    pub fn new(member: Handle, rules: Rules) -> ClusterService {
        ClusterService { member, rules }
    }

    /// Without a revision: the store's has nothing to do with it.
    fn header(&self) -> Option<ResponseHeader> {
        let mut header = None;
        self.member.stamp(&mut header);
        header
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Status> {
        let done = timeout(self.rules.patience, work).await;
        done.unwrap_or(Err(Trouble::TimedOut)).map_err(|trouble| status::of(&trouble))
    }

    async fn add(&self, peer_urls: &[String], learns: bool) -> Result<(u64, Vec<Member>), Trouble> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let change = Change::add(peer_urls, learns, since.as_secs())?;
        self.may_add(learns)?;
        let id = change.id();
        Ok((id, self.member.change_members(change).await?))
    }

    async fn remove(&self, id: u64) -> Result<Vec<Member>, Trouble> {
        self.may_remove(id)?;
        self.member.change_members(Change::Remove { id }).await
    }

    async fn promote(&self, id: u64) -> Result<Vec<Member>, Trouble> {
        self.may_promote(id)?;
        loop {
            match self.member.change_members(Change::Promote { id }).await {
                Err(Trouble::NotLeader) => {}
                done => return done,
            }
            if let Some((others, leader)) = peer::leader(&self.member) {
                match others.promote(leader, id).await {
                    // It has stepped down meanwhile, or has gone.
                    Err(Trouble::NotLeader | Trouble::NoLeader) => {}
                    done => return done,
                }
            }
            sleep(PAUSE).await;
        }
    }

    fn may_add(&self, learns: bool) -> Result<(), Trouble> {
        let members = self.member.node().members();
        let all = voters(&members);
        let started = started(&all);
        if !self.rules.is_strict || (all.len(), started) == (1, 1) {
            return Ok(());
        }
        let quorum = quorum(all.len() + 1);
        if !learns && started < quorum {
            return Err(Refused::NotEnoughStarted.into());
        }
        if self.connected(&all) < quorum { Err(Trouble::Unhealthy) } else { Ok(()) }
    }

    fn may_remove(&self, id: u64) -> Result<(), Trouble> {
        let members = self.member.node().members();
        let member = members.get(id).ok_or(Refused::NotFound)?;
        if !self.rules.is_strict || member.is_learner {
            return Ok(());
        }
        let all = voters(&members);
        let stay: Vec<&Member> = all.iter().copied().filter(|voter| voter.id != id).collect();
        let quorum = quorum(stay.len());
        if started(&stay) < quorum {
            return Err(Refused::NotEnoughStarted.into());
        }
        let own = self.member.node().metadata().node_id;
        let others = self.member.node().others();
        let is_down = others.is_none_or(|others| others.active_since(id).is_none());
        // Who is down is not missed.
        if id != own && is_down {
            return Ok(());
        }
        let left = self.connected(&all).saturating_sub(1);
        if left < quorum { Err(Trouble::Unhealthy) } else { Ok(()) }
    }

    fn may_promote(&self, id: u64) -> Result<(), Trouble> {
        let members = self.member.node().members();
        let all = voters(&members);
        let is_learner = members.get(id).is_some_and(|member| member.is_learner);
        let quorum = quorum(all.len() + 1);
        // Of what is no learner the change itself says what is wrong.
        let too_few = self.rules.is_strict && is_learner && started(&all) + 1 < quorum;
        if too_few { Err(Refused::NotEnoughStarted.into()) } else { Ok(()) }
    }

    /// How many of these have been connected for long enough, with this member.
    fn connected(&self, members: &[&Member]) -> usize {
        let own = self.member.node().metadata().node_id;
        let others = self.member.node().others();
        let is_connected = |id| {
            let since = others.and_then(|others| others.active_since(id));
            since.is_some_and(|since| since.elapsed() >= self.rules.healthy_after)
        };
        members.iter().filter(|member| member.id == own || is_connected(member.id)).count()
    }
}

fn voters(members: &Members) -> Vec<&Member> {
    members.iter().filter(|member| !member.is_learner).collect()
}

/// Who has started once has published its name.
fn started(members: &[&Member]) -> usize {
    members.iter().filter(|member| !member.name.is_empty()).count()
}

/// So many of this many voters decide.
fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

fn all_to_wire(members: &[Member]) -> Vec<wire::Member> {
    members.iter().map(to_wire).collect()
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        let MemberAddRequest { peer_urls, is_learner } = request.into_inner();
        let (id, members) = self.in_time(self.add(&peer_urls, is_learner)).await?;
        let member = members.iter().find(|member| member.id == id).map(to_wire);
        let members = all_to_wire(&members);
        Ok(Response::new(MemberAddResponse { header: self.header(), member, members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        let members = self.in_time(self.remove(request.get_ref().id)).await?;
        let members = all_to_wire(&members);
        Ok(Response::new(MemberRemoveResponse { header: self.header(), members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        let MemberUpdateRequest { id, peer_urls } = request.into_inner();
        let members = self.in_time(async {
            // First whether there is such a member at all.
            self.member.node().members().get(id).ok_or(Refused::NotFound)?;
            self.member.change_members(Change::update(id, &peer_urls)?).await
        });
        let members = all_to_wire(&members.await?);
        Ok(Response::new(MemberUpdateResponse { header: self.header(), members }))
    }

    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.in_time(self.member.fresh()).await?;
        }
        let members = self.member.node().members().iter().map(to_wire).collect();
        Ok(Response::new(MemberListResponse { header: self.header(), members }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        let members = self.in_time(self.promote(request.get_ref().id)).await?;
        let members = all_to_wire(&members);
        Ok(Response::new(MemberPromoteResponse { header: self.header(), members }))
    }
}
