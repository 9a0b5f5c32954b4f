//! Locks that are held by a lease.
//!
//! The queue is at the server. A lock is a key with the lease of its holder, so it is free again
//! when the holder's lease ends: keep the lease alive ([`Client::keep_alive`]), and stop when [it
//! has ended](crate::KeepAlive::ended). Better yet, guard what is done under the lock with
//! [`Lock::is_held`] in the same transaction.

use bytes::Bytes;
use clearlane_proto::v3lockpb::lock_client::LockClient;
use clearlane_proto::v3lockpb::{LockRequest, UnlockRequest};

use crate::call::CallPolicy;
use crate::error::{Error, Result};
use crate::{Client, Compare};

/// Dropping it does not release the lock: the lease holds it.
#[derive(Clone, Debug)]
pub struct Lock {
    client: Client,
    key: Bytes,
}

impl Lock {
    /// The key exists as long as the lock is held.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// For a transaction: holds only if the lock is held.
    pub fn is_held(&self) -> Compare {
        Compare::exists(self.key.clone())
    }

    pub async fn unlock(self) -> Result<()> {
        let send = async |channel, request| LockClient::new(channel).unlock(request).await;
        // The key belongs to this lease alone: deleting it twice is deleting it once.
        self.client.call(CallPolicy::READ, UnlockRequest { key: self.key }, send).await.map(drop)
    }
}

impl Client {
    /// Waits until this lease has the lock. A lease that has it gets it again.
    ///
    /// To wait no longer than some time, wrap it in a time-out, and revoke the lease then: it is
    /// still in the queue. Do the same after [`OutcomeUnknown`](crate::Error::OutcomeUnknown), the
    /// error if the member has failed, and wait with another lease: the place in the queue may be
    /// removed at any time.
    pub async fn lock(&self, name: impl Into<Vec<u8>>, lease: i64) -> Result<Lock> {
        let request = LockRequest { name: name.into().into(), lease: require_lease(lease)? };
        let send = async |channel, request| LockClient::new(channel).lock(request).await;
        let key = self.call(CallPolicy::LONG_WRITE, request, send).await?.key;
        Ok(Lock { client: self.clone(), key })
    }
}

/// A request without a lease cannot be repeated: the server would make a new lease each time.
pub(crate) fn require_lease(lease: i64) -> Result<i64> {
    match lease {
        0 => Err(Error::InvalidArgument("a lease is needed to hold this".to_owned())),
        lease => Ok(lease),
    }
}
