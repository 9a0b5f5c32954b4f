//! Leases: keys that end when no client keeps them alive.

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
    /// The number by which requests name it.
    pub id: i64,
    /// It ends so long after it was kept alive last. A server may give more than was asked for.
    pub ttl: Duration,
}

/// What is left of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// It ends after this.
    pub remaining: Duration,
    /// What it was granted.
    pub granted_ttl: Duration,
    /// The keys that end with it, if they were asked for.
    pub keys: Vec<Bytes>,
}

pub(crate) fn stub(channel: Channel) -> LeaseClient<Channel> {
    LeaseClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Whole seconds; less than nothing is nothing.
fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl Client {
    /// A new lease, which ends so long after it was kept alive last, in whole seconds.
    pub async fn lease_grant(&self, ttl: Duration) -> Result<Lease> {
        self.lease_grant_as(0, ttl).await
    }

    /// The same, with a number of the caller's choice.
    pub async fn lease_grant_as(&self, id: i64, ttl: Duration) -> Result<Lease> {
        let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = LeaseGrantRequest { id, ttl: i64::try_from(whole).unwrap_or(i64::MAX) };
        let send = |channel, request| async move { stub(channel).lease_grant(request).await };
        let granted = self.call(CallPolicy::WRITE, request, send).await?;
        if granted.error.is_empty() {
            Ok(Lease { id: granted.id, ttl: seconds(granted.ttl) })
        } else {
            Err(Error::from_text(&granted.error))
        }
    }

    /// Ends a lease, and deletes its keys.
    pub async fn lease_revoke(&self, id: i64) -> Result<()> {
        let send = |channel, request| async move { stub(channel).lease_revoke(request).await };
        self.call(CallPolicy::WRITE, LeaseRevokeRequest { id }, send).await.map(drop)
    }

    /// What is left of a lease, and its keys if they are wanted. [`Error::LeaseNotFound`] if it is
    /// gone.
    pub async fn lease_time_to_live(&self, id: i64, keys: bool) -> Result<TimeToLive> {
        let request = LeaseTimeToLiveRequest { id, keys };
        let send =
            |channel, request| async move { stub(channel).lease_time_to_live(request).await };
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

    /// The numbers of all leases, the one that ends next first.
    pub async fn leases(&self) -> Result<Vec<i64>> {
        let send = |channel, request| async move { stub(channel).lease_leases(request).await };
        let told = self.call(CallPolicy::READ, LeaseLeasesRequest {}, send).await?;
        Ok(told.leases.iter().map(|lease| lease.id).collect())
    }
}
