//! What a member publishes through the log: its attributes, and the leader the cluster's version.

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_proto::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
};

use crate::handle::Server;
use crate::request_error::RequestError;

impl Server {
    /// Proposes this member's name and client URLs.
    pub async fn publish(&self, name: &str, client_urls: &[String]) -> Result<(), RequestError> {
        let attributes = Attributes { name: name.to_owned(), client_urls: client_urls.to_vec() };
        let cluster_member_attr_set = Some(ClusterMemberAttrSetRequest {
            member_id: self.threads().metadata().node_id,
            member_attributes: Some(attributes),
        });
        let request = InternalRaftRequest { cluster_member_attr_set, ..Default::default() };
        self.requests().update_members(request).await
    }

    pub async fn set_cluster_version(&self, version: &str) -> Result<(), RequestError> {
        let cluster_version_set = Some(ClusterVersionSetRequest { ver: version.to_owned() });
        let request = InternalRaftRequest { cluster_version_set, ..Default::default() };
        self.requests().update_members(request).await
    }
}
