//! A member's record in bucket `members`: etcd's JSON, under the member's id in lower-case hex.
//!
//! The client URLs are empty until the member has published them. A first member has its name from
//! the start. The name of a member that was added later is also empty until it is published.

use clearlane_proto::etcdserverpb::Member;
use clearlane_wal::MemberContext;

use crate::error::{Error, Result};

pub(super) fn member_key(id: u64) -> String {
    format!("{id:x}")
}

pub(super) fn parse_key(key: &[u8]) -> Option<u64> {
    let id = u64::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()?;
    (member_key(id).as_bytes() == key).then_some(id)
}

/// Converts a member to the form that is used in log entries and in the bucket `members`.
pub(super) fn to_context(member: &Member) -> MemberContext {
    let Member { id, name, peer_urls, client_urls, is_learner } = member.clone();
    MemberContext { id, peer_urls, is_learner, name, client_urls, is_promote: None }
}

pub(super) fn from_context(context: MemberContext) -> Member {
    let MemberContext { id, peer_urls, is_learner, name, client_urls, .. } = context;
    Member { id, name, peer_urls, client_urls, is_learner }
}

pub(super) fn from_record(key: &[u8], text: &[u8]) -> Result<Member> {
    let damaged = |why: String| Error::damaged("bucket members", why);
    let name = key.escape_ascii();
    let context = MemberContext::decode(text);
    let member = from_context(context.map_err(|error| damaged(format!("{name}: {error}")))?);
    match parse_key(key) {
        Some(id) if id == member.id => Ok(member),
        Some(_) => Err(damaged(format!("key {name} has member {:x}", member.id))),
        None => Err(damaged(format!("{name} is not a member ID"))),
    }
}
