//! The service Cluster: lists and changes the members.
//!
//! [`membership`](clearlane_replica::membership) checks a change when it is applied. Before a
//! change is proposed, this module checks whether the cluster would keep its quorum. For this
//! check, it reads the state of this member's connections to the other members. With [strict
//! rules](ReconfigRules::is_strict) a change must meet the condition in this table. Only voters are
//! counted as started or connected.
//!
//! | change | condition |
//! |---|---|
//! | add a voter | a quorum of the larger cluster is started and connected |
//! | add a learner | a quorum of the cluster with one more voter is connected |
//! | remove a voter | a quorum of the rest is started; one more than this quorum is connected |
//! | remove a learner | none |
//! | promote a learner | a quorum of the larger cluster, including the learner, is started |
//!
//! If there is only one voter, and it is started, a member may always be added. A voter that is not
//! connected may be removed even if too few other voters are connected.
//!
//! Only the leader knows whether a learner has caught up. So another member forwards a promotion to
//! the leader.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clearlane_proto::etcdserverpb::cluster_server::Cluster;
use clearlane_proto::etcdserverpb::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse, ResponseHeader,
};
use clearlane_replica::RequestError;
use clearlane_replica::membership::{Member, MemberChange, Members, MembershipRejection};
use clearlane_server::Server;
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status};

use crate::credentials::server_for;
use crate::lease::LEADER_RETRY_DELAY;
use crate::status::{self, Reply};

#[derive(Clone, Copy, Debug)]
pub struct ReconfigRules {
    /// `--strict-reconfig-check`: if true, a change that could cost the quorum is rejected.
    pub is_strict: bool,
    /// Minimum age of the connection to another member. A member with a newer connection is not
    /// considered connected.
    pub healthy_after: Duration,
    pub timeout: Duration,
}

impl Default for ReconfigRules {
    fn default() -> ReconfigRules {
        ReconfigRules {
            is_strict: true,
            healthy_after: Duration::from_secs(5),
            timeout: Duration::from_secs(7),
        }
    }
}

pub(crate) struct ClusterService {
    pub(crate) server: Server,
    pub(crate) reconfig_rules: ReconfigRules,
}

impl ClusterService {
    /// Returns a header without a revision: changes of members do not change the store's revision.
    fn header(&self) -> Option<ResponseHeader> {
        self.server.header_at(0)
    }

    async fn with_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, Status> {
        let done = timeout(self.reconfig_rules.timeout, work).await;
        done.unwrap_or(Err(RequestError::TimedOut)).map_err(status::from_error)
    }

    async fn promote(&self, id: u64) -> Result<Vec<Member>, RequestError> {
        self.check_promote(id)?;
        loop {
            match self.server.change_members(MemberChange::Promote { id }).await {
                Err(RequestError::NotLeader) => {}
                done => return done,
            }
            if let Some((others, leader)) = self.server.remote_leader() {
                match others.promote(leader, id).await {
                    // The leader has stepped down or cannot be reached. Try again.
                    Err(RequestError::NotLeader | RequestError::NoLeader) => {}
                    done => return done,
                }
            }
            sleep(LEADER_RETRY_DELAY).await;
        }
    }

    fn check_add(&self, learns: bool) -> Result<(), RequestError> {
        let members = self.server.threads().members();
        let all = voters(&members);
        let started = count_started(&all);
        if !self.reconfig_rules.is_strict || (all.len(), started) == (1, 1) {
            return Ok(());
        }
        let quorum = quorum(all.len() + 1);
        if !learns && started < quorum {
            return Err(MembershipRejection::NotEnoughStarted.into());
        }
        self.check_connected(&all, quorum)
    }

    fn check_remove(&self, id: u64) -> Result<(), RequestError> {
        let members = self.server.threads().members();
        let member = members.get(id).ok_or(MembershipRejection::NotFound)?;
        if !self.reconfig_rules.is_strict || member.is_learner {
            return Ok(());
        }
        let all = voters(&members);
        let stay: Vec<&Member> = all.iter().copied().filter(|voter| voter.id != id).collect();
        let quorum = quorum(stay.len());
        if count_started(&stay) < quorum {
            return Err(MembershipRejection::NotEnoughStarted.into());
        }
        let own = self.server.threads().metadata().node_id;
        let others = self.server.threads().peer_clients();
        let is_down = others.is_none_or(|others| others.active_since(id).is_none());
        // The removal of an unconnected member costs no working voter.
        if id != own && is_down {
            return Ok(());
        }
        self.check_connected(&all, quorum + 1)
    }

    fn check_promote(&self, id: u64) -> Result<(), RequestError> {
        let members = self.server.threads().members();
        let all = voters(&members);
        let is_learner = members.get(id).is_some_and(|member| member.is_learner);
        let quorum = quorum(all.len() + 1);
        // If the member is not a learner, the change itself returns the error.
        let too_few =
            self.reconfig_rules.is_strict && is_learner && count_started(&all) + 1 < quorum;
        if too_few { Err(MembershipRejection::NotEnoughStarted.into()) } else { Ok(()) }
    }

    /// Fails unless at least `needed` members have been connected for
    /// [`ReconfigRules::healthy_after`]. This member itself is considered connected.
    fn check_connected(&self, members: &[&Member], needed: usize) -> Result<(), RequestError> {
        let own = self.server.threads().metadata().node_id;
        let others = self.server.threads().peer_clients();
        let is_connected = |id| {
            let since = others.and_then(|others| others.active_since(id));
            since.is_some_and(|since| since.elapsed() >= self.reconfig_rules.healthy_after)
        };
        let connected = members.iter().filter(|member| member.id == own || is_connected(member.id));
        if connected.count() < needed { Err(RequestError::Unhealthy) } else { Ok(()) }
    }
}

fn voters(members: &Members) -> Vec<&Member> {
    members.iter().filter(|member| !member.is_learner).collect()
}

/// Returns the number of started members. A member counts as started if it has a name. The initial
/// members of a cluster have a name from the start. A member that is added later publishes its name
/// at its first start.
fn count_started(members: &[&Member]) -> usize {
    members.iter().filter(|member| !member.name.is_empty()).count()
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(&self, request: Request<MemberAddRequest>) -> Reply<MemberAddResponse> {
        let user = server_for(&self.server, &request);
        let MemberAddRequest { peer_urls, is_learner } = request.into_inner();
        let changed = self.with_timeout(async {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let change = MemberChange::add(&peer_urls, is_learner, since.as_secs())?;
            user.require(|user| user.admin()).await?;
            self.check_add(is_learner)?;
            Ok((change.id(), self.server.change_members(change).await?))
        });
        let (id, members) = changed.await?;
        let member = members.iter().find(|member| member.id == id).cloned();
        Ok(Response::new(MemberAddResponse { header: self.header(), member, members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Reply<MemberRemoveResponse> {
        let (user, id) = (server_for(&self.server, &request), request.get_ref().id);
        let changed = self.with_timeout(async {
            user.require(|user| user.admin()).await?;
            self.check_remove(id)?;
            self.server.change_members(MemberChange::Remove { id }).await
        });
        let members = changed.await?;
        Ok(Response::new(MemberRemoveResponse { header: self.header(), members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Reply<MemberUpdateResponse> {
        let user = server_for(&self.server, &request);
        let MemberUpdateRequest { id, peer_urls } = request.into_inner();
        let changed = self.with_timeout(async {
            user.require(|user| user.admin()).await?;
            // An unknown member is reported before an invalid URL.
            self.server.threads().members().get(id).ok_or(MembershipRejection::NotFound)?;
            self.server.change_members(MemberChange::update(id, &peer_urls)?).await
        });
        let members = changed.await?;
        Ok(Response::new(MemberUpdateResponse { header: self.header(), members }))
    }

    async fn member_list(&self, request: Request<MemberListRequest>) -> Reply<MemberListResponse> {
        if request.get_ref().linearizable {
            self.with_timeout(self.server.linearizable_read_notify()).await?;
        }
        let user = server_for(&self.server, &request);
        user.require(|user| user.user()).await.map_err(status::from_error)?;
        let members = self.server.threads().members().iter().cloned().collect();
        Ok(Response::new(MemberListResponse { header: self.header(), members }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Reply<MemberPromoteResponse> {
        let (user, id) = (server_for(&self.server, &request), request.get_ref().id);
        let promoted = self.with_timeout(async {
            user.require(|user| user.admin()).await?;
            self.promote(id).await
        });
        let members = promoted.await?;
        Ok(Response::new(MemberPromoteResponse { header: self.header(), members }))
    }
}
