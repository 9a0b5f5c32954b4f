//! The entries about leases: grant, revoke and checkpoint. [`clearlane_lease`] decides when a lease
//! expires.
//!
//! A revocation deletes the keys and the lease's record in one transaction of the store, at one
//! revision. An entry contains no time of expiry, only a TTL, or in a checkpoint the remaining TTL.
//! Only the leader measures the time of a lease. The measurement starts when the grant becomes
//! visible, and restarts when a renewal arrives or a leader is elected.

use clearlane_lease::Lessor;
use clearlane_mvcc::Store;
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpointResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse,
};

use super::rejection::{ApplyError, RequestRejection};
use super::{AppliedEntry, AppliedResponse, header, in_transaction};
use crate::applied_position::AppliedPosition;
use crate::error::Result;

/// Clears the sign bit of a new id, because the ids that the server chooses are positive.
pub(crate) const ID_MASK: u64 = i64::MAX as u64;

/// Applies a request about leases. Returns `None` for any other request.
pub fn apply(
    store: &dyn Store<AppliedPosition>,
    leases: &Lessor,
    request: &InternalRaftRequest,
    progress: AppliedPosition,
) -> Result<Option<AppliedEntry>> {
    let applied = if let Some(LeaseGrantRequest { id, ttl }) = request.lease_grant {
        in_transaction(store, progress, |txn| {
            let ttl = leases.grant(id, ttl, txn)??;
            let (header, error) = (Some(header(txn.revision())), String::new());
            Ok(AppliedResponse::LeaseGrant(LeaseGrantResponse { header, id, ttl, error }))
        })?
    } else if let Some(LeaseRevokeRequest { id }) = request.lease_revoke {
        let applied = in_transaction(store, progress, |txn| {
            leases.delete(id, txn)??;
            let header = Some(header(txn.revision()));
            Ok(AppliedResponse::LeaseRevoke(LeaseRevokeResponse { header }))
        })?;
        if applied.result.is_ok() {
            leases.finish_delete(id);
        }
        applied
    } else if let Some(request) = &request.lease_checkpoint {
        in_transaction(store, progress, |txn| {
            leases.checkpoint(&request.checkpoints, txn)?;
            let header = Some(header(txn.revision()));
            Ok(AppliedResponse::LeaseCheckpoint(LeaseCheckpointResponse { header }))
        })?
    } else {
        return Ok(None);
    };
    Ok(Some(applied))
}

impl From<clearlane_lease::Error> for ApplyError {
    fn from(error: clearlane_lease::Error) -> ApplyError {
        ApplyError::Fatal(error.into())
    }
}

impl From<clearlane_lease::LeaseRejection> for ApplyError {
    fn from(refused: clearlane_lease::LeaseRejection) -> ApplyError {
        use clearlane_lease::LeaseRejection as Lease;
        ApplyError::Rejected(match refused {
            Lease::Exists => RequestRejection::LeaseExists,
            Lease::NotFound => RequestRejection::LeaseNotFound,
            Lease::TtlTooLarge => RequestRejection::LeaseTtlTooLarge,
        })
    }
}
