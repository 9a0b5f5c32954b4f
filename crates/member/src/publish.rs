//! What a member says of itself, and the leader of all, through the log.

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_proto::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
};

use crate::handle::Handle;
use crate::node::Outcome;
use crate::trouble::Trouble;

impl Handle {
    /// Says what this member is called and where clients reach it.
    pub async fn publish(&self, name: &str, client_urls: &[String]) -> Result<(), Trouble> {
        let attributes = Attributes { name: name.to_owned(), client_urls: client_urls.to_vec() };
        let cluster_member_attr_set = Some(ClusterMemberAttrSetRequest {
            member_id: self.node().metadata().node_id,
            member_attributes: Some(attributes),
        });
        self.tell(InternalRaftRequest { cluster_member_attr_set, ..Default::default() }).await
    }

    /// Says which version all members speak.
    pub async fn set_cluster_version(&self, version: &str) -> Result<(), Trouble> {
        let cluster_version_set = Some(ClusterVersionSetRequest { ver: version.to_owned() });
        self.tell(InternalRaftRequest { cluster_version_set, ..Default::default() }).await
    }

    async fn tell(&self, request: InternalRaftRequest) -> Result<(), Trouble> {
        match self.desk().propose(request).await {
            Outcome::NotProposed(error) => Err(error.into()),
            Outcome::TimedOut => Err(Trouble::TimedOut),
            _ => Ok(()),
        }
    }
}
