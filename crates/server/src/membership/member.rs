//! What is known of one member, and how it is written down.

use clearlane_wal::MemberContext;

use crate::error::{Error, Result};

/// One member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: u64,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
    /// Whether it only listens.
    pub is_learner: bool,
    /// What it is called; empty until it has said so.
    pub name: String,
    /// Where clients reach it; empty until it has said so.
    pub client_urls: Vec<String>,
}

impl Member {
    /// The key in its bucket: the number in lower-case hex, as etcd prints it everywhere.
    pub fn key(id: u64) -> String {
        format!("{id:x}")
    }

    /// The number that a key stands for.
    pub(super) fn parse_key(key: &[u8]) -> Option<u64> {
        let id = u64::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()?;
        (Member::key(id).as_bytes() == key).then_some(id)
    }

    /// As a change of members describes it.
    pub(super) fn to_context(&self, is_promote: Option<bool>) -> MemberContext {
        let Member { id, peer_urls, is_learner, name, client_urls } = self.clone();
        MemberContext { id, peer_urls, is_learner, name, client_urls, is_promote }
    }

    pub(super) fn from_context(context: MemberContext) -> Member {
        let MemberContext { id, peer_urls, is_learner, name, client_urls, .. } = context;
        Member { id, peer_urls, is_learner, name, client_urls }
    }

    /// The text that lies in the bucket.
    pub(super) fn to_json(&self) -> String {
        self.to_context(None).encode()
    }

    /// Reads what lies in the bucket.
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
