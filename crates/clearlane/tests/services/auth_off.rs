//! Tests of users and roles while authentication is disabled: which data is reported, and which
//! changes increase the auth revision.

use clearlane_backend::Era;
use clearlane_engine::Bucket;
use clearlane_proto::Message;
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::authpb::{Permission, User, UserAddOptions};
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
    AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest, AuthenticateRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::support::{TestServer, block_on, with_server};

fn refused<T: std::fmt::Debug>(answer: Result<Response<T>, Status>, code: Code, words: &str) {
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, words));
}

async fn revision(client: &mut AuthClient<Channel>) -> u64 {
    let status = client.auth_status(AuthStatusRequest {}).await.unwrap().into_inner();
    assert!(!status.enabled);
    status.auth_revision
}

fn user(name: &str, password: &str) -> AuthUserAddRequest {
    AuthUserAddRequest { name: name.into(), password: password.into(), ..Default::default() }
}

fn grants(name: &str, perm: Option<Permission>) -> AuthRoleGrantPermissionRequest {
    AuthRoleGrantPermissionRequest { name: name.into(), perm }
}

fn range(kind: Type, key: &'static str, end: &'static str) -> Permission {
    Permission { perm_type: kind as i32, key: key.into(), range_end: end.into() }
}

#[test]
fn users_are_kept_and_their_passwords_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = AuthClient::new(server.channel().await);
        assert_eq!(revision(&mut client).await, 1);
        client.auth_disable(AuthDisableRequest {}).await.unwrap();
        let wrong = Code::FailedPrecondition;
        let enable = client.auth_enable(AuthEnableRequest {}).await;
        refused(enable, wrong, "etcdserver: root user does not exist");
        let asks = AuthenticateRequest { name: "root".into(), password: "x".into() };
        let words = "etcdserver: authentication is not enabled";
        refused(client.authenticate(asks).await, wrong, words);
        let get = |name: &str| AuthUserGetRequest { name: name.into() };
        let words = "etcdserver: user name not found";
        refused(client.user_get(get("alice")).await, wrong, words);
        let change = AuthUserChangePasswordRequest { name: "alice".into(), ..Default::default() };
        refused(client.user_change_password(change.clone()).await, wrong, words);
        let words = "etcdserver: user name is empty";
        refused(client.user_add(user("", "x")).await, Code::InvalidArgument, words);
        assert_eq!(revision(&mut client).await, 1, "failures do not count");

        client.user_add(user("alice", "secret")).await.unwrap();
        let words = "etcdserver: user name already exists";
        refused(client.user_add(user("alice", "x")).await, wrong, words);
        let options = Some(UserAddOptions { no_password: true });
        client.user_add(AuthUserAddRequest { options, ..user("np", "x") }).await.unwrap();
        assert_eq!(revision(&mut client).await, 3);
        let stored = |name: &str| {
            let store = server.node.store();
            let record =
                store.begin_read().get(Bucket::AuthUsers, name.as_bytes()).unwrap().unwrap();
            User::decode(record).unwrap().password
        };
        let first = stored("alice");
        assert!(first.starts_with(b"$2b$10$"), "{first:?}");
        assert_eq!(stored("np"), "");
        client.user_change_password(change).await.unwrap();
        assert_ne!(stored("alice"), first);
        let long = client.user_add(user("bob", &"p".repeat(73))).await;
        assert_eq!(long.unwrap_err().code(), Code::Unknown);
    });
    server.stop();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = AuthClient::new(server.channel().await);
        assert_eq!(revision(&mut client).await, 4);
        let list = client.user_list(AuthUserListRequest {}).await.unwrap().into_inner();
        assert_eq!(list.users, ["alice", "np"]);
        client.user_delete(AuthUserDeleteRequest { name: "np".into() }).await.unwrap();
        let list = client.user_list(AuthUserListRequest {}).await.unwrap().into_inner();
        assert_eq!(list.users, ["alice"]);
    });
    server.stop();
}

#[test]
fn permissions_are_kept_in_order() {
    with_server(async |server| {
        let mut client = AuthClient::new(server.channel().await);
        let (bad, wrong) = (Code::InvalidArgument, Code::FailedPrecondition);
        let role = |name: &str| AuthRoleAddRequest { name: name.into() };
        let get = |role: &str| AuthRoleGetRequest { role: role.into() };
        refused(client.role_add(role("")).await, bad, "etcdserver: role name is empty");
        let a = range(Type::Read, "a", "");
        let answer = client.role_grant_permission(grants("r", Some(a.clone()))).await;
        refused(answer, wrong, "etcdserver: role name not found");
        client.role_add(role("r")).await.unwrap();
        refused(client.role_add(role("r")).await, wrong, "etcdserver: role name already exists");
        let answer = client.role_grant_permission(grants("r", None)).await;
        refused(answer, bad, "etcdserver: permission not given");
        for (key, end) in [("", ""), ("", "\0"), ("", "b"), ("z", "a"), ("z", "z")] {
            let answer =
                client.role_grant_permission(grants("r", Some(range(Type::Read, key, end))));
            refused(answer.await, bad, "etcdserver: invalid auth management");
        }
        let write = range(Type::Write, "b", "");
        let stretch = range(Type::Readwrite, "a", "c");
        let open = range(Type::Read, "c", "\0");
        let both = range(Type::Readwrite, "a", "");
        for perm in [&write, &a, &stretch, &both, &both, &open] {
            client.role_grant_permission(grants("r", Some(perm.clone()))).await.unwrap();
        }
        assert_eq!(revision(&mut client).await, 8, "also what changes nothing counts");
        let kept = client.role_get(get("r")).await.unwrap().into_inner().perm;
        assert_eq!(kept, [both, stretch.clone(), write, open]);
        let revoke = |key: &'static str, end: &'static str| {
            let (role, key, range_end) = ("r".into(), key.into(), end.into());
            AuthRoleRevokePermissionRequest { role, key, range_end }
        };
        let answer = client.role_revoke_permission(revoke("a", "d")).await;
        refused(answer, wrong, "etcdserver: permission is not granted to the role");
        client.role_revoke_permission(revoke("a", "")).await.unwrap();
        let kept = client.role_get(get("r")).await.unwrap().into_inner().perm;
        assert_eq!((kept.len(), &kept[0]), (3, &stretch));
        client.role_add(role("root")).await.unwrap();
        let all = client.role_get(get("root")).await.unwrap().into_inner().perm;
        assert_eq!(all, [range(Type::Readwrite, "", "\0")]);
    });
}

#[test]
fn a_role_that_goes_is_taken_from_all() {
    with_server(async |server| {
        let mut client = AuthClient::new(server.channel().await);
        let wrong = Code::FailedPrecondition;
        client.user_add(user("alice", "")).await.unwrap();
        client.user_add(user("root", "pw")).await.unwrap();
        client.role_add(AuthRoleAddRequest { name: "r".into() }).await.unwrap();
        let grant = |user: &str, role: &str| AuthUserGrantRoleRequest {
            user: user.into(),
            role: role.into(),
        };
        let words = "etcdserver: role name not found";
        refused(client.user_grant_role(grant("alice", "none")).await, wrong, words);
        for role in ["root", "r", "r"] {
            client.user_grant_role(grant("alice", role)).await.unwrap();
        }
        assert_eq!(revision(&mut client).await, 6, "a role that is there does not count");
        let get = AuthUserGetRequest { name: "alice".into() };
        let alice = client.user_get(get.clone()).await.unwrap().into_inner();
        assert_eq!(alice.roles, ["r", "root"]);
        client.role_delete(AuthRoleDeleteRequest { role: "r".into() }).await.unwrap();
        assert_eq!(client.user_get(get).await.unwrap().into_inner().roles, ["root"]);
        let roles = client.role_list(AuthRoleListRequest {}).await.unwrap().into_inner().roles;
        assert!(roles.is_empty());
        let revoke =
            |role: &str| AuthUserRevokeRoleRequest { name: "alice".into(), role: role.into() };
        client.user_revoke_role(revoke("root")).await.unwrap();
        let words = "etcdserver: role is not granted to the user";
        refused(client.user_revoke_role(revoke("root")).await, wrong, words);
        let words = "etcdserver: root user does not have root role";
        refused(client.auth_enable(AuthEnableRequest {}).await, wrong, words);
        client.user_grant_role(grant("root", "root")).await.unwrap();
        client.auth_enable(AuthEnableRequest {}).await.unwrap();
        let words = "etcdserver: user name is empty";
        let list = client.role_list(AuthRoleListRequest {}).await;
        refused(list, Code::InvalidArgument, words);
    });
}
