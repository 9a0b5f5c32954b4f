//! Leases: keys that expire when no client keeps them alive.

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    /// May be more than was asked for.
    pub ttl: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    pub remaining: Duration,
    pub granted_ttl: Duration,
    /// If they were asked for.
    pub keys: Vec<Bytes>,
}

pub(crate) fn stub(channel: Channel) -> LeaseClient<Channel> {
    LeaseClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Less than 0 is 0.
fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl Client {
    /// The TTL is rounded up to whole seconds.
    pub async fn lease_grant(&self, ttl: Duration) -> Result<Lease> {
        self.lease_grant_as(0, ttl).await
    }

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

    /// Deletes the lease's keys, too.
    pub async fn lease_revoke(&self, id: i64) -> Result<()> {
        let send = async |channel, request| stub(channel).lease_revoke(request).await;
        self.call(CallPolicy::WRITE, LeaseRevokeRequest { id }, send).await.map(drop)
    }

    /// The keys are listed only if `keys`. [`Error::LeaseNotFound`] if it has expired.
    pub async fn lease_time_to_live(&self, id: i64, keys: bool) -> Result<TimeToLive> {
        let request = LeaseTimeToLiveRequest { id, keys };
        let send = async |channel, request| stub(channel).lease_time_to_live(request).await;
        let told = self.call(CallPolicy::READ, request, send).await?;
        match told.ttl {
            ..0 => Err(Error::LeaseNotFound),
            left => Ok(TimeToLive {
                remaining: seconds(left),
                granted_ttl: seconds(told.granted_ttl),
                keys: told.keys,
            }),
        }
    }

    /// The one that ends next first.
    pub async fn leases(&self) -> Result<Vec<i64>> {
        let send = async |channel, request| stub(channel).lease_leases(request).await;
        let told = self.call(CallPolicy::READ, LeaseLeasesRequest {}, send).await?;
        Ok(told.leases.iter().map(|lease| lease.id).collect())
    }
}
