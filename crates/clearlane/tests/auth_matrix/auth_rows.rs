//! Rows of the matrix with requests to the Auth service.

use clearlane_proto::authpb::Permission;
use clearlane_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
    AuthRoleListResponse, AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthStatusResponse,
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserListResponse,
    AuthUserRevokeRoleRequest, AuthenticateRequest,
};

use crate::row::Row;
use crate::server::PASSWORD;

pub(crate) fn rows() -> Vec<Row> {
    [status_rows(), user_rows(), user_role_rows(), role_rows(), permission_rows(), switch_rows()]
        .into_iter()
        .flatten()
        .collect()
}

fn add_user(name: &str) -> AuthUserAddRequest {
    let password = PASSWORD.to_owned();
    AuthUserAddRequest { name: name.to_owned(), password, ..Default::default() }
}

fn delete_user(name: &str) -> AuthUserDeleteRequest {
    AuthUserDeleteRequest { name: name.to_owned() }
}

fn get_user(name: &str) -> AuthUserGetRequest {
    AuthUserGetRequest { name: name.to_owned() }
}

fn change_password(name: &str) -> AuthUserChangePasswordRequest {
    let (name, password) = (name.to_owned(), PASSWORD.to_owned());
    AuthUserChangePasswordRequest { name, password, ..Default::default() }
}

fn add_role(name: &str) -> AuthRoleAddRequest {
    AuthRoleAddRequest { name: name.to_owned() }
}

fn delete_role(role: &str) -> AuthRoleDeleteRequest {
    AuthRoleDeleteRequest { role: role.to_owned() }
}

fn get_role(role: &str) -> AuthRoleGetRequest {
    AuthRoleGetRequest { role: role.to_owned() }
}

fn grant_role(user: &str, role: &str) -> AuthUserGrantRoleRequest {
    AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() }
}

fn revoke_role(name: &str, role: &str) -> AuthUserRevokeRoleRequest {
    AuthUserRevokeRoleRequest { name: name.to_owned(), role: role.to_owned() }
}

fn status_rows() -> Vec<Row> {
    let is_on = |reply: AuthStatusResponse| reply.enabled.to_string();
    let log_in = |user: &str, password: &str| AuthenticateRequest {
        name: user.to_owned(),
        password: password.to_owned(),
    };
    vec![
        Row::new("Auth/AuthStatus", "", AuthStatusRequest {}).fact(is_on),
        Row::new("Auth/Authenticate", "spare", log_in("spare", PASSWORD)),
        Row::new("Auth/Authenticate", "spare, wrong password", log_in("spare", "x")),
        Row::new("Auth/Authenticate", "unknown user", log_in("nobody", PASSWORD)),
    ]
}

fn user_rows() -> Vec<Row> {
    let users = |reply: AuthUserListResponse| reply.users.len().to_string();
    let roles = |reply: AuthUserGetResponse| reply.roles.join(",");
    let gone = || delete_user("new");
    let long = AuthUserAddRequest { password: "p".repeat(73), ..add_user("new") };
    vec![
        Row::new("Auth/UserList", "", AuthUserListRequest {}).fact(users),
        Row::by_user("Auth/UserGet", "self", get_user).fact(roles),
        Row::new("Auth/UserGet", "spare", get_user("spare")).fact(roles),
        Row::new("Auth/UserGet", "unknown user", get_user("nobody")).fact(roles),
        Row::new("Auth/UserAdd", "new", add_user("new")).after("Auth/UserDelete", gone()),
        Row::new("Auth/UserAdd", "spare", add_user("spare")),
        Row::new("Auth/UserAdd", "no name", add_user("")),
        Row::new("Auth/UserAdd", "password too long", long).after("Auth/UserDelete", gone()),
        Row::new("Auth/UserDelete", "new", gone())
            .before("Auth/UserAdd", add_user("new"))
            .after("Auth/UserDelete", gone()),
        Row::new("Auth/UserDelete", "unknown user", delete_user("nobody")),
        Row::new("Auth/UserDelete", "root", delete_user("root")),
        Row::by_user("Auth/UserChangePassword", "self", change_password).ends_tokens(),
        Row::new("Auth/UserChangePassword", "spare", change_password("spare")).ends_tokens(),
        Row::new("Auth/UserChangePassword", "unknown user", change_password("nobody")),
    ]
}

fn user_role_rows() -> Vec<Row> {
    vec![
        Row::new("Auth/UserGrantRole", "spare, all", grant_role("spare", "all"))
            .after("Auth/UserRevokeRole", revoke_role("spare", "all")),
        Row::new("Auth/UserGrantRole", "spare, spare (again)", grant_role("spare", "spare")),
        Row::new("Auth/UserGrantRole", "unknown user", grant_role("nobody", "all")),
        Row::new("Auth/UserGrantRole", "unknown role", grant_role("spare", "nothing")),
        Row::new("Auth/UserRevokeRole", "spare, all", revoke_role("spare", "all"))
            .before("Auth/UserGrantRole", grant_role("spare", "all"))
            .after("Auth/UserRevokeRole", revoke_role("spare", "all")),
        Row::new("Auth/UserRevokeRole", "spare, not granted", revoke_role("spare", "ro")),
        Row::new("Auth/UserRevokeRole", "unknown user", revoke_role("nobody", "all")),
        Row::new("Auth/UserRevokeRole", "root, root", revoke_role("root", "root")),
    ]
}

fn role_rows() -> Vec<Row> {
    let roles = |reply: AuthRoleListResponse| reply.roles.len().to_string();
    let permissions = |reply: AuthRoleGetResponse| reply.perm.len().to_string();
    // Requests the role of the user who sends the request. It has the same name as the user, except
    // for two users: `admin` has the role root, and `none` has no role, so its request names a role
    // that does not exist.
    let own = |user: &str| get_role(if user == "admin" { "root" } else { user });
    vec![
        Row::new("Auth/RoleList", "", AuthRoleListRequest {}).fact(roles),
        Row::by_user("Auth/RoleGet", "own", own).fact(permissions),
        Row::new("Auth/RoleGet", "spare", get_role("spare")).fact(permissions),
        Row::new("Auth/RoleGet", "root", get_role("root")).fact(permissions),
        Row::new("Auth/RoleGet", "unknown role", get_role("nothing")).fact(permissions),
        Row::new("Auth/RoleAdd", "new", add_role("new"))
            .after("Auth/RoleDelete", delete_role("new")),
        Row::new("Auth/RoleAdd", "spare", add_role("spare")),
        Row::new("Auth/RoleAdd", "no name", add_role("")),
        Row::new("Auth/RoleDelete", "new", delete_role("new"))
            .before("Auth/RoleAdd", add_role("new"))
            .after("Auth/RoleDelete", delete_role("new")),
        Row::new("Auth/RoleDelete", "unknown role", delete_role("nothing")),
        Row::new("Auth/RoleDelete", "root", delete_role("root")),
    ]
}

fn permission_rows() -> Vec<Row> {
    let permission = |key: &'static str, range_end: &'static str| {
        Some(Permission { perm_type: 0, key: key.into(), range_end: range_end.into() })
    };
    let grant = |name: &str, perm| AuthRoleGrantPermissionRequest { name: name.to_owned(), perm };
    let revoke = |role: &str, key: &'static str| AuthRoleRevokePermissionRequest {
        role: role.to_owned(),
        key: key.into(),
        ..Default::default()
    };
    vec![
        Row::new("Auth/RoleGrantPermission", "spare, x", grant("spare", permission("x", "")))
            .after("Auth/RoleRevokePermission", revoke("spare", "x")),
        Row::new("Auth/RoleGrantPermission", "unknown role", grant("no", permission("x", ""))),
        Row::new("Auth/RoleGrantPermission", "no permission", grant("spare", None)),
        Row::new("Auth/RoleGrantPermission", "y .. x", grant("spare", permission("y", "x"))),
        Row::new("Auth/RoleGrantPermission", "no key", grant("spare", permission("", ""))),
        Row::new("Auth/RoleRevokePermission", "spare, x", revoke("spare", "x"))
            .before("Auth/RoleGrantPermission", grant("spare", permission("x", "")))
            .after("Auth/RoleRevokePermission", revoke("spare", "x")),
        Row::new("Auth/RoleRevokePermission", "not granted", revoke("spare", "x")),
        Row::new("Auth/RoleRevokePermission", "unknown role", revoke("no", "x")),
    ]
}

/// These rows are the last ones, because they may invalidate all tokens.
fn switch_rows() -> Vec<Row> {
    vec![
        Row::new("Auth/AuthEnable", "again", AuthEnableRequest {}),
        Row::new("Auth/AuthDisable", "", AuthDisableRequest {})
            .after("Auth/AuthEnable", AuthEnableRequest {})
            .ends_tokens(),
    ]
}
