//! Leases. A lease expires when no client keeps it alive, and then its keys are deleted.

mod keep_alive;

use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
};
use tonic::transport::Channel;

pub use keep_alive::{KeepAlive, LeaseEnd};

use crate::Client;
use crate::call::CallPolicy;
use crate::error::{Error, Result};

/// A lease that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The id, which a [`Put`](crate::Put) names to attach a key.
    pub id: i64,
    /// The granted TTL, which may exceed the requested one.
    pub ttl: Duration,
}

/// The remaining time of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// Time until the lease ends, unless it is kept alive.
    pub remaining: Duration,
    /// The TTL that the lease got when it was granted.
    pub granted_ttl: Duration,
    /// The keys of the lease, if they were requested.
    pub keys: Vec<Bytes>,
}

pub(crate) fn stub(channel: Channel) -> LeaseClient<Channel> {
    LeaseClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Converts seconds. A negative number becomes 0.
fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl Client {
    /// Grants a lease. The TTL is rounded up to whole seconds.
    pub async fn lease_grant(&self, ttl: Duration) -> Result<Lease> {
        self.lease_grant_as(0, ttl).await
    }

    /// Grants a lease with this id. Fails with [`Error::LeaseExists`] if another lease has it.
    pub async fn lease_grant_as(&self, id: i64, ttl: Duration) -> Result<Lease> {
        let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = LeaseGrantRequest { id, ttl: i64::try_from(whole).unwrap_or(i64::MAX) };
        let send = async |channel, request| stub(channel).lease_grant(request).await;
        let granted = self.call(CallPolicy::WRITE, request, send).await?;
        if granted.error.is_empty() {
            Ok(Lease { id: granted.id, ttl: seconds(granted.ttl) })
        } else {
            Err(Error::from_text(&granted.error))
        }
    }

    /// Revokes a lease, which also deletes its keys.
    pub async fn lease_revoke(&self, id: i64) -> Result<()> {
        let send = async |channel, request| stub(channel).lease_revoke(request).await;
        self.call(CallPolicy::WRITE, LeaseRevokeRequest { id }, send).await.map(drop)
    }

    /// Returns the remaining time of a lease. Lists its keys only if `keys` is true. Fails with
    /// [`Error::LeaseNotFound`] if the lease has expired or never existed.
    pub async fn lease_time_to_live(&self, id: i64, keys: bool) -> Result<TimeToLive> {
        let request = LeaseTimeToLiveRequest { id, keys };
        let send = async |channel, request| stub(channel).lease_time_to_live(request).await;
        let response = self.call(CallPolicy::READ, request, send).await?;
        match response.ttl {
            ..0 => Err(Error::LeaseNotFound),
            left => Ok(TimeToLive {
                remaining: seconds(left),
                granted_ttl: seconds(response.granted_ttl),
                keys: response.keys,
            }),
        }
    }

    /// Returns the ids of all leases. If the leader responds, the ids are ordered by expiry, and
    /// the lease that expires next is first. Other members do not know the expiry.
    pub async fn leases(&self) -> Result<Vec<i64>> {
        let send = async |channel, request| stub(channel).lease_leases(request).await;
        let response = self.call(CallPolicy::READ, LeaseLeasesRequest {}, send).await?;
        Ok(response.leases.iter().map(|lease| lease.id).collect())
    }
}
