//! The entries about users, roles and tokens; and whether the user of an entry may do what it asks.
//!
//! The permission is checked here and not when a request is proposed: users and roles may change
//! in between, and every member must decide alike.

use clearlane_auth::{AuthRejection, AuthStore};
use clearlane_lease::Lessor;
use clearlane_mvcc::Store;
use clearlane_proto::etcdserverpb::{AuthenticateResponse, InternalRaftRequest};

use super::rejection::RequestRejection;
use super::{AppliedEntry, AppliedResponse, header, in_transaction};
use crate::applied_position::AppliedPosition;
use crate::error::Result;

/// Says no if the user that the entry's header names may not do this.
pub(crate) fn check(
    auth: &AuthStore,
    leases: &Lessor,
    request: &InternalRaftRequest,
) -> std::result::Result<(), RequestRejection> {
    if !auth.is_enabled() {
        return Ok(());
    }
    let lease_keys = |lease, from: &[u8]| leases.key_from(lease, from);
    Ok(auth.with_state(|state| state.check_entry(request, &lease_keys))?)
}

/// `None` if the request is not about users. What has changed is published when this returns.
pub fn apply(
    store: &dyn Store<AppliedPosition>,
    auth: &AuthStore,
    request: &InternalRaftRequest,
    progress: AppliedPosition,
) -> Result<Option<AppliedEntry>> {
    if let Some(authenticate) = &request.authenticate {
        let index = progress.index;
        let applied = in_transaction(store, progress, |txn| {
            let token = auth.authenticate(authenticate, index)?;
            let header = Some(header(txn.revision()));
            Ok(AppliedResponse::Authenticate(AuthenticateResponse { header, token }))
        })?;
        return Ok(Some(applied));
    }
    if clearlane_auth::is_read(request) {
        // etcd reads users and roles through its log: nothing is to be done for such an entry.
        let read = in_transaction(store, progress, |txn| {
            Ok(AppliedResponse::Auth(Some(header(txn.revision()))))
        })?;
        return Ok(Some(read));
    }
    if !clearlane_auth::is_change(request) {
        return Ok(None);
    }
    let mut change = None;
    let applied = in_transaction(store, progress, |txn| {
        change = Some(auth.apply(txn, request)?);
        Ok(AppliedResponse::Auth(Some(header(txn.revision()))))
    })?;
    if let Some(change) = change {
        auth.publish(change);
    }
    Ok(Some(applied))
}

impl From<AuthRejection> for RequestRejection {
    fn from(refused: AuthRejection) -> RequestRejection {
        RequestRejection::Auth(refused)
    }
}
