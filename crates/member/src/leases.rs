//! What a network thread asks about leases, and does not send through the log.
//!
//! ```text
//!   renew, time to live     the leader knows. Is this member the leader, still? A round of questions
//!                           says so (the same that a fresh read waits for), and all that this member
//!                           must have applied is applied then
//!   list                    what this member has, as in etcd
//! ```
//!
//! Without the round, a leader that has been replaced and does not know it yet would renew a lease that
//! its successor lets run out.
//!
//! Members that do not lead answer [`Trouble::NotLeader`]: whoever carries requests between members
//! asks the leader then.

use clearlane_lease::{Renewal, Standing};
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseTimeToLiveResponse,
};

use crate::handle::Handle;
use crate::trouble::Trouble;

/// etcd's time to live of a lease that there is not.
const NO_LEASE: i64 = -1;

impl Handle {
    /// Lets a lease begin its time anew, and says how many seconds that is; 0 if there is none.
    pub async fn renew(&self, id: i64) -> Result<i64, Trouble> {
        loop {
            self.leads().await?;
            match self.node().leases().renew(id, self.node().now()) {
                Renewal::Renewed(ttl) => return Ok(ttl),
                Renewal::Gone => return Ok(0),
                Renewal::NotLeading => return Err(Trouble::NotLeader),
                Renewal::CheckpointFirst(checkpoint) => {
                    let (id, remaining_ttl) = (checkpoint.id, checkpoint.left);
                    let checkpoints = vec![LeaseCheckpoint { id, remaining_ttl }];
                    let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
                    self.write(InternalRaftRequest { lease_checkpoint, ..Default::default() })
                        .await?;
                }
            }
        }
    }

    /// How it stands with a lease, and which keys hang on it.
    pub async fn time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> Result<LeaseTimeToLiveResponse, Trouble> {
        self.leads().await?;
        // Before the keys are looked at: a change hangs its keys on leases before it can be read. So the keys
        // are those of this revision at least.
        let revision = self.store().read().revision();
        let leases = self.node().leases();
        let mut response = LeaseTimeToLiveResponse { id, ttl: NO_LEASE, ..Default::default() };
        if let Some(Standing { granted, left }) = leases.standing(id, self.node().now()) {
            response.ttl = left.ok_or(Trouble::NotLeader)?;
            response.granted_ttl = granted;
            if keys {
                response.keys = leases.keys(id);
            }
        }
        response.header.get_or_insert_default().revision = revision;
        self.stamp(&mut response.header);
        Ok(response)
    }

    /// The ids of all leases that this member has; at a leader the one that ends first in front.
    pub fn leases(&self) -> Vec<i64> {
        self.node().leases().list()
    }

    /// Makes sure that this member leads, and has applied whatever was acknowledged before.
    async fn leads(&self) -> Result<(), Trouble> {
        match self.node().status().leader() {
            0 => Err(Trouble::NoLeader),
            leader if leader != self.node().metadata().node_id => Err(Trouble::NotLeader),
            _ => self.fresh().await,
        }
    }
}
