//! Lease requests of a network thread that do not go through the log.
//!
//! ```text
//!   renew, time to live   from the leader, after a round of ReadIndex
//!   list                  what this member has, as in etcd
//! ```
//!
//! Without the round, a leader that has been replaced and does not know it yet would renew a lease
//! that its successor lets expire. Other members answer [`RequestError::NotLeader`], and the caller
//! asks the leader.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_auth::AuthState;
use clearlane_auth::checks::{CheckResult, Checker, LeaseKeys};
use clearlane_lease::{Lessor, Renewal};
use clearlane_proto::etcdserverpb::{LeaseCheckpointRequest, LeaseTimeToLiveResponse};

use crate::auth::Admission;
use crate::handle::Server;
use crate::read_executor::ReadSize;
use crate::request_error::RequestError;

/// Number of leases, or of keys, that a network thread lists itself.
const INLINE_ENTRIES_MAX: usize = 1024;
const TTL_OF_MISSING_LEASE: i64 = -1;

impl Server {
    /// Returns the TTL in seconds; 0 if there is no such lease.
    pub async fn renew_lease(&self, id: i64) -> Result<i64, RequestError> {
        loop {
            self.require_leader().await?;
            match self.threads().leases().renew(id, self.threads().now()) {
                Renewal::Renewed(ttl) => return Ok(ttl),
                Renewal::NotFound => return Ok(0),
                Renewal::NotLeading => return Err(RequestError::NotLeader),
                Renewal::CheckpointFirst(checkpoint) => {
                    let checkpoints = vec![checkpoint];
                    self.propose(LeaseCheckpointRequest { checkpoints }).await?;
                }
            }
        }
    }

    pub async fn lease_time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> Result<LeaseTimeToLiveResponse, RequestError> {
        self.require_leader().await?;
        // Before the keys are read: a change attaches keys to leases before it can be read, so the
        // keys are at least those of this revision.
        let revision = self.store_revision().await?;
        let leases = self.threads().leases();
        let mut response =
            LeaseTimeToLiveResponse { id, ttl: TTL_OF_MISSING_LEASE, ..Default::default() };
        if let Some(ttl) = leases.time_to_live(id, self.threads().now()) {
            response.ttl = ttl.remaining.ok_or(RequestError::NotLeader)?;
            response.granted_ttl = ttl.granted;
            if keys {
                let list = move |leases: &Lessor| leases.keys(id);
                response.keys = self.list_leases(leases.key_count(id), list).await?;
            }
        }
        response.header.get_or_insert_default().revision = revision;
        self.fill_header(&mut response.header);
        Ok(response)
    }

    /// A long list is made on a thread of its own: it takes the lessor's lock, which a thread of
    /// the read pool might keep while it has no core.
    pub async fn lease_ids(&self) -> Result<Vec<i64>, RequestError> {
        if self.threads().leases().count() <= INLINE_ENTRIES_MAX {
            return Ok(self.threads().leases().list());
        }
        let threads = Arc::clone(self.threads());
        self.run_on_own_thread(move || threads.leases().list()).await
    }

    /// On this thread if there is little to list.
    async fn list_leases<T: Send + 'static>(
        &self,
        count: usize,
        list: impl FnOnce(&Lessor) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        if count <= INLINE_ENTRIES_MAX {
            return Ok(list(self.threads().leases()));
        }
        let (threads, kind) = (Arc::clone(self.threads()), ReadSize::AtMost(count as u64).kind());
        let listed = threads.read_pool().submit(kind, {
            let threads = Arc::clone(&threads);
            move || list(threads.leases())
        });
        self.within_deadline(listed).await?.map_err(|_| RequestError::Stopped)
    }

    /// Whether the user may do something with a lease that depends on its keys.
    pub async fn require_for_lease(
        &self,
        id: i64,
        check: impl Fn(Checker<'_>, &LeaseKeys<'_>) -> CheckResult + Send + 'static,
    ) -> Result<(), RequestError> {
        let keys = self.threads().leases().key_count(id);
        self.require_for_keys(keys, check).await
    }

    /// The same for all leases, whose keys are at least as many.
    pub async fn require_for_leases(&self) -> Result<(), RequestError> {
        let count = self.threads().leases().count();
        let threads = Arc::clone(self.threads());
        self.require_for_keys(count, move |user, keys| {
            user.user()?;
            if user.admin().is_ok() {
                return Ok(());
            }
            let leases = threads.leases().list();
            leases.into_iter().try_for_each(|id| user.read_lease(id, keys))
        })
        .await
    }

    /// The user may read these keys, which hang on a lease.
    pub async fn require_read_of(&self, keys: Vec<Bytes>) -> Result<(), RequestError> {
        self.require_for_keys(keys.len(), move |user, _| user.read_keys(&keys)).await
    }

    /// Many keys are checked in the read pool. A change of users or roles meanwhile is an error.
    async fn require_for_keys(
        &self,
        keys: usize,
        check: impl Fn(Checker<'_>, &LeaseKeys<'_>) -> CheckResult + Send + 'static,
    ) -> Result<(), RequestError> {
        if !self.threads().auth().is_enabled() {
            return Ok(());
        }
        let user = self.auth_info().await?;
        let is_admin = |state: &AuthState| state.checker(user.as_ref()).admin().is_ok();
        if self.threads().auth().with_state(is_admin) {
            return Ok(());
        }
        let state = self.threads().auth().state();
        let revision = state.revision;
        let check = move |leases: &Lessor| {
            let keys = |id, from: &[u8]| leases.key_from(id, from);
            check(state.checker(user.as_ref()), &keys)
        };
        self.list_leases(keys, check).await??;
        self.check_admission(Admission::At(revision))
    }

    /// Confirms that this member leads, and waits until it has applied all that was acknowledged.
    async fn require_leader(&self) -> Result<(), RequestError> {
        match self.threads().status().leader() {
            0 => Err(RequestError::NoLeader),
            leader if leader != self.threads().metadata().node_id => Err(RequestError::NotLeader),
            _ => self.linearizable_read_notify().await.map(drop),
        }
    }
}
