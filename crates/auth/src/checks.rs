//! Which permission a request needs. In etcd: `apply/auth.go` and the checks of its `authStore`.
//!
//! | request | required permission |
//! |---|---|
//! | range, compare, `prev_kv` | read the whole range |
//! | put, delete | write the key (put), or the whole range (delete) |
//! | put with a lease, revocation, keep-alive | write each key of the lease |
//! | keys of a lease, list of leases | read each key of the leases |
//! | change or list of users or roles, compaction, change of members | the role `root` |
//! | all calls of maintenance that are not in the last row | the role `root` |
//! | get of a user, get of a role | to be that user, to have that role, or the role `root` |
//! | grant of a lease, TTL of a lease without keys, status, list of members or alarms | any user |
//!
//! Each operation of a transaction needs the same permission as a separate request. This includes
//! the operations of the branch that does not run. A user with the role `root` has every
//! permission. While authentication is disabled, no permission is needed.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, PutRequest, RequestHeader, RequestOp, TxnRequest,
};

use crate::changes;
use crate::error::AuthRejection;
use crate::key_ranges::End;
use crate::state::{Access, AuthInfo, AuthState, ROOT, UserEntry};

pub type CheckResult = Result<(), AuthRejection>;

/// Returns the first key of a lease that is at or after the given key, or `None` if there is no
/// such key.
pub type LeaseKeys<'l> = dyn Fn(i64, &[u8]) -> Option<Bytes> + 'l;

/// Checks the requests of one user against one state.
#[derive(Clone, Copy, Debug)]
pub struct Checker<'s> {
    state: &'s AuthState,
    user: Option<&'s AuthInfo>,
}

impl AuthState {
    /// Creates a checker. `user` is `None` if the request names no user.
    pub fn checker<'s>(&'s self, user: Option<&'s AuthInfo>) -> Checker<'s> {
        Checker { state: self, user }
    }

    /// Checks an entry when it is applied. The user is named in the entry's header. Before a
    /// request without a user is proposed, this check shows whether the request needs a user.
    pub fn check_entry(
        &self,
        request: &InternalRaftRequest,
        lease_keys: &LeaseKeys<'_>,
    ) -> CheckResult {
        if !self.enabled {
            return Ok(());
        }
        let is_named =
            |header: &&RequestHeader| header.auth_revision != 0 || !header.username.is_empty();
        let user = request.header.as_ref().filter(is_named).map(|header| AuthInfo {
            username: header.username.as_str().into(),
            revision: header.auth_revision,
        });
        let checker = self.checker(user.as_ref());
        if changes::is_change(request) {
            checker.admin()
        } else if let Some(put) = &request.put {
            checker.put(put, lease_keys)
        } else if let Some(delete) = &request.delete_range {
            checker.delete_range(delete)
        } else if let Some(txn) = &request.txn {
            checker.txn(txn, lease_keys)
        } else if let Some(range) = &request.range {
            // A read through the log has no key in its entry. The permission for such a read is
            // checked when the read runs.
            if range.key.is_empty() { Ok(()) } else { checker.read(&range.key, &range.range_end) }
        } else if let Some(revoke) = &request.lease_revoke {
            checker.write_lease(revoke.id, lease_keys)
        } else {
            Ok(())
        }
    }
}

impl<'s> Checker<'s> {
    /// Requires that the request names a user, if authentication is enabled.
    pub fn user(self) -> CheckResult {
        if self.state.enabled && self.user.is_none() {
            return Err(AuthRejection::UserEmpty);
        }
        Ok(())
    }

    /// Requires the role `root`. As in etcd, the [revision](AuthInfo::revision) of the user may be
    /// old.
    pub fn admin(self) -> CheckResult {
        if !self.state.enabled {
            return Ok(());
        }
        let named = self.user.filter(|user| !user.username.is_empty());
        let user = self.state.find_user(&named.ok_or(AuthRejection::UserEmpty)?.username)?;
        if user.has_role(ROOT) { Ok(()) } else { Err(AuthRejection::PermissionDenied) }
    }

    /// Requires that `name` is the user itself, or that the user has the role `root`.
    pub fn user_get(self, name: &str) -> CheckResult {
        let is_own = self.user.is_some_and(|user| &*user.username == name);
        self.admin().or_else(|refused| if is_own { Ok(()) } else { Err(refused) })
    }

    /// Requires that the user has this role or the role `root`.
    pub fn role_get(self, role: &str) -> CheckResult {
        let user = self.user.and_then(|user| self.state.users.get(&*user.username));
        let is_own = user.is_some_and(|user| user.has_role(role));
        self.admin().or_else(|refused| if is_own { Ok(()) } else { Err(refused) })
    }

    pub fn read(self, key: &[u8], range_end: &[u8]) -> CheckResult {
        self.access(Access::Read, key, range_end)
    }

    pub fn put(self, request: &PutRequest, lease_keys: &LeaseKeys<'_>) -> CheckResult {
        self.access(Access::Write, &request.key, &[])?;
        if request.lease != 0 {
            self.write_lease(request.lease, lease_keys)?;
        }
        if request.prev_kv { self.read(&request.key, &[]) } else { Ok(()) }
    }

    pub fn delete_range(self, request: &DeleteRangeRequest) -> CheckResult {
        let DeleteRangeRequest { key, range_end, prev_kv } = request;
        self.access(Access::Write, key, range_end)?;
        if *prev_kv { self.read(key, range_end) } else { Ok(()) }
    }

    pub fn txn(self, request: &TxnRequest, lease_keys: &LeaseKeys<'_>) -> CheckResult {
        let TxnRequest { compare, success, failure } = request;
        compare.iter().try_for_each(|compare| self.read(&compare.key, &compare.range_end))?;
        let mut ops = success.iter().chain(failure);
        ops.try_for_each(|op| self.operation(op, lease_keys))
    }

    fn operation(self, op: &RequestOp, lease_keys: &LeaseKeys<'_>) -> CheckResult {
        match &op.request {
            Some(Request::RequestRange(range)) => self.read(&range.key, &range.range_end),
            Some(Request::RequestPut(put)) => self.put(put, lease_keys),
            Some(Request::RequestDeleteRange(delete)) => self.delete_range(delete),
            Some(Request::RequestTxn(txn)) => self.txn(txn, lease_keys),
            None => Ok(()),
        }
    }

    /// Requires write permission for each key of a lease. Otherwise a user could delete a key that
    /// the user may not write, by revoking its lease.
    pub fn write_lease(self, lease: i64, lease_keys: &LeaseKeys<'_>) -> CheckResult {
        self.lease(Access::Write, lease, lease_keys)
    }

    pub fn read_lease(self, lease: i64, lease_keys: &LeaseKeys<'_>) -> CheckResult {
        self.lease(Access::Read, lease, lease_keys)
    }

    pub fn read_keys(self, keys: &[Bytes]) -> CheckResult {
        keys.iter().try_for_each(|key| self.read(key, &[]))
    }

    fn lease(self, access: Access, lease: i64, lease_keys: &LeaseKeys<'_>) -> CheckResult {
        if self.admin().is_ok() {
            return Ok(());
        }
        // A lease may have many keys. After a permitted key, the check skips all keys up to the end
        // of the permitted range.
        let mut from = Bytes::new();
        while let Some(key) = lease_keys(lease, &from) {
            let user = self.user_with_access()?;
            match self.state.permitted_until(user, access, &key) {
                Some(End::Before(end)) => from = end,
                Some(End::Open) => break,
                None => return Err(AuthRejection::PermissionDenied),
            }
        }
        Ok(())
    }

    fn access(self, access: Access, key: &[u8], range_end: &[u8]) -> CheckResult {
        if !self.state.enabled {
            return Ok(());
        }
        let user = self.user_with_access()?;
        if user.has_role(ROOT) || self.state.has_access(user, access, key, range_end) {
            Ok(())
        } else {
            Err(AuthRejection::PermissionDenied)
        }
    }

    /// Fails if the request names no user, if the user's [revision](AuthInfo::revision) is older
    /// than the state, or if the user does not exist.
    fn user_with_access(self) -> Result<&'s UserEntry, AuthRejection> {
        // A signed token may state the revision 0. Then the request is treated as if it named no
        // user.
        let user = self.user.filter(|user| user.revision != 0);
        let AuthInfo { username, revision } = user.ok_or(AuthRejection::UserEmpty)?;
        if *revision < self.state.revision {
            return Err(AuthRejection::OldRevision);
        }
        let user = self.state.users.get(&**username);
        user.map(|user| &**user).ok_or(AuthRejection::PermissionDenied)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use clearlane_proto::authpb::permission::Type;
    use clearlane_proto::authpb::{Permission, Role, User};
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    /// Creates a state with a user `alice` that may write these ranges and nothing else.
    fn state(ranges: &[(&[u8], &[u8])]) -> AuthState {
        let permissions = ranges.iter().map(|(key, end)| Permission {
            perm_type: Type::Write as i32,
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::copy_from_slice(end),
        });
        let role = Role { name: "role".into(), key_permission: permissions.collect() };
        let roles = vec!["role".to_owned()];
        let user = User { name: "alice".into(), roles, ..User::default() };
        let mut state = AuthState { enabled: true, revision: 1, ..AuthState::default() };
        state.roles.insert("role".to_owned(), Arc::new(role));
        state.users.insert("alice".to_owned(), Arc::new(UserEntry::new(user)));
        state
    }

    fn first_from(keys: &BTreeSet<Bytes>, from: &[u8]) -> Option<Bytes> {
        keys.range(Bytes::copy_from_slice(from)..).next().cloned()
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![Just(0), Just(b'a'), Just(b'b'), Just(b'c')], 0..3)
    }

    proptest! {
        #[test]
        fn a_lease_is_as_permitted_as_all_its_keys(
            ranges in vec((key(), key()), 0..4),
            keys in btree_set(key().prop_map(Bytes::from), 0..8),
        ) {
            let ranges: Vec<(&[u8], &[u8])> =
                ranges.iter().map(|(key, end)| (&key[..], &end[..])).collect();
            let state = state(&ranges);
            let alice = AuthInfo { username: "alice".into(), revision: 1 };
            let checker = state.checker(Some(&alice));
            let of_lease = checker.write_lease(7, &|_, from| first_from(&keys, from));
            let of_keys = keys.iter().try_for_each(|key| checker.access(Access::Write, key, &[]));
            prop_assert_eq!(of_lease, of_keys);
        }
    }

    #[test]
    fn the_keys_of_a_lease_are_looked_at_by_ranges() {
        let (state, looks) = (state(&[(b"b", b"m"), (b"p", b"")]), Cell::new(0));
        let alice = AuthInfo { username: "alice".into(), revision: 1 };
        let mut keys: BTreeSet<Bytes> =
            (0..100_000).map(|number| Bytes::from(format!("c{number}"))).collect();
        keys.insert("p".into());
        let check = |keys: &BTreeSet<Bytes>| {
            looks.set(0);
            let from = |_, from: &[u8]| {
                looks.set(looks.get() + 1);
                first_from(keys, from)
            };
            state.checker(Some(&alice)).write_lease(7, &from)
        };
        assert_eq!((check(&keys), looks.get()), (Ok(()), 3));
        for denied in ["a", "m", "n", "p\0", "q"] {
            keys.insert(denied.into());
            assert_eq!(check(&keys), Err(AuthRejection::PermissionDenied), "{denied}");
            assert!(keys.remove(denied.as_bytes()));
        }
        assert_eq!((check(&BTreeSet::new()), looks.get()), (Ok(()), 1));
    }
}
