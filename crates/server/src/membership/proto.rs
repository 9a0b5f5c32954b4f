//! A member's form in the API.

use clearlane_proto::etcdserverpb as wire;

use super::Member;

pub fn to_proto(member: &Member) -> wire::Member {
    let Member { id, peer_urls, is_learner, name, client_urls } = member.clone();
    wire::Member { id, name, peer_urls, client_urls, is_learner }
}

pub fn from_proto(member: wire::Member) -> Member {
    let wire::Member { id, name, peer_urls, client_urls, is_learner } = member;
    Member { id, peer_urls, is_learner, name, client_urls }
}
