//! Requests to other members outside of raft: promotions and leases to the leader, hashes to all.
//! The `peer` crate implements [`PeerClients`].

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

pub type PeerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, RequestError>> + Send + 'a>>;

/// Counted since the member is known here.
#[derive(Clone, Debug)]
pub struct PeerTraffic {
    pub id: u64,
    pub is_active: bool,
    pub disconnects: u64,
    /// Message bytes given to a connection.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub dropped_messages: u64,
    pub raft_snapshots_sent: u64,
    /// Round-trip times.
    pub round_trips: Arc<DurationHistogram>,
}

/// `leader` is the member that should be the leader.
pub trait PeerClients: Send + Sync + Debug {
    /// `None` if there is no connection.
    fn active_since(&self, id: u64) -> Option<Instant>;

    fn traffic(&self) -> Vec<PeerTraffic>;

    fn promote(&self, leader: u64, learner: u64) -> PeerFuture<'_, Vec<Member>>;

    /// Returns the TTL in seconds; 0 if there is no such lease.
    fn renew_lease(&self, leader: u64, lease: i64) -> PeerFuture<'_, i64>;

    fn lease_time_to_live(
        &self,
        leader: u64,
        request: LeaseTimeToLiveRequest,
    ) -> PeerFuture<'_, LeaseTimeToLiveResponse>;

    fn hash_kv(&self, member: u64, revision: i64) -> PeerFuture<'_, MemberHash>;
}
