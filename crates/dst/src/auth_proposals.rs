//! Changes of users and roles as etcd's messages, and back; the passwords and their hashes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use clearlane_auth::password;
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::authpb::{Permission, UserAddOptions};
use clearlane_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest, InternalAuthenticateRequest, InternalRaftRequest,
};

use crate::auth_model::{AuthOp, KeySpan};

pub const PASSWORDS: [&str; 2] = ["first", "second"];
/// The lowest that bcrypt allows.
pub const BCRYPT_COST: u32 = 4;

/// By hash. Hashed once for all runs.
static PASSWORD_OF: LazyLock<BTreeMap<String, &'static str>> = LazyLock::new(|| {
    let hash = |password: &&'static str| {
        let salt = [password.len() as u8; password::SALT_BYTES];
        let hash = password::hash(password.as_bytes(), BCRYPT_COST, salt, &mut || ());
        (hash.expect("it is short"), *password)
    };
    PASSWORDS.iter().map(hash).collect()
});

/// As it goes into the log.
pub fn hash_of(password: &str) -> String {
    let found = PASSWORD_OF.iter().find(|(_, of)| **of == password);
    found.map(|(hash, _)| hash.clone()).unwrap_or_default()
}

pub fn password_of(hash: &str) -> Option<&'static str> {
    PASSWORD_OF.get(hash).copied()
}

pub fn encode_auth_op(op: &AuthOp, out: &mut InternalRaftRequest) {
    match op.clone() {
        AuthOp::Enable => out.auth_enable = Some(AuthEnableRequest {}),
        AuthOp::Disable => out.auth_disable = Some(AuthDisableRequest {}),
        AuthOp::AddUser { name, hash } => {
            out.auth_user_add = Some(AuthUserAddRequest {
                name,
                options: Some(UserAddOptions { no_password: hash.is_none() }),
                hashed_password: hash.unwrap_or_default(),
                ..AuthUserAddRequest::default()
            });
        }
        AuthOp::DeleteUser(name) => out.auth_user_delete = Some(AuthUserDeleteRequest { name }),
        AuthOp::ChangePassword { name, hash: hashed_password } => {
            let password = String::new();
            out.auth_user_change_password =
                Some(AuthUserChangePasswordRequest { name, password, hashed_password });
        }
        AuthOp::GrantRole { user, role } => {
            out.auth_user_grant_role = Some(AuthUserGrantRoleRequest { user, role });
        }
        AuthOp::RevokeRole { user: name, role } => {
            out.auth_user_revoke_role = Some(AuthUserRevokeRoleRequest { name, role });
        }
        AuthOp::Authenticate { name, letters: simple_token } => {
            let password = String::new();
            out.authenticate = Some(InternalAuthenticateRequest { name, password, simple_token });
        }
        op => encode_role_op(op, out),
    }
}

fn encode_role_op(op: AuthOp, out: &mut InternalRaftRequest) {
    match op {
        AuthOp::AddRole(name) => out.auth_role_add = Some(AuthRoleAddRequest { name }),
        AuthOp::DeleteRole(role) => out.auth_role_delete = Some(AuthRoleDeleteRequest { role }),
        AuthOp::Grant { role: name, span, may_read, may_write } => {
            let perm_type = match (may_read, may_write) {
                (true, true) => Type::Readwrite,
                (true, false) => Type::Read,
                (false, _) => Type::Write,
            };
            let (key, range_end) = (span.key.into(), span.range_end.into());
            let perm = Some(Permission { perm_type: perm_type.into(), key, range_end });
            out.auth_role_grant_permission = Some(AuthRoleGrantPermissionRequest { name, perm });
        }
        AuthOp::Revoke { role, span } => {
            let (key, range_end) = (span.key.into(), span.range_end.into());
            out.auth_role_revoke_permission =
                Some(AuthRoleRevokePermissionRequest { role, key, range_end });
        }
        _ => {}
    }
}

/// `None` for an entry that is about something else.
pub fn decode_auth_op(message: &InternalRaftRequest) -> Option<AuthOp> {
    if message.auth_enable.is_some() {
        return Some(AuthOp::Enable);
    }
    if message.auth_disable.is_some() {
        return Some(AuthOp::Disable);
    }
    if let Some(request) = message.authenticate.clone() {
        let InternalAuthenticateRequest { name, simple_token: letters, .. } = request;
        return Some(AuthOp::Authenticate { name, letters });
    }
    decode_user_op(message).or_else(|| decode_role_op(message))
}

fn decode_user_op(message: &InternalRaftRequest) -> Option<AuthOp> {
    if let Some(request) = message.auth_user_add.clone() {
        let has_password = !request.options.unwrap_or_default().no_password;
        let hash = has_password.then_some(request.hashed_password);
        return Some(AuthOp::AddUser { name: request.name, hash });
    }
    if let Some(request) = message.auth_user_delete.clone() {
        return Some(AuthOp::DeleteUser(request.name));
    }
    if let Some(request) = message.auth_user_change_password.clone() {
        let (name, hash) = (request.name, request.hashed_password);
        return Some(AuthOp::ChangePassword { name, hash });
    }
    if let Some(request) = message.auth_user_grant_role.clone() {
        return Some(AuthOp::GrantRole { user: request.user, role: request.role });
    }
    let request = message.auth_user_revoke_role.clone()?;
    Some(AuthOp::RevokeRole { user: request.name, role: request.role })
}

fn decode_role_op(message: &InternalRaftRequest) -> Option<AuthOp> {
    if let Some(request) = message.auth_role_add.clone() {
        return Some(AuthOp::AddRole(request.name));
    }
    if let Some(request) = message.auth_role_delete.clone() {
        return Some(AuthOp::DeleteRole(request.role));
    }
    if let Some(request) = &message.auth_role_grant_permission {
        let granted = request.perm.as_ref()?;
        let (may_read, may_write) = may_do(granted)?;
        let span = KeySpan::new(&granted.key, &granted.range_end);
        return Some(AuthOp::Grant { role: request.name.clone(), span, may_read, may_write });
    }
    let request = message.auth_role_revoke_permission.clone()?;
    let span = KeySpan::new(&request.key, &request.range_end);
    Some(AuthOp::Revoke { role: request.role, span })
}

/// Whether to read and to write.
pub fn may_do(granted: &Permission) -> Option<(bool, bool)> {
    Some(match Type::try_from(granted.perm_type).ok()? {
        Type::Read => (true, false),
        Type::Write => (false, true),
        Type::Readwrite => (true, true),
    })
}
