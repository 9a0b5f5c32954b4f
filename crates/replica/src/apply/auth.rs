//! The entries about users, roles and tokens, and the check that an entry's user may make the
//! request in the entry.
//!
//! The permission is checked when the entry is applied, and not when the request is proposed: users
//! and roles may change in between, and all members must make the same decision.

use clearlane_auth::{AuthRejection, AuthStore};
use clearlane_lease::Lessor;
use clearlane_mvcc::Store;
use clearlane_proto::etcdserverpb::{AuthenticateResponse, InternalRaftRequest};

use super::rejection::RequestRejection;
use super::{AppliedEntry, AppliedResponse, header, in_transaction};
use crate::applied_position::AppliedPosition;
use crate::error::Result;

/// Fails if authentication is enabled and the user in the entry's header may not make this request.
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

/// Applies a request about users, roles or tokens: a change, the enabling or disabling of
/// authentication, an `authenticate` request, or one of etcd's read entries. Returns `None` for any
/// other request. A change is visible to readers when this function returns.
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
        // etcd reads users and roles through its log, so a log that etcd has written may contain
        // such entries. The entry changes nothing, and no request at this member waits for its
        // result.
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
