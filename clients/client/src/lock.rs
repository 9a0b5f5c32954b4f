//! Locks. Each lock belongs to a lease.
//!
//! The queue is on the server. A lock is a key with the lease of its holder, so it becomes free
//! when that lease ends. The holder must keep the lease alive ([`Client::keep_alive`]), and must
//! stop its work when [the lease has ended](crate::KeepAlive::ended). It is safer to guard each
//! change under the lock with [`Lock::is_held`] in the same transaction.

use bytes::Bytes;
use clearlane_proto::v3lockpb::lock_client::LockClient;
use clearlane_proto::v3lockpb::{LockRequest, UnlockRequest};

use crate::call::CallPolicy;
use crate::error::{Error, Result};
use crate::{Client, Compare};

/// A lock. Dropping it does not release the lock, because the lease holds it.
#[derive(Clone, Debug)]
pub struct Lock {
    client: Client,
    key: Bytes,
}

impl Lock {
    /// Returns the key of the lock, which exists while the lock is held.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Returns a condition for a transaction. The condition holds only if the lease still has the
    /// lock.
    pub fn is_held(&self) -> Compare {
        Compare::exists(self.key.clone())
    }

    /// Releases the lock. The next client in the queue then holds it.
    pub async fn unlock(self) -> Result<()> {
        let send = async |channel, request| LockClient::new(channel).unlock(request).await;
        // The key belongs only to this lease, so a second deletion has no effect.
        self.client.call(CallPolicy::READ, UnlockRequest { key: self.key }, send).await.map(drop)
    }
}

impl Client {
    /// Waits until this lease has the lock. A lease that already has the lock gets it again.
    ///
    /// To limit the wait, wrap the call in a timeout. After the timeout, revoke the lease, because
    /// its key may still be in the queue. If the member fails, the error is
    /// [`OutcomeUnknown`](crate::Error::OutcomeUnknown). Then also revoke the lease, and wait with
    /// another lease, because the place in the queue may be removed at any time.
    pub async fn lock(&self, name: impl Into<Vec<u8>>, lease: i64) -> Result<Lock> {
        let request = LockRequest { name: name.into().into(), lease: require_lease(lease)? };
        let send = async |channel, request| LockClient::new(channel).lock(request).await;
        let key = self.call(CallPolicy::LONG_WRITE, request, send).await?.key;
        Ok(Lock { client: self.clone(), key })
    }
}

/// Fails for lease 0. A request without a lease cannot be repeated, because the server would create
/// a new lease each time.
pub(crate) fn require_lease(lease: i64) -> Result<i64> {
    match lease {
        0 => Err(Error::InvalidArgument("the lease must not be 0".to_owned())),
        lease => Ok(lease),
    }
}
