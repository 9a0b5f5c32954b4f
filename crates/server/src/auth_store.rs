//! Users, roles and permissions in etcd's buckets and format: etcd's `auth.AuthStore`.
//!
//! ```text
//!   authUsers   alice         User { name, bcrypt of the password, roles in order, options }
//!   authRoles   reader        Role { name, permissions in the order of their keys }
//!   auth        authRevision  8 bytes, big endian: 1, and one more with each change
//! ```
//!
//! Permissions are not checked yet, so authentication cannot be enabled.
//!
//! * A password is hashed before it is proposed; none gets into the log or the store.
//! * A refused change has changed nothing, the revision neither.
//! * A user has no role that does not exist, but for `root`, which need not.

use std::ops::ControlFlow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clearlane_engine::Bucket;
use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::authpb::{Permission, Role, User};
use clearlane_proto::etcdserverpb::{
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, InternalRaftRequest,
};
use prost::Message;

use crate::applied_position::AppliedPosition;
use crate::apply::{ApplyError, RecordSource};
use crate::error::{Error, Result, try_scan};

const REVISION_KEY: &[u8] = b"authRevision";
const ROOT: &str = "root";
/// As the end of a range: no end.
const OPEN_END: &[u8] = &[0];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AuthRejection {
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    #[error("etcdserver: user name already exists")]
    UserExists,
    #[error("etcdserver: user name not found")]
    UserNotFound,
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    #[error("etcdserver: role name already exists")]
    RoleExists,
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    #[error("etcdserver: invalid auth management")]
    InvalidRange,
    #[error("etcdserver: root user does not exist")]
    NoRootUser,
    #[error("etcdserver: root user does not have root role")]
    NoRootRole,
    #[error("etcdserver: authentication is not enabled")]
    NotEnabled,
}

/// Why a request is refused, or an error that stops the member.
type AuthResult<T> = std::result::Result<T, ApplyError>;

fn get_message<M: Message + Default>(
    state: &(impl RecordSource + ?Sized),
    bucket: Bucket,
    name: &str,
) -> Result<Option<M>> {
    let found = state.value(bucket, name.as_bytes())?;
    let decoded = found.map(M::decode).transpose();
    decoded.map_err(|error| Error::damaged(bucket.name(), format!("{name}: {error}")))
}

fn get_user(state: &(impl RecordSource + ?Sized), name: &str) -> AuthResult<User> {
    Ok(get_message(state, Bucket::AuthUsers, name)?.ok_or(AuthRejection::UserNotFound)?)
}

fn get_role(state: &(impl RecordSource + ?Sized), name: &str) -> AuthResult<Role> {
    Ok(get_message(state, Bucket::AuthRoles, name)?.ok_or(AuthRejection::RoleNotFound)?)
}

fn get_revision(state: &(impl RecordSource + ?Sized)) -> AuthResult<u64> {
    let Some(bytes) = state.value(Bucket::Auth, REVISION_KEY)? else { return Ok(1) };
    let number = <[u8; 8]>::try_from(&bytes[..]).map(u64::from_be_bytes);
    Ok(number.map_err(|_| Error::damaged("authRevision", "it has not 8 bytes"))?)
}

pub fn revision(state: &(dyn ReadTxn + '_)) -> AuthResult<u64> {
    get_revision(state)
}

pub fn user(state: &(dyn ReadTxn + '_), name: &str) -> AuthResult<User> {
    get_user(state, name)
}

/// `root` may do everything, whatever was granted to it.
pub fn permissions(state: &(dyn ReadTxn + '_), name: &str) -> AuthResult<Vec<Permission>> {
    let role = get_role(state, name)?;
    if name != ROOT {
        return Ok(role.key_permission);
    }
    let (perm_type, range_end) = (Type::Readwrite as i32, Bytes::from_static(OPEN_END));
    Ok(vec![Permission { perm_type, range_end, ..Permission::default() }])
}

pub fn names(state: &(dyn ReadTxn + '_), bucket: Bucket) -> AuthResult<Vec<String>> {
    let mut names = Vec::new();
    try_scan(state, bucket, |name, _| {
        names.push(String::from_utf8_lossy(name).into_owned());
        Ok(())
    })?;
    Ok(names)
}

pub fn check_can_enable(state: &(dyn ReadTxn + '_)) -> AuthResult<()> {
    let root: Option<User> = get_message(state, Bucket::AuthUsers, ROOT)?;
    let root = root.ok_or(AuthRejection::NoRootUser)?;
    let has_role = root.roles.iter().any(|role| role == ROOT);
    if has_role { Ok(()) } else { Err(AuthRejection::NoRootRole.into()) }
}

pub(crate) fn is_auth_request(request: &InternalRaftRequest) -> bool {
    request.auth_user_add.is_some()
        || request.auth_user_delete.is_some()
        || request.auth_user_change_password.is_some()
        || request.auth_user_grant_role.is_some()
        || request.auth_user_revoke_role.is_some()
        || request.auth_role_add.is_some()
        || request.auth_role_delete.is_some()
        || request.auth_role_grant_permission.is_some()
        || request.auth_role_revoke_permission.is_some()
}

pub(crate) fn apply(
    txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    request: &InternalRaftRequest,
) -> AuthResult<()> {
    let mut change = AuthChange(txn);
    if let Some(request) = &request.auth_user_add {
        change.add_user(request)
    } else if let Some(request) = &request.auth_user_delete {
        change.delete_user(&request.name)
    } else if let Some(request) = &request.auth_user_change_password {
        change.change_password(request)
    } else if let Some(request) = &request.auth_user_grant_role {
        change.grant_role(&request.user, &request.role)
    } else if let Some(request) = &request.auth_user_revoke_role {
        change.revoke_role(&request.name, &request.role)
    } else if let Some(request) = &request.auth_role_add {
        change.add_role(&request.name)
    } else if let Some(request) = &request.auth_role_delete {
        change.delete_role(&request.role)
    } else if let Some(request) = &request.auth_role_grant_permission {
        change.grant_permission(request)
    } else if let Some(request) = &request.auth_role_revoke_permission {
        change.revoke_permission(request)
    } else {
        unreachable!("it was asked before whether it is one of these")
    }
}

struct AuthChange<'t, 's>(&'t mut (dyn WriteTxn<AppliedPosition> + 's));

impl AuthChange<'_, '_> {
    fn increment_revision(&mut self) -> AuthResult<()> {
        let revision = get_revision(&*self.0)? + 1;
        let bytes = Bytes::copy_from_slice(&revision.to_be_bytes());
        Ok(self.0.set(Bucket::Auth, REVISION_KEY, bytes)?)
    }

    fn set_user(&mut self, user: &User) -> AuthResult<()> {
        self.0.set(Bucket::AuthUsers, &user.name, user.encode_to_vec().into())?;
        self.increment_revision()
    }

    fn set_role(&mut self, role: &Role) -> AuthResult<()> {
        self.0.set(Bucket::AuthRoles, &role.name, role.encode_to_vec().into())?;
        self.increment_revision()
    }

    fn add_user(&mut self, request: &AuthUserAddRequest) -> AuthResult<()> {
        if request.name.is_empty() {
            return Err(AuthRejection::UserEmpty.into());
        }
        if get_message::<User>(&*self.0, Bucket::AuthUsers, &request.name)?.is_some() {
            return Err(AuthRejection::UserExists.into());
        }
        let options = request.options.unwrap_or_default();
        let password =
            if options.no_password { Bytes::new() } else { decode_hash(&request.hashed_password)? };
        let name = Bytes::copy_from_slice(request.name.as_bytes());
        self.set_user(&User { name, password, options: Some(options), roles: Vec::new() })
    }

    fn delete_user(&mut self, name: &str) -> AuthResult<()> {
        get_user(&*self.0, name)?;
        self.0.unset(Bucket::AuthUsers, name.as_bytes())?;
        self.increment_revision()
    }

    fn change_password(&mut self, request: &AuthUserChangePasswordRequest) -> AuthResult<()> {
        let mut user = get_user(&*self.0, &request.name)?;
        // A user without a password is not given one.
        if !user.options.is_some_and(|options| options.no_password) {
            user.password = decode_hash(&request.hashed_password)?;
        }
        self.set_user(&user)
    }

    fn grant_role(&mut self, name: &str, role: &str) -> AuthResult<()> {
        let mut user = get_user(&*self.0, name)?;
        if role != ROOT {
            get_role(&*self.0, role)?;
        }
        let Err(place) = user.roles.binary_search_by(|has| has.as_str().cmp(role)) else {
            return Ok(());
        };
        user.roles.insert(place, role.to_owned());
        self.set_user(&user)
    }

    fn revoke_role(&mut self, name: &str, role: &str) -> AuthResult<()> {
        let mut user = get_user(&*self.0, name)?;
        let place = user.roles.iter().position(|has| has == role);
        user.roles.remove(place.ok_or(AuthRejection::RoleNotGranted)?);
        self.set_user(&user)
    }

    fn add_role(&mut self, name: &str) -> AuthResult<()> {
        if name.is_empty() {
            return Err(AuthRejection::RoleEmpty.into());
        }
        if get_message::<Role>(&*self.0, Bucket::AuthRoles, name)?.is_some() {
            return Err(AuthRejection::RoleExists.into());
        }
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.set_role(&Role { name, key_permission: Vec::new() })
    }

    fn delete_role(&mut self, name: &str) -> AuthResult<()> {
        get_role(&*self.0, name)?;
        self.0.unset(Bucket::AuthRoles, name.as_bytes())?;
        let mut users = Vec::new();
        self.0.scan(Bucket::AuthUsers, &mut |_, user| {
            users.push(user.to_bytes());
            ControlFlow::Continue(())
        })?;
        for user in users {
            let mut user = User::decode(user)
                .map_err(|error| Error::damaged("authUsers", error.to_string()))?;
            if let Some(place) = user.roles.iter().position(|role| role == name) {
                user.roles.remove(place);
                self.0.set(Bucket::AuthUsers, &user.name, user.encode_to_vec().into())?;
            }
        }
        self.increment_revision()
    }

    fn grant_permission(&mut self, request: &AuthRoleGrantPermissionRequest) -> AuthResult<()> {
        let granted = request.perm.as_ref().ok_or(AuthRejection::PermissionNotGiven)?;
        if !is_valid_range(granted) {
            return Err(AuthRejection::InvalidRange.into());
        }
        let mut role = get_role(&*self.0, &request.name)?;
        let order = |of: &Permission| (of.key.clone(), of.range_end.clone());
        match role.key_permission.binary_search_by_key(&order(granted), order) {
            Ok(place) => role.key_permission[place].perm_type = granted.perm_type,
            Err(place) => role.key_permission.insert(place, granted.clone()),
        }
        self.set_role(&role)
    }

    fn revoke_permission(&mut self, request: &AuthRoleRevokePermissionRequest) -> AuthResult<()> {
        let mut role = get_role(&*self.0, &request.role)?;
        let before = role.key_permission.len();
        role.key_permission
            .retain(|has| has.key != request.key || has.range_end != request.range_end);
        if role.key_permission.len() == before {
            return Err(AuthRejection::PermissionNotGranted.into());
        }
        self.set_role(&role)
    }
}

/// A single key, a range that is not empty, or all from a key on.
fn is_valid_range(granted: &Permission) -> bool {
    let (key, end) = (&granted.key[..], &granted.range_end[..]);
    !key.is_empty() && (end.is_empty() || end == OPEN_END || key < end)
}

/// Decodes the hash that was made before the request was proposed.
fn decode_hash(text: &str) -> Result<Bytes> {
    let decoded = STANDARD.decode(text);
    decoded.map(Bytes::from).map_err(|error| Error::damaged("a hashed password", error.to_string()))
}
