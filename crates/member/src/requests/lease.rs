//! Leases: granted, revoked, and how much is left of them.
//!
//! What a lease is, and whose time is over, is told in [`clearlane_lease`]. Here are the entries that
//! change what all members agree on. A revocation deletes the keys and the lease's record in one
//! transaction of the store, so that its keys go at one revision, and a crash finds all of it or
//! nothing.
//!
//! An entry names the lease and not when it ends: that matters only to a member that leads, and begins when the
//! grant can be seen.

use clearlane_lease::{Checkpoint, Lessor};
use clearlane_mvcc::{Store, WriteTxn};
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpointResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeResponse,
};

use super::refused::{Refused, Stop};
use super::{Applied, Reply, header, in_transaction};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// An id that the server chooses is a positive number.
pub(crate) const ID_MASK: u64 = i64::MAX as u64;

/// Applies an entry, if it is about leases.
pub fn apply(
    store: &dyn Store<Progress>,
    leases: &Lessor,
    request: &InternalRaftRequest,
    progress: Progress,
) -> Result<Option<Applied>> {
    let applied = if let Some(request) = &request.lease_grant {
        in_transaction(store, progress, |txn| grant(txn, leases, request))?
    } else if let Some(request) = &request.lease_revoke {
        let applied = in_transaction(store, progress, |txn| revoke(txn, leases, request.id))?;
        if applied.answer.is_ok() {
            leases.forget(request.id);
        }
        applied
    } else if let Some(request) = &request.lease_checkpoint {
        let left = |of: &_| of_wire(of);
        let checkpoints: Vec<Checkpoint> = request.checkpoints.iter().map(left).collect();
        in_transaction(store, progress, |txn| {
            leases.checkpoint(&checkpoints, txn).map_err(failed)?;
            let header = Some(header(txn.revision()));
            Ok(Reply::LeaseCheckpoint(LeaseCheckpointResponse { header }))
        })?
    } else {
        return Ok(None);
    };
    Ok(Some(applied))
}

fn grant(
    txn: &mut (dyn WriteTxn<Progress> + '_),
    leases: &Lessor,
    request: &LeaseGrantRequest,
) -> std::result::Result<Reply, Stop> {
    let ttl = leases.grant(request.id, request.ttl, txn).map_err(failed)??;
    let header = Some(header(txn.revision()));
    let error = String::new();
    Ok(Reply::LeaseGrant(LeaseGrantResponse { header, id: request.id, ttl, error }))
}

fn revoke(
    txn: &mut (dyn WriteTxn<Progress> + '_),
    leases: &Lessor,
    id: i64,
) -> std::result::Result<Reply, Stop> {
    leases.delete(id, txn).map_err(failed)??;
    let header = Some(header(txn.revision()));
    Ok(Reply::LeaseRevoke(LeaseRevokeResponse { header }))
}

fn of_wire(checkpoint: &clearlane_proto::etcdserverpb::LeaseCheckpoint) -> Checkpoint {
    Checkpoint { id: checkpoint.id, left: checkpoint.remaining_ttl }
}

fn failed(error: clearlane_lease::Error) -> Stop {
    Stop::Failed(Error::from(error))
}

impl From<clearlane_lease::Refused> for Stop {
    fn from(refused: clearlane_lease::Refused) -> Stop {
        use clearlane_lease::Refused as Lease;
        Stop::Refused(match refused {
            Lease::Exists => Refused::LeaseExists,
            Lease::NotFound => Refused::LeaseNotFound,
            Lease::TtlTooLarge => Refused::LeaseTtlTooLarge,
        })
    }
}
