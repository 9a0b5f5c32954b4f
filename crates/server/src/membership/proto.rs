//! How a member goes over the wire.

use clearlane_proto::etcdserverpb as wire;

use super::Member;

/// How a member goes over the wire.
pub fn to_proto(member: &Member) -> wire::Member {
    let Member { id, peer_urls, is_learner, name, client_urls } = member.clone();
    wire::Member { id, name, peer_urls, client_urls, is_learner }
}

/// What came over it.
pub fn from_proto(member: wire::Member) -> Member {
    let wire::Member { id, name, peer_urls, client_urls, is_learner } = member;
    Member { id, peer_urls, is_learner, name, client_urls }
}
