//! A member as a network thread uses it: its request channel, and the calls that requests become.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use clearlane_proto::etcdserverpb::{
    AlarmType, CompactionRequest, CompactionResponse, InternalRaftRequest, ResponseHeader,
};
use clearlane_proto::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
};
use clearlane_raft::read_index::RequestIdGenerator;

use crate::alarms;
use crate::apply::{
    AppliedResponse, EvaluatedCompares, Limits, PartialResponse, RequestRejection, check,
};
use crate::credentials::Credentials;
use crate::deadline::within_deadline;
use crate::membership::{Member, MemberChange};
use crate::proposal::Proposal;
use crate::quota;
use crate::request_error::RequestError;
use crate::threads::{PeerClients, RequestChannel, ServerThreads};

/// A member, as one network thread uses it.
#[derive(Clone, Debug)]
pub struct Server {
    threads: Arc<ServerThreads>,
    requests: RequestChannel,
    limits: Limits,
    credentials: Credentials,
}

impl Server {
    /// The channel's [task](RequestChannel::run) must run on the thread that uses this.
    pub fn new(node: &Arc<ServerThreads>, limits: Limits) -> Server {
        let (threads, requests) = (Arc::clone(node), node.request_channel());
        Server { threads, requests, limits, credentials: Credentials::None }
    }

    /// The same with a deadline: see [`RequestChannel::with_deadline`].
    pub fn with_deadline(&self, until_ns: u64) -> Server {
        // Each call with a time-out comes here: no more is cloned than is kept.
        let (threads, requests) = (&self.threads, self.requests.with_deadline(until_ns));
        let credentials = self.credentials.clone();
        Server { threads: Arc::clone(threads), requests, limits: self.limits, credentials }
    }

    /// The same for the requests of another user.
    pub fn with_credentials(&self, credentials: Credentials) -> Server {
        let (threads, requests) = (Arc::clone(&self.threads), self.requests.clone());
        Server { threads, requests, limits: self.limits, credentials }
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub fn requests(&self) -> &RequestChannel {
        &self.requests
    }

    pub fn threads(&self) -> &Arc<ServerThreads> {
        &self.threads
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub async fn within_deadline<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        within_deadline(self.deadline_ns(), work).await.ok_or(RequestError::DeadlineExceeded)
    }

    pub fn deadline_ns(&self) -> Option<u64> {
        self.requests.deadline_ns()
    }

    pub fn propose<P: Proposal>(
        &self,
        request: P,
    ) -> impl Future<Output = Result<P::Response, RequestError>> + Send {
        // The struct has a field for every kind of request: moving the box is cheaper.
        let request = Box::new(request.into_request());
        async move {
            let response = self.propose_boxed(request, None).await?.into_whole();
            P::response_of(match response {
                Ok(response) => response,
                Err(response) => Box::pin(self.read_whole(response)).await?,
            })
        }
    }

    pub(crate) async fn propose_boxed(
        &self,
        mut request: Box<InternalRaftRequest>,
        compares: Option<Box<EvaluatedCompares>>,
    ) -> Result<PartialResponse, RequestError> {
        let header = request.header.get_or_insert_default();
        header.id = placeholder_id(self.threads.metadata().node_id);
        check(&request, &self.limits)?;
        if self.threads.auth().is_enabled() {
            Box::pin(self.name_user(&mut request)).await?;
            check::entry_size(&request, &self.limits)?;
        }
        self.check_quota(&request).await?;
        let started = Instant::now();
        let proposed = self.requests.propose(request, compares).await;
        let mut response = proposed.map_err(|error| self.explain_timeout(error, started))?;
        self.fill_header(header_mut(response.response_mut()));
        Ok(response)
    }

    /// Whether the quota and the disk have room for the request. If not, the alarm is raised before
    /// the client is told.
    async fn check_quota(&self, request: &InternalRaftRequest) -> Result<(), RequestError> {
        let (cost, size) = (quota::cost(request), self.threads.sizes().size());
        if cost == 0 {
            return Ok(());
        }
        // The raft loop raises the alarm.
        if self.threads.is_disk_low() {
            return Err(RequestRejection::NoSpace.into());
        }
        if self.threads.quota().allows(size, cost) {
            return Ok(());
        }
        let member = self.threads.metadata().node_id;
        if !self.threads.alarms().is_raised_by(member, AlarmType::Nospace) {
            // If the alarm is lost, the next refused request raises it.
            let _ = self.requests.propose(Box::new(alarms::no_space(member)), None).await;
        }
        Err(RequestRejection::NoSpace.into())
    }

    /// Waits for all steps of a physical compaction; any other is only scheduled.
    pub async fn compact(
        &self,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, RequestError> {
        let (at, is_physical) = (request.revision, request.physical);
        let reply = self.propose(request).await?;
        if is_physical {
            // An error means that the member has stopped.
            let mut compacted = self.threads.compacted();
            let _ = self.within_deadline(compacted.wait_for(|done| *done >= at)).await?;
        }
        Ok(reply)
    }

    pub async fn move_leader(&self, to: u64) -> Result<(), RequestError> {
        let this = self.threads.metadata().node_id;
        let mut leadership = self.threads.leadership();
        if leadership.borrow().leader != this {
            return Err(RequestError::NotLeader);
        }
        if to == this {
            return Ok(());
        }
        if self.threads.members().get(to).is_none_or(|member| member.is_learner) {
            return Err(RequestError::BadTransferee);
        }
        self.threads.transfer_leader(to);
        let _ = leadership.wait_for(|now| ![0, this].contains(&now.leader)).await;
        Ok(())
    }

    /// Proposes this member's name and client URLs.
    pub async fn publish(&self, name: &str, client_urls: &[String]) -> Result<(), RequestError> {
        let attributes = Attributes { name: name.to_owned(), client_urls: client_urls.to_vec() };
        let cluster_member_attr_set = Some(ClusterMemberAttrSetRequest {
            member_id: self.threads.metadata().node_id,
            member_attributes: Some(attributes),
        });
        let request = InternalRaftRequest { cluster_member_attr_set, ..Default::default() };
        self.requests.update_members(request).await
    }

    pub async fn set_cluster_version(&self, version: &str) -> Result<(), RequestError> {
        let cluster_version_set = Some(ClusterVersionSetRequest { ver: version.to_owned() });
        let request = InternalRaftRequest { cluster_version_set, ..Default::default() };
        self.requests.update_members(request).await
    }

    pub async fn change_members(&self, change: MemberChange) -> Result<Vec<Member>, RequestError> {
        let started = Instant::now();
        let changed = self.requests.change_members(change).await;
        changed.map_err(|error| self.explain_timeout(error, started))
    }

    /// etcd's error for a time-out: a proposal may have been lost with the leader of its time.
    fn explain_timeout(&self, error: RequestError, started: Instant) -> RequestError {
        if !matches!(error, RequestError::TimedOut) {
            return error;
        }
        let (node, own) = (&self.threads, self.threads.metadata().node_id);
        let status = node.status();
        let (elected, election_timeout) = (status.leader_elected(), node.election_timeout());
        let at = node.now().saturating_sub(started.elapsed());
        match status.leader() {
            _ if at < elected && at + 2 * election_timeout > elected => RequestError::LeaderLost,
            // It was not proposed: no leader was known all the time.
            0 if status.leader_lost() <= at => RequestError::DeadlineExceeded,
            0 => RequestError::TimedOut,
            leader if leader == own && !self.has_quorum_since(started) => {
                RequestError::ConnectionLost
            }
            leader if leader != own && !self.is_connected_since(leader, started) => {
                RequestError::ConnectionLost
            }
            _ => RequestError::TimedOut,
        }
    }

    fn is_connected_since(&self, id: u64, started: Instant) -> bool {
        let since = self.threads.peer_clients().and_then(|others| others.active_since(id));
        since.is_some_and(|since| since <= started)
    }

    fn has_quorum_since(&self, started: Instant) -> bool {
        let (members, own) = (self.threads.members(), self.threads.metadata().node_id);
        let voters = || members.iter().filter(|member| !member.is_learner);
        let is_connected = |id| id == own || self.is_connected_since(id, started);
        voters().filter(|voter| is_connected(voter.id)).count() > voters().count() / 2
    }

    pub fn fill_header(&self, header: &mut Option<ResponseHeader>) {
        let metadata = self.threads.metadata();
        let header = header.get_or_insert_default();
        header.cluster_id = metadata.cluster_id;
        header.member_id = metadata.node_id;
        header.raft_term = self.threads.status().term();
    }

    /// Of an answer that was read at this revision.
    pub fn header_at(&self, revision: i64) -> Option<ResponseHeader> {
        let mut header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        self.fill_header(&mut header);
        header
    }

    pub fn is_leader(&self) -> bool {
        self.threads.status().leader() == self.threads.metadata().node_id
    }

    pub fn remote_leader(&self) -> Option<(&Arc<dyn PeerClients>, u64)> {
        let leader = self.threads.status().leader();
        let is_another = leader != 0 && leader != self.threads.metadata().node_id;
        self.threads.peer_clients().filter(|_| is_another).map(|others| (others, leader))
    }
}

/// As long, encoded, as the id that the request is given when it is proposed.
fn placeholder_id(member: u64) -> u64 {
    RequestIdGenerator::new(member, u64::MAX).last()
}

fn header_mut(reply: &mut AppliedResponse) -> &mut Option<ResponseHeader> {
    match reply {
        AppliedResponse::Put(response) => &mut response.header,
        AppliedResponse::DeleteRange(response) => &mut response.header,
        AppliedResponse::Range(response) => &mut response.header,
        AppliedResponse::Txn(response) => &mut response.header,
        AppliedResponse::Compact(response) => &mut response.header,
        AppliedResponse::Alarm(response) => &mut response.header,
        AppliedResponse::Downgrade(response) => &mut response.header,
        AppliedResponse::Auth(header) => header,
        AppliedResponse::Authenticate(response) => &mut response.header,
        AppliedResponse::LeaseGrant(response) => &mut response.header,
        AppliedResponse::LeaseRevoke(response) => &mut response.header,
        AppliedResponse::LeaseCheckpoint(response) => &mut response.header,
    }
}
