//! Users and roles while authentication is disabled.

use clearlane_compat_etcd_client::{Cluster, assert_refused};
use etcd_client::{
    Client, Permission, PermissionType, RoleRevokePermissionOptions, UserAddOptions,
};
use tonic::Code;

const NO_USER: &str = "etcdserver: user name not found";
const NO_ROLE: &str = "etcdserver: role name not found";

async fn one() -> (Cluster, Client) {
    let cluster = Cluster::one().await;
    let client = cluster.client().await;
    (cluster, client)
}

#[tokio::test]
async fn roles_come_and_go() {
    let (_cluster, mut client) = one().await;
    assert!(client.role_list().await.unwrap().roles().is_empty());
    let added = client.role_add("reader").await.unwrap();
    assert_eq!(added.header().unwrap().revision(), 1);
    client.auth_client().role_add("writer").await.unwrap();
    let words = "etcdserver: role name already exists";
    assert_refused(client.role_add("reader").await, Code::FailedPrecondition, words);
    let words = "etcdserver: role name is empty";
    assert_refused(client.role_add("").await, Code::InvalidArgument, words);
    assert_eq!(client.role_list().await.unwrap().roles(), ["reader", "writer"]);
    assert!(client.role_get("reader").await.unwrap().permissions().is_empty());
    client.role_delete("reader").await.unwrap();
    assert_refused(client.role_delete("reader").await, Code::FailedPrecondition, NO_ROLE);
    assert_refused(client.role_get("reader").await, Code::FailedPrecondition, NO_ROLE);
    assert_eq!(client.role_list().await.unwrap().roles(), ["writer"]);
}

#[tokio::test]
async fn permissions_of_every_form() {
    let (_cluster, mut client) = one().await;
    client.role_add("role").await.unwrap();
    let granted = [
        Permission::read("one"),
        Permission::write("two"),
        Permission::read_write("three"),
        Permission::read("a").with_range_end("c"),
        Permission::write("p").with_prefix(),
        Permission::read_write("x").with_from_key(),
        Permission::new(PermissionType::Read, "").with_all_keys(),
    ];
    for permission in &granted {
        client.role_grant_permission("role", permission.clone()).await.unwrap();
    }
    let found = client.role_get("role").await.unwrap().permissions();
    assert_eq!(found.len(), granted.len());
    for permission in &granted {
        assert!(found.contains(permission), "{permission:?} is not in {found:?}");
    }
    let prefix = found.iter().find(|permission| permission.is_prefix()).unwrap();
    assert_eq!((prefix.key_str().unwrap(), prefix.range_end_str().unwrap()), ("p", "q"));
    assert_eq!(prefix.get_type(), i32::from(PermissionType::Write));
    assert_eq!(found.iter().filter(|permission| permission.is_from_key()).count(), 2);

    let options = RoleRevokePermissionOptions::new;
    for (key, how) in [
        ("one", None),
        ("two", Some(options())),
        ("a", Some(options().with_range_end("c"))),
        ("p", Some(options().with_prefix())),
        ("x", Some(options().with_from_key())),
        ("", Some(options().with_all_keys())),
    ] {
        client.role_revoke_permission("role", key, how).await.unwrap();
    }
    let rest = client.role_get("role").await.unwrap().permissions();
    assert_eq!(rest.iter().map(|rest| rest.key_str().unwrap()).collect::<Vec<_>>(), ["three"]);
    let again = client.role_revoke_permission("role", "one", None).await;
    let words = "etcdserver: permission is not granted to the role";
    assert_refused(again, Code::FailedPrecondition, words);
    let unknown = client.role_grant_permission("other", Permission::read("a")).await;
    assert_refused(unknown, Code::FailedPrecondition, NO_ROLE);
    // A second grant for the same range of keys replaces the first one.
    client.role_grant_permission("role", Permission::read("three")).await.unwrap();
    let found = client.role_get("role").await.unwrap().permissions();
    assert_eq!((found.len(), found[0].get_type()), (1, i32::from(PermissionType::Read)));
}

#[tokio::test]
async fn users_come_and_go() {
    let (_cluster, mut client) = one().await;
    client.user_add("ann", "secret", None).await.unwrap();
    let no_password = UserAddOptions::new().with_no_pwd();
    client.auth_client().user_add("ben", "", Some(no_password)).await.unwrap();
    let words = "etcdserver: user name already exists";
    assert_refused(client.user_add("ann", "x", None).await, Code::FailedPrecondition, words);
    let words = "etcdserver: user name is empty";
    assert_refused(client.user_add("", "x", None).await, Code::InvalidArgument, words);
    assert_eq!(client.user_list().await.unwrap().users(), ["ann", "ben"]);
    client.user_change_password("ann", "other").await.unwrap();
    let unknown = client.user_change_password("eve", "other").await;
    assert_refused(unknown, Code::FailedPrecondition, NO_USER);
    client.user_delete("ben").await.unwrap();
    assert_refused(client.user_delete("ben").await, Code::FailedPrecondition, NO_USER);
    assert_refused(client.user_get("ben").await, Code::FailedPrecondition, NO_USER);
    assert_eq!(client.user_list().await.unwrap().users(), ["ann"]);
}

#[tokio::test]
async fn users_have_roles() {
    let (_cluster, mut client) = one().await;
    client.user_add("ann", "secret", None).await.unwrap();
    for role in ["writer", "reader"] {
        client.role_add(role).await.unwrap();
        client.user_grant_role("ann", role).await.unwrap();
    }
    let mut user = client.user_get("ann").await.unwrap();
    assert_eq!(user.roles(), ["reader", "writer"]);
    assert!(user.take_header().is_some());
    let refused = client.user_grant_role("ann", "other").await;
    assert_refused(refused, Code::FailedPrecondition, NO_ROLE);
    let refused = client.user_grant_role("eve", "reader").await;
    assert_refused(refused, Code::FailedPrecondition, NO_USER);
    client.user_revoke_role("ann", "reader").await.unwrap();
    let refused = client.user_revoke_role("ann", "reader").await;
    let words = "etcdserver: role is not granted to the user";
    assert_refused(refused, Code::FailedPrecondition, words);
    // Deleting a role removes it from all users.
    client.role_delete("writer").await.unwrap();
    assert!(client.user_get("ann").await.unwrap().roles().is_empty());
}

#[tokio::test]
async fn nobody_logs_in_while_it_is_off() {
    let (_cluster, mut client) = one().await;
    client.user_add("ann", "secret", None).await.unwrap();
    let refused = client.auth_client().authenticate("ann".into(), "secret".into()).await;
    let words = "etcdserver: authentication is not enabled";
    assert_refused(refused, Code::FailedPrecondition, words);
    // Disabling authentication again changes nothing.
    client.auth_disable().await.unwrap();
}
