//! The answer to MemberList: the proxy itself, the proxies that are registered together with it, or
//! the members of the cluster.

use clearlane_proto::etcdserverpb::{Member, MemberListResponse};

use crate::registration::Registration;

#[derive(Debug, Default)]
pub struct Members {
    /// The URL that clients should use. If it is empty, MemberList goes upstream.
    pub advertised_url: String,
    pub host_name: String,
    pub registration: Option<Registration>,
}

impl Members {
    /// Returns the answer to MemberList, or `None` if it must be forwarded.
    pub(crate) async fn list(&self) -> Option<MemberListResponse> {
        if let Some(registration) = &self.registration {
            let proxies = registration.proxies();
            if !proxies.is_empty() {
                let members = proxies.into_iter().map(|(name, url)| member(name, url));
                return Some(MemberListResponse {
                    members: members.collect(),
                    ..Default::default()
                });
            }
        }
        if self.advertised_url.is_empty() {
            return None;
        }
        let own = member(self.host_name.clone(), self.advertised_url.clone());
        Some(MemberListResponse { members: vec![own], ..Default::default() })
    }
}

fn member(name: String, url: String) -> Member {
    Member { name, client_urls: vec![url], ..Member::default() }
}
