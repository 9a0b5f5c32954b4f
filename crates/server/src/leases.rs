//! What a network thread asks about leases, and does not send through the log.
//!
//! ```text
//!   renew, time to live   the leader knows. Is this member the leader, still? A round of questions
//!                         says so (the same that a fresh read waits for), and all that this
//!                         member must have applied is applied then
//!   list                  what this member has, as in etcd
//! ```
//!
//! Without the round, a leader that has been replaced and does not know it yet would renew a lease
//! that its successor lets run out.
//!
//! Members that do not lead answer [`RequestError::NotLeader`]: the code that carries requests
//! between members asks the leader then.

use clearlane_lease::{LeaseTtl, Renewal};
use clearlane_proto::etcdserverpb::{
    LeaseCheckpoint, LeaseCheckpointRequest, LeaseTimeToLiveResponse,
};

use crate::handle::Server;
use crate::request_error::RequestError;

/// etcd's time to live of a lease that there is not.
const TTL_OF_MISSING_LEASE: i64 = -1;

impl Server {
    /// Lets a lease begin its time anew, and says how many seconds that is; 0 if there is none.
    pub async fn renew_lease(&self, id: i64) -> Result<i64, RequestError> {
        loop {
            self.require_leader().await?;
            match self.threads().leases().renew(id, self.threads().now()) {
                Renewal::Renewed(ttl) => return Ok(ttl),
                Renewal::NotFound => return Ok(0),
                Renewal::NotLeading => return Err(RequestError::NotLeader),
                Renewal::CheckpointFirst(checkpoint) => {
                    let (id, remaining_ttl) = (checkpoint.id, checkpoint.remaining_ttl);
                    let checkpoints = vec![LeaseCheckpoint { id, remaining_ttl }];
                    self.propose(LeaseCheckpointRequest { checkpoints }).await?;
                }
            }
        }
    }

    /// How it stands with a lease, and which keys hang on it.
    pub async fn lease_time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> Result<LeaseTimeToLiveResponse, RequestError> {
        self.require_leader().await?;
        // Before the keys are looked at: a change hangs its keys on leases before it can be read.
        // So the keys are those of this revision at least.
        let revision = self.store_revision().await?;
        let leases = self.threads().leases();
        let mut response =
            LeaseTimeToLiveResponse { id, ttl: TTL_OF_MISSING_LEASE, ..Default::default() };
        if let Some(LeaseTtl { granted, remaining: left }) =
            leases.time_to_live(id, self.threads().now())
        {
            response.ttl = left.ok_or(RequestError::NotLeader)?;
            response.granted_ttl = granted;
            if keys {
                response.keys = leases.keys(id);
            }
        }
        response.header.get_or_insert_default().revision = revision;
        self.fill_header(&mut response.header);
        Ok(response)
    }

    /// Makes sure that this member leads, and has applied whatever was acknowledged before.
    async fn require_leader(&self) -> Result<(), RequestError> {
        match self.threads().status().leader() {
            0 => Err(RequestError::NoLeader),
            leader if leader != self.threads().metadata().node_id => Err(RequestError::NotLeader),
            _ => self.linearizable_read_notify_untraced().await,
        }
    }
}
