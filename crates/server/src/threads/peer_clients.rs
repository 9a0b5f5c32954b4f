//! Asking other members for what one cannot answer by itself, and what is known of them.
//!
//! A promotion is for the leader to decide, a lease is kept by the leader, a hash is compared with
//! those of all members. Such questions go from member to member outside of raft. The code that
//! carries messages carries them, too; to this crate it is [`PeerClients`].

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use clearlane_proto::etcdserverpb::{LeaseTimeToLiveRequest, LeaseTimeToLiveResponse};

use super::metrics::DurationHistogram;
use crate::corruption::MemberHash;
use crate::membership::Member;
use crate::request_error::RequestError;

/// An answer that is on its way.
pub type PeerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, RequestError>> + Send + 'a>>;

/// What has gone to another member, and come from it, since it is known here.
#[derive(Clone, Debug)]
pub struct PeerTraffic {
    /// The member.
    pub id: u64,
    /// Whether there is a connection to it.
    pub is_active: bool,
    /// How often there was none any more.
    pub disconnects: u64,
    /// Bytes of messages that were given to a connection.
    pub sent_bytes: u64,
    /// Bytes of messages that have come.
    pub received_bytes: u64,
    /// Messages that could not be sent.
    pub dropped_messages: u64,
    /// Copies of the store that have arrived there.
    pub raft_snapshots_sent: u64,
    /// How long it takes to there and back.
    pub round_trips: Arc<DurationHistogram>,
}

/// The other members, which may be asked.
pub trait PeerClients: Send + Sync + Debug {
    /// Since when there is an unbroken connection to a member; `None` if there is none.
    fn active_since(&self, id: u64) -> Option<Instant>;

    /// What has gone to the other members, and come from them.
    fn traffic(&self) -> Vec<PeerTraffic>;

    /// Asks a member, which should be the leader, to promote a learner.
    fn promote(&self, leader: u64, learner: u64) -> PeerFuture<'_, Vec<Member>>;

    /// Asks a member, which should be the leader, to let a lease begin its time anew. The answer is
    /// in seconds, and 0 if there is no such lease.
    fn renew_lease(&self, leader: u64, lease: i64) -> PeerFuture<'_, i64>;

    /// Asks a member, which should be the leader, how it stands with a lease.
    fn lease_time_to_live(
        &self,
        leader: u64,
        request: LeaseTimeToLiveRequest,
    ) -> PeerFuture<'_, LeaseTimeToLiveResponse>;

    /// Asks a member for its `HashKV` at a revision.
    fn hash_kv(&self, member: u64, revision: i64) -> PeerFuture<'_, MemberHash>;
}
