//! Lease requests of a network thread that do not go through the log.
//!
//! ```text
//!   renew, time to live   from the leader, after a ReadIndex request
//!   list                  the leases that this member has, as in etcd
//! ```
//!
//! With etcd's gate `FastLeaseKeepAlive`, a renewal of a lease that exists here does not wait until
//! the leader has applied the index that the ReadIndex request returned. A sole voter that has
//! applied every acknowledged write sends no ReadIndex request.
//!
//! So a fast renewal may find a lease whose revocation is committed and not applied here yet:
//!
//! * If this leader has found the lease expired, the lessor knows that, and the renewal returns 0.
//! * If an earlier leader has proposed the revocation, the renewal returns 0: until a leader has
//!   applied an entry of its own term, all renewals wait for the applied index.
//! * If a client has proposed the revocation, the renewal returns the full TTL, as in etcd. The
//!   lease still ends when the entry is applied here, and later renewals return 0. Another member
//!   may already have responded to the client that revoked the lease.
//!
//! If the remaining time of a lease was checkpointed, a renewal first proposes a checkpoint that
//! restores the full TTL, and waits until it is applied. The lease may expire during this wait.
//!
//! Without the ReadIndex request, a leader that has been replaced and does not know it yet would
//! renew a lease that its successor lets expire. Members that do not lead return
//! [`RequestError::NotLeader`], and the caller requests the renewal from the leader. If no leader
//! is known, they return [`RequestError::NoLeader`].

use std::sync::Arc;

use bytes::Bytes;
use clearlane_auth::AuthState;
use clearlane_auth::checks::{CheckResult, Checker, LeaseKeys};
use clearlane_lease::{Lessor, Renewal};
use clearlane_proto::etcdserverpb::{LeaseCheckpointRequest, LeaseTimeToLiveResponse};
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::RequestError;

use crate::auth::Admission;
use crate::handle::Server;
use crate::read::executor::ReadSize;

/// Maximum number of leases, or of keys, that a network thread lists or checks itself.
const INLINE_ENTRIES_MAX: usize = 1024;
const TTL_OF_MISSING_LEASE: i64 = -1;

impl Server {
    /// Renews a lease. Returns the TTL in seconds, or 0 if there is no such lease.
    pub async fn renew_lease(&self, id: i64) -> Result<i64, RequestError> {
        loop {
            let need = match self.threads().leases().contains(id) {
                true => self.threads().need_of_renewals(),
                // The grant of the lease may be committed, but not applied here yet.
                false => ReadNeed::Applied,
            };
            self.require_leader(need).await?;
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
        self.require_leader(ReadNeed::Applied).await?;
        // The revision is read before the keys. A change attaches keys to leases before it becomes
        // readable, so the keys include all keys of this revision.
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

    /// Lists all leases. A long list is made on a separate thread and not in the read pool, because
    /// it takes the lessor's lock. A thread of the pool might hold that lock while the kernel runs
    /// other threads on its core. A check of permissions for many leases still lists the leases in
    /// the read pool.
    pub async fn lease_ids(&self) -> Result<Vec<i64>, RequestError> {
        if self.threads().leases().count() <= INLINE_ENTRIES_MAX {
            return Ok(self.threads().leases().list());
        }
        let threads = Arc::clone(self.threads());
        self.run_on_own_thread(move || threads.leases().list()).await
    }

    /// Runs `list` on this thread if there are at most [`INLINE_ENTRIES_MAX`] entries, or else in
    /// the read pool.
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

    /// Fails unless `check` accepts the user for the keys of this lease. Succeeds if auth is
    /// disabled or the user is an admin.
    pub async fn require_for_lease(
        &self,
        id: i64,
        check: impl Fn(Checker<'_>, &LeaseKeys<'_>) -> CheckResult + Send + 'static,
    ) -> Result<(), RequestError> {
        let keys = self.threads().leases().key_count(id);
        self.require_for_keys(keys, check).await
    }

    /// Checks whether the user may list all leases: a user with role root may, and any other user
    /// must be permitted to read the keys of every lease. If there are many leases, the check runs
    /// in the read pool.
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

    /// Checks that the user may read these keys, which are attached to a lease.
    pub async fn require_read_of(&self, keys: Vec<Bytes>) -> Result<(), RequestError> {
        self.require_for_keys(keys.len(), move |user, _| user.read_keys(&keys)).await
    }

    /// Checks a permission for `keys` keys or leases. More than [`INLINE_ENTRIES_MAX`] are checked
    /// in the read pool. Succeeds immediately if auth is disabled or the user is an admin. Fails if
    /// users or roles change during the check.
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

    /// Fails unless this member leads. Confirms its leadership with a ReadIndex request, and waits
    /// as `need` requires. A sole voter that has applied everything acknowledged needs no
    /// confirmation.
    async fn require_leader(&self, need: ReadNeed) -> Result<(), RequestError> {
        match self.threads().status().leader() {
            0 => Err(RequestError::NoLeader),
            leader if leader != self.threads().metadata().node_id => Err(RequestError::NotLeader),
            _ if self.threads().is_sole_voter_caught_up() => Ok(()),
            _ => self.requests().read_index(need).await.map(drop),
        }
    }
}
