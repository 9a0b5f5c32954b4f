//! Requests to other members outside of raft. The leader promotes a learner, renews a lease, or
//! returns the TTL of a lease on behalf of another member. Any member returns its hash. The crate
//! `peer` implements [`PeerClients`].

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use clearlane_proto::etcdserverpb::{LeaseTimeToLiveRequest, LeaseTimeToLiveResponse};
use clearlane_replica::RequestError;
use clearlane_replica::membership::Member;

use super::metrics::DurationHistogram;
use crate::observe::corruption::MemberHash;

pub type PeerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, RequestError>> + Send + 'a>>;

/// Counters for one other member. They start at 0 when this member learns of that member's current
/// peer URLs.
#[derive(Clone, Debug)]
pub struct PeerTraffic {
    pub id: u64,
    pub is_active: bool,
    pub disconnects: u64,
    /// Estimated number of bytes of the messages that were passed to a connection: see
    /// [`Message::bytes`](clearlane_raft::Message::bytes).
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub dropped_messages: u64,
    pub raft_snapshots_sent: u64,
    /// Round-trip times of the pings on the streams to the member.
    pub round_trips: Arc<DurationHistogram>,
}

/// Clients for the other members. The parameter `leader` is the ID of the member that the caller
/// believes to be the leader.
pub trait PeerClients: Send + Sync + Debug {
    /// Returns the time at which the current connection was made, or `None` if there is no
    /// connection.
    fn active_since(&self, id: u64) -> Option<Instant>;

    fn traffic(&self) -> Vec<PeerTraffic>;

    fn promote(&self, leader: u64, learner: u64) -> PeerFuture<'_, Vec<Member>>;

    /// Renews a lease. Returns the TTL in seconds, or 0 if there is no such lease.
    fn renew_lease(&self, leader: u64, lease: i64) -> PeerFuture<'_, i64>;

    fn lease_time_to_live(
        &self,
        leader: u64,
        request: LeaseTimeToLiveRequest,
    ) -> PeerFuture<'_, LeaseTimeToLiveResponse>;

    fn hash_kv(&self, member: u64, revision: i64) -> PeerFuture<'_, MemberHash>;
}
