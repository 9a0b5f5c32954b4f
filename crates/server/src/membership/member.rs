//! A member's record, and its JSON in bucket `members`.

use clearlane_wal::MemberContext;

use crate::error::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    pub peer_urls: Vec<String>,
    pub is_learner: bool,
    /// Empty until the member has published it.
    pub name: String,
    /// Empty until the member has published them.
    pub client_urls: Vec<String>,
}

impl Member {
    /// The id in lower-case hex, as in etcd.
    pub fn key(id: u64) -> String {
        format!("{id:x}")
    }

    pub(super) fn parse_key(key: &[u8]) -> Option<u64> {
        let id = u64::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()?;
        (Member::key(id).as_bytes() == key).then_some(id)
    }

    pub(super) fn to_context(&self, is_promote: Option<bool>) -> MemberContext {
        let Member { id, peer_urls, is_learner, name, client_urls } = self.clone();
        MemberContext { id, peer_urls, is_learner, name, client_urls, is_promote }
    }

    pub(super) fn from_context(context: MemberContext) -> Member {
        let MemberContext { id, peer_urls, is_learner, name, client_urls, .. } = context;
        Member { id, peer_urls, is_learner, name, client_urls }
    }

    pub(super) fn to_json(&self) -> String {
        self.to_context(None).encode()
    }

    pub(super) fn from_record(key: &[u8], text: &[u8]) -> Result<Member> {
        let damaged = |why: String| Error::damaged("bucket members", why);
        let name = key.escape_ascii();
        let context = MemberContext::decode(text);
        let member = context.map_err(|garbage| damaged(format!("{name}: {garbage}")))?;
        let member = Member::from_context(member);
        match Member::parse_key(key) {
            Some(id) if id == member.id => Ok(member),
            Some(_) => Err(damaged(format!("under {name} is member {:x}", member.id))),
            None => Err(damaged(format!("{name} is no member's id"))),
        }
    }
}
