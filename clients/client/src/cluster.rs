//! Lists and changes the members of a cluster.

use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::{
    Member, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
    MemberUpdateRequest,
};
use tonic::transport::Channel;

use crate::Client;
use crate::call::CallPolicy;
use crate::error::{Error, Result};

fn stub(channel: Channel) -> ClusterClient<Channel> {
    ClusterClient::new(channel)
}

impl Client {
    /// Returns all members. The list is read linearizably.
    pub async fn member_list(&self) -> Result<Vec<Member>> {
        let request = MemberListRequest { linearizable: true };
        let send = async |channel, request| stub(channel).member_list(request).await;
        Ok(self.call(CallPolicy::READ, request, send).await?.members)
    }

    /// Adds a member, which must be started afterwards. A learner gets all data and has no vote
    /// until it is [promoted](Client::member_promote).
    pub async fn member_add<U>(&self, peer_urls: U, is_learner: bool) -> Result<Member>
    where
        U: IntoIterator,
        U::Item: Into<String>,
    {
        let peer_urls = peer_urls.into_iter().map(Into::into).collect();
        let request = MemberAddRequest { peer_urls, is_learner };
        let send = async |channel, request| stub(channel).member_add(request).await;
        let added = self.call(CallPolicy::WRITE, request, send).await?.member;
        added.ok_or(Error::Unexpected("it does not contain the added member"))
    }

    /// Removes a member, which then stops by itself. Returns the remaining members.
    pub async fn member_remove(&self, id: u64) -> Result<Vec<Member>> {
        let send = async |channel, request| stub(channel).member_remove(request).await;
        Ok(self.call(CallPolicy::WRITE, MemberRemoveRequest { id }, send).await?.members)
    }

    /// Replaces the peer URLs of a member. Returns all members.
    pub async fn member_update<U>(&self, id: u64, peer_urls: U) -> Result<Vec<Member>>
    where
        U: IntoIterator,
        U::Item: Into<String>,
    {
        let peer_urls = peer_urls.into_iter().map(Into::into).collect();
        let request = MemberUpdateRequest { id, peer_urls };
        let send = async |channel, request| stub(channel).member_update(request).await;
        Ok(self.call(CallPolicy::WRITE, request, send).await?.members)
    }

    /// Promotes a learner to a voter. Returns all members. Fails if the learner has not caught up.
    pub async fn member_promote(&self, id: u64) -> Result<Vec<Member>> {
        let send = async |channel, request| stub(channel).member_promote(request).await;
        Ok(self.call(CallPolicy::WRITE, MemberPromoteRequest { id }, send).await?.members)
    }
}
