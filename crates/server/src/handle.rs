//! The handle through which a network thread uses the member: the thread's request channel, and the
//! functions that serve requests.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use clearlane_proto::etcdserverpb::{InternalRaftRequest, ResponseHeader};
use clearlane_proto::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
};
use clearlane_replica::RequestError;
use clearlane_replica::apply::Limits;
use clearlane_replica::membership::{Member, MemberChange};

use crate::auth::credentials::Credentials;
use crate::deadline::within_deadline;
use crate::threads::{PeerClients, RequestChannel, ServerThreads};

/// A network thread's handle to the member.
#[derive(Clone, Debug)]
pub struct Server {
    threads: Arc<ServerThreads>,
    requests: RequestChannel,
    limits: Limits,
    credentials: Credentials,
}

impl Server {
    /// Creates a handle. The channel's [task](RequestChannel::run) must run on the thread that uses
    /// the handle.
    pub fn new(node: &Arc<ServerThreads>, limits: Limits) -> Server {
        let (threads, requests) = (Arc::clone(node), node.request_channel());
        Server { threads, requests, limits, credentials: Credentials::None }
    }

    /// Returns this handle with a deadline: see [`RequestChannel::with_deadline`].
    pub fn with_deadline(&self, until_ns: u64) -> Server {
        // This function is called for each request with a time-out. So it clones only the parts
        // that the new handle keeps, and not the whole handle.
        let (threads, requests) = (&self.threads, self.requests.with_deadline(until_ns));
        let credentials = self.credentials.clone();
        Server { threads: Arc::clone(threads), requests, limits: self.limits, credentials }
    }

    /// Returns this handle with other credentials, for requests of another user.
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

    /// Replaces [`RequestError::TimedOut`] with etcd's more precise error, if the reason for the
    /// time-out is known. For example, the proposal may have been lost because the leader changed.
    /// Returns all other errors unchanged.
    pub(crate) fn explain_timeout(&self, error: RequestError, started: Instant) -> RequestError {
        if !matches!(error, RequestError::TimedOut) {
            return error;
        }
        let (node, own) = (&self.threads, self.threads.metadata().node_id);
        let status = node.status();
        let (elected, election_timeout) = (status.leader_elected(), node.election_timeout());
        let at = node.now().saturating_sub(started.elapsed());
        match status.leader() {
            _ if at < elected && at + 2 * election_timeout > elected => RequestError::LeaderLost,
            // The request was not proposed, because this member knew no leader during the whole
            // request.
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

    /// Returns the header of a response whose data was read at this revision.
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
