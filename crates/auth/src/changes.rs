//! How a log entry changes users and roles, in the store's buckets and in memory.
//!
//! ```text
//!   authUsers   alice         User { name, bcrypt of the password, roles in order, options }
//!   authRoles   reader        Role { name, permissions in the order of their keys }
//!   auth        authRevision  8 bytes, big endian; a missing record means revision 1
//!               authEnabled   1 byte: 0 or 1
//! ```
//!
//! * Each change increments the revision. A rejected change has no effect, and the revision stays
//!   the same. The revision also stays the same if a role is granted to a user that already has it,
//!   if a request enables authentication, or if a request disables authentication that is already
//!   disabled. But the revision grows if a permission is granted to a role that already has it. It
//!   also grows if a request changes the password of a user that was created without one, although
//!   that user gets no password.
//! * All roles of a user exist, except that `root` need not exist.
//! * While authentication is enabled, there is a user `root` with the role `root`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clearlane_engine::Bucket;
use clearlane_mvcc::WriteTxn;
use clearlane_proto::authpb::{Permission, Role, User};
use clearlane_proto::etcdserverpb::{
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, InternalRaftRequest,
};
use prost::Message;

use crate::error::{AuthRejection, Error};
use crate::key_ranges::OPEN_END;
use crate::state::{AuthState, ENABLED_KEY, REVISION_KEY, ROOT, UserEntry};

/// The reason why a change is not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Rejected(#[from] AuthRejection),
    #[error(transparent)]
    Fatal(#[from] Error),
}

impl From<clearlane_mvcc::Error> for ChangeError {
    fn from(error: clearlane_mvcc::Error) -> ChangeError {
        ChangeError::Fatal(error.into())
    }
}

type ChangeResult<T> = Result<T, ChangeError>;

/// The effect of a change on the simple tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenChange {
    None,
    /// The user was deleted, or a request changed its password: drop the user's tokens.
    DropUser(String),
    DropAll,
}

/// Returns true if a request changes users or roles, or enables or disables authentication.
pub fn is_change(request: &InternalRaftRequest) -> bool {
    request.auth_enable.is_some()
        || request.auth_disable.is_some()
        || request.auth_user_add.is_some()
        || request.auth_user_delete.is_some()
        || request.auth_user_change_password.is_some()
        || request.auth_user_grant_role.is_some()
        || request.auth_user_revoke_role.is_some()
        || request.auth_role_add.is_some()
        || request.auth_role_delete.is_some()
        || request.auth_role_grant_permission.is_some()
        || request.auth_role_revoke_permission.is_some()
}

/// Returns true if a request only reads users or roles, or whether authentication is enabled. Only
/// etcd writes such entries to the log.
pub fn is_read(request: &InternalRaftRequest) -> bool {
    request.auth_status.is_some()
        || request.auth_user_get.is_some()
        || request.auth_user_list.is_some()
        || request.auth_role_get.is_some()
        || request.auth_role_list.is_some()
}

/// Applies a request for which [`is_change`] returns true. Returns the new state, and the resulting
/// change of the simple tokens.
pub(crate) fn apply<A>(
    state: &AuthState,
    txn: &mut (dyn WriteTxn<A> + '_),
    request: &InternalRaftRequest,
) -> ChangeResult<(AuthState, TokenChange)> {
    let mut change = Change { state: state.clone(), tokens: TokenChange::None, txn };
    if request.auth_enable.is_some() {
        change.enable()?;
    } else if request.auth_disable.is_some() {
        change.disable()?;
    } else if let Some(request) = &request.auth_user_add {
        change.add_user(request)?;
    } else if let Some(request) = &request.auth_user_delete {
        change.delete_user(&request.name)?;
    } else if let Some(request) = &request.auth_user_change_password {
        change.change_password(request)?;
    } else if let Some(request) = &request.auth_user_grant_role {
        change.grant_role(&request.user, &request.role)?;
    } else if let Some(request) = &request.auth_user_revoke_role {
        change.revoke_role(&request.name, &request.role)?;
    } else if let Some(request) = &request.auth_role_add {
        change.add_role(&request.name)?;
    } else if let Some(request) = &request.auth_role_delete {
        change.delete_role(&request.role)?;
    } else if let Some(request) = &request.auth_role_grant_permission {
        change.grant_permission(request)?;
    } else if let Some(request) = &request.auth_role_revoke_permission {
        change.revoke_permission(request)?;
    }
    Ok((change.state, change.tokens))
}

struct Change<'t, 's, A> {
    state: AuthState,
    tokens: TokenChange,
    txn: &'t mut (dyn WriteTxn<A> + 's),
}

impl<A> Change<'_, '_, A> {
    fn increment_revision(&mut self) -> ChangeResult<()> {
        self.state.revision += 1;
        let bytes = Bytes::copy_from_slice(&self.state.revision.to_be_bytes());
        Ok(self.txn.set(Bucket::Auth, REVISION_KEY, bytes)?)
    }

    fn set_user(&mut self, user: User) -> ChangeResult<()> {
        self.txn.set(Bucket::AuthUsers, &user.name, user.encode_to_vec().into())?;
        let name = String::from_utf8_lossy(&user.name).into_owned();
        self.state.users.insert(name, Arc::new(UserEntry::new(user)));
        Ok(())
    }

    fn set_role(&mut self, role: Role) -> ChangeResult<()> {
        self.txn.set(Bucket::AuthRoles, &role.name, role.encode_to_vec().into())?;
        let name = String::from_utf8_lossy(&role.name).into_owned();
        self.state.forget_ranges_of_role(&name);
        self.state.roles.insert(name, Arc::new(role));
        Ok(())
    }

    fn set_enabled(&mut self, enabled: bool) -> ChangeResult<()> {
        self.state.enabled = enabled;
        let flag = Bytes::copy_from_slice(&[u8::from(enabled)]);
        Ok(self.txn.set(Bucket::Auth, ENABLED_KEY, flag)?)
    }

    /// Enables authentication. As in etcd, the revision stays the same.
    fn enable(&mut self) -> ChangeResult<()> {
        if self.state.enabled {
            return Ok(());
        }
        self.state.check_can_enable()?;
        self.set_enabled(true)
    }

    fn disable(&mut self) -> ChangeResult<()> {
        if !self.state.enabled {
            return Ok(());
        }
        self.set_enabled(false)?;
        self.tokens = TokenChange::DropAll;
        self.increment_revision()
    }

    fn add_user(&mut self, request: &AuthUserAddRequest) -> ChangeResult<()> {
        if request.name.is_empty() {
            return Err(AuthRejection::UserEmpty.into());
        }
        if self.state.users.contains_key(&request.name) {
            return Err(AuthRejection::UserExists.into());
        }
        let options = request.options.unwrap_or_default();
        let password =
            if options.no_password { Bytes::new() } else { decode_hash(&request.hashed_password)? };
        let name = Bytes::copy_from_slice(request.name.as_bytes());
        self.set_user(User { name, password, options: Some(options), roles: Vec::new() })?;
        self.increment_revision()
    }

    fn delete_user(&mut self, name: &str) -> ChangeResult<()> {
        if self.state.enabled && name == ROOT {
            return Err(AuthRejection::InvalidManagement.into());
        }
        self.state.find_user(name)?;
        self.txn.unset(Bucket::AuthUsers, name.as_bytes())?;
        self.state.users.remove(name);
        self.tokens = TokenChange::DropUser(name.to_owned());
        self.increment_revision()
    }

    fn change_password(&mut self, request: &AuthUserChangePasswordRequest) -> ChangeResult<()> {
        let entry = self.state.find_user(&request.name)?;
        let mut user = entry.user.clone();
        // A user that was created without a password does not get one later.
        if !entry.has_no_password() {
            user.password = decode_hash(&request.hashed_password)?;
        }
        self.set_user(user)?;
        self.tokens = TokenChange::DropUser(request.name.clone());
        self.increment_revision()
    }

    fn grant_role(&mut self, name: &str, role: &str) -> ChangeResult<()> {
        let mut user = self.state.find_user(name)?.user.clone();
        if role != ROOT {
            self.state.find_role(role)?;
        }
        let Err(place) = user.roles.binary_search_by(|has| has.as_str().cmp(role)) else {
            return Ok(());
        };
        user.roles.insert(place, role.to_owned());
        self.set_user(user)?;
        self.increment_revision()
    }

    fn revoke_role(&mut self, name: &str, role: &str) -> ChangeResult<()> {
        if self.state.enabled && name == ROOT && role == ROOT {
            return Err(AuthRejection::InvalidManagement.into());
        }
        let mut user = self.state.find_user(name)?.user.clone();
        let place = user.roles.iter().position(|has| has == role);
        user.roles.remove(place.ok_or(AuthRejection::RoleNotGranted)?);
        self.set_user(user)?;
        self.increment_revision()
    }

    fn add_role(&mut self, name: &str) -> ChangeResult<()> {
        if name.is_empty() {
            return Err(AuthRejection::RoleEmpty.into());
        }
        if self.state.roles.contains_key(name) {
            return Err(AuthRejection::RoleExists.into());
        }
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.set_role(Role { name, key_permission: Vec::new() })?;
        self.increment_revision()
    }

    fn delete_role(&mut self, name: &str) -> ChangeResult<()> {
        if self.state.enabled && name == ROOT {
            return Err(AuthRejection::InvalidManagement.into());
        }
        self.state.find_role(name)?;
        self.txn.unset(Bucket::AuthRoles, name.as_bytes())?;
        self.state.roles.remove(name);
        let entries = self.state.users.values();
        let holders: Vec<User> =
            entries.filter(|entry| entry.has_role(name)).map(|entry| entry.user.clone()).collect();
        for mut user in holders {
            user.roles.retain(|role| role != name);
            self.set_user(user)?;
        }
        self.increment_revision()
    }

    fn grant_permission(&mut self, request: &AuthRoleGrantPermissionRequest) -> ChangeResult<()> {
        let granted = request.perm.as_ref().ok_or(AuthRejection::PermissionNotGiven)?;
        if !is_valid_range(granted) {
            return Err(AuthRejection::InvalidManagement.into());
        }
        let mut role = self.state.find_role(&request.name)?.clone();
        let order = |of: &Permission| (of.key.clone(), of.range_end.clone());
        match role.key_permission.binary_search_by_key(&order(granted), order) {
            Ok(place) => role.key_permission[place].perm_type = granted.perm_type,
            Err(place) => role.key_permission.insert(place, granted.clone()),
        }
        self.set_role(role)?;
        self.increment_revision()
    }

    fn revoke_permission(&mut self, request: &AuthRoleRevokePermissionRequest) -> ChangeResult<()> {
        let mut role = self.state.find_role(&request.role)?.clone();
        let before = role.key_permission.len();
        role.key_permission
            .retain(|has| has.key != request.key || has.range_end != request.range_end);
        if role.key_permission.len() == before {
            return Err(AuthRejection::PermissionNotGranted.into());
        }
        self.set_role(role)?;
        self.increment_revision()
    }
}

/// Returns true for a single key, for a range that is not empty, and for a range without an end.
/// Returns false in all cases if the first key is empty.
fn is_valid_range(granted: &Permission) -> bool {
    let (key, end) = (&granted.key[..], &granted.range_end[..]);
    !key.is_empty() && (end.is_empty() || end == OPEN_END || key < end)
}

/// Decodes the password hash, which was computed before the request was proposed. As in etcd, fails
/// with `NoPasswordUser` if the text is not base64.
fn decode_hash(text: &str) -> Result<Bytes, AuthRejection> {
    STANDARD.decode(text).map(Bytes::from).map_err(|_| AuthRejection::NoPasswordUser)
}
