//! Converts operations on users, roles and tokens to etcd's messages and back. Also contains the
//! passwords of all users, and the hash of each password.

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
/// The lowest cost that bcrypt allows.
pub const BCRYPT_COST: u32 = 4;

/// The passwords by hash. Each password is hashed once, for all runs.
static PASSWORD_OF: LazyLock<BTreeMap<String, &'static str>> = LazyLock::new(|| {
    let hash = |password: &&'static str| {
        let salt = [password.len() as u8; password::SALT_BYTES];
        let hash = password::hash(password.as_bytes(), BCRYPT_COST, salt, &mut || ());
        (hash.expect("it is short"), *password)
    };
    PASSWORDS.iter().map(hash).collect()
});

/// Returns the password's hash in the form that the log contains. The password must be in
/// [`PASSWORDS`]; otherwise the result is empty.
pub fn hash_of(password: &str) -> String {
    let found = PASSWORD_OF.iter().find(|(_, of)| **of == password);
    found.map(|(hash, _)| hash.clone()).unwrap_or_default()
}

pub fn password_of(hash: &str) -> Option<&'static str> {
    PASSWORD_OF.get(hash).copied()
}

/// Maps each operation to its field of an entry, in both directions.
macro_rules! auth_ops {
    ($($field:ident: $op:pat => $encoded:expr, $request:pat => $decoded:expr;)*) => {
        pub fn encode_auth_op(op: &AuthOp, out: &mut InternalRaftRequest) {
            match op.clone() {
                $($op => out.$field = Some($encoded),)*
            }
        }

        /// Returns the entry's operation on users, roles or tokens. Returns `None` if the entry has
        /// no such operation, or is a grant without a permission or with one of an unknown type.
        pub fn decode_auth_op(message: &InternalRaftRequest) -> Option<AuthOp> {
            $(if let Some($request) = message.$field.clone() {
                return Some($decoded);
            })*
            None
        }
    };
}

auth_ops! {
    auth_enable:
        AuthOp::Enable => AuthEnableRequest {},
        AuthEnableRequest {} => AuthOp::Enable;
    auth_disable:
        AuthOp::Disable => AuthDisableRequest {},
        AuthDisableRequest {} => AuthOp::Disable;
    authenticate:
        AuthOp::Authenticate { name, letters: simple_token } =>
            InternalAuthenticateRequest { name, password: String::new(), simple_token },
        of => AuthOp::Authenticate { name: of.name, letters: of.simple_token };
    auth_user_add:
        AuthOp::AddUser { name, hash } => AuthUserAddRequest {
            name,
            options: Some(UserAddOptions { no_password: hash.is_none() }),
            hashed_password: hash.unwrap_or_default(),
            ..AuthUserAddRequest::default()
        },
        of => {
            let has_password = !of.options.unwrap_or_default().no_password;
            AuthOp::AddUser { name: of.name, hash: has_password.then_some(of.hashed_password) }
        };
    auth_user_delete:
        AuthOp::DeleteUser(name) => AuthUserDeleteRequest { name },
        of => AuthOp::DeleteUser(of.name);
    auth_user_change_password:
        AuthOp::ChangePassword { name, hash: hashed_password } =>
            AuthUserChangePasswordRequest { name, password: String::new(), hashed_password },
        of => AuthOp::ChangePassword { name: of.name, hash: of.hashed_password };
    auth_user_grant_role:
        AuthOp::GrantRole { user, role } => AuthUserGrantRoleRequest { user, role },
        of => AuthOp::GrantRole { user: of.user, role: of.role };
    auth_user_revoke_role:
        AuthOp::RevokeRole { user: name, role } => AuthUserRevokeRoleRequest { name, role },
        of => AuthOp::RevokeRole { user: of.name, role: of.role };
    auth_role_add:
        AuthOp::AddRole(name) => AuthRoleAddRequest { name },
        of => AuthOp::AddRole(of.name);
    auth_role_delete:
        AuthOp::DeleteRole(role) => AuthRoleDeleteRequest { role },
        of => AuthOp::DeleteRole(of.role);
    auth_role_grant_permission:
        AuthOp::Grant { role: name, span, may_read, may_write } => {
            let perm_type = match (may_read, may_write) {
                (true, true) => Type::Readwrite,
                (true, false) => Type::Read,
                (false, _) => Type::Write,
            };
            let (key, range_end) = (span.key.into(), span.range_end.into());
            let perm = Some(Permission { perm_type: perm_type.into(), key, range_end });
            AuthRoleGrantPermissionRequest { name, perm }
        },
        of => {
            let granted = of.perm?;
            let (may_read, may_write) = may_do(&granted)?;
            let span = KeySpan::new(&granted.key, &granted.range_end);
            AuthOp::Grant { role: of.name, span, may_read, may_write }
        };
    auth_role_revoke_permission:
        AuthOp::Revoke { role, span } => AuthRoleRevokePermissionRequest {
            role,
            key: span.key.into(),
            range_end: span.range_end.into(),
        },
        of => AuthOp::Revoke { role: of.role, span: KeySpan::new(&of.key, &of.range_end) };
}

/// Returns whether the permission allows reading, and whether it allows writing. Returns `None` if
/// its type is unknown.
pub fn may_do(granted: &Permission) -> Option<(bool, bool)> {
    Some(match Type::try_from(granted.perm_type).ok()? {
        Type::Read => (true, false),
        Type::Write => (false, true),
        Type::Readwrite => (true, true),
    })
}
