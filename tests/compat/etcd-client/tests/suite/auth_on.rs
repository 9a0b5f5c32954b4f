//! Tests with authentication enabled.

use clearlane_compat_etcd_client::{Cluster, assert_refused};
use etcd_client::{
    AlarmAction, AlarmType, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions,
    Permission, Txn, TxnOp,
};
use tonic::Code;

const DENIED: &str = "etcdserver: permission denied";
const NO_NAME: &str = "etcdserver: user name is empty";
const WRONG: &str = "etcdserver: authentication failed, invalid user ID or password";

/// Starts a server with the user `root`, and the user `ann`, who may read everything below `r/`,
/// and may read and write below `rw/`.
async fn locked(flags: &[&str]) -> (Cluster, Client) {
    let cluster = Cluster::of(1, flags).await;
    let mut client = cluster.client().await;
    client.put("r/key", "1", None).await.unwrap();
    client.put("other", "1", None).await.unwrap();
    for user in ["root", "ann"] {
        client.user_add(user, "secret", None).await.unwrap();
        client.role_add(user).await.unwrap();
        client.user_grant_role(user, user).await.unwrap();
    }
    for permission in [Permission::read("r/"), Permission::read_write("rw/")] {
        client.role_grant_permission("ann", permission.with_prefix()).await.unwrap();
    }
    client.auth_enable().await.unwrap();
    let root = as_user(&cluster, "root").await;
    (cluster, root)
}

async fn as_user(cluster: &Cluster, name: &str) -> Client {
    cluster.client_with(ConnectOptions::new().with_user(name, "secret")).await
}

#[tokio::test]
async fn without_root_it_stays_off() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let words = "etcdserver: root user does not exist";
    assert_refused(client.auth_enable().await, Code::FailedPrecondition, words);
    client.user_add("root", "secret", None).await.unwrap();
    let words = "etcdserver: root user does not have root role";
    assert_refused(client.auth_enable().await, Code::FailedPrecondition, words);
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
    assert_refused(client.get("key", None).await, Code::InvalidArgument, NO_NAME);
}

#[tokio::test]
async fn who_may_come_in() {
    let (cluster, mut root) = locked(&[]).await;
    root.put("key", "1", None).await.unwrap();
    for (name, password) in [("root", "wrong"), ("eve", "secret")] {
        let options = ConnectOptions::new().with_user(name, password);
        let refused = Client::connect(cluster.client_urls(), Some(options)).await;
        assert_refused(refused.map(|_| ()), Code::InvalidArgument, WRONG);
    }
    let mut anonymous = cluster.client().await;
    assert_refused(anonymous.put("key", "1", None).await, Code::InvalidArgument, NO_NAME);
    assert_refused(anonymous.user_list().await, Code::InvalidArgument, NO_NAME);
    let answer = anonymous.auth_client().authenticate("ann".into(), "secret".into()).await.unwrap();
    assert!(!answer.token().is_empty());
}

#[tokio::test]
async fn who_may_touch_what() {
    let (cluster, _root) = locked(&[]).await;
    let mut ann = as_user(&cluster, "ann").await;
    assert_eq!(ann.get("r/key", None).await.unwrap().count(), 1);
    ann.put("rw/key", "1", None).await.unwrap();
    assert_eq!(ann.get("rw/", Some(GetOptions::new().with_prefix())).await.unwrap().count(), 1);
    assert_refused(ann.get("other", None).await, Code::PermissionDenied, DENIED);
    assert_refused(ann.put("r/key", "2", None).await, Code::PermissionDenied, DENIED);
    assert_refused(ann.delete("r/key", None).await, Code::PermissionDenied, DENIED);
    let wider = GetOptions::new().with_prefix();
    assert_refused(ann.get("r", Some(wider)).await, Code::PermissionDenied, DENIED);
    let all = DeleteOptions::new().with_all_keys();
    assert_refused(ann.delete("", Some(all)).await, Code::PermissionDenied, DENIED);

    let txn = |compared: &str, written: &str| {
        Txn::new()
            .when([Compare::version(compared, CompareOp::Greater, 0)])
            .and_then([TxnOp::put(written, "2", None)])
    };
    assert!(ann.txn(txn("r/key", "rw/key")).await.unwrap().succeeded());
    for (compared, written) in [("other", "rw/key"), ("r/key", "r/key")] {
        let refused = ann.txn(txn(compared, written)).await;
        assert_refused(refused, Code::PermissionDenied, DENIED);
    }
    let mut watch = ann.watch("other", None).await.unwrap();
    let message = clearlane_compat_etcd_client::next(&mut watch).await;
    assert!(message.canceled());
    assert_eq!(
        message.cancel_reason(),
        "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
    );
}

#[tokio::test]
async fn who_may_administer() {
    let (cluster, mut root) = locked(&[]).await;
    let mut ann = as_user(&cluster, "ann").await;
    assert_refused(ann.user_add("eve", "x", None).await, Code::PermissionDenied, DENIED);
    assert_refused(ann.role_list().await, Code::PermissionDenied, DENIED);
    assert_refused(ann.auth_disable().await, Code::PermissionDenied, DENIED);
    assert_refused(ann.defragment().await, Code::PermissionDenied, DENIED);
    assert_refused(ann.hash_kv(0).await, Code::PermissionDenied, DENIED);
    ann.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
    assert_eq!(ann.user_get("ann").await.unwrap().roles(), ["ann"]);
    assert_eq!(ann.role_get("ann").await.unwrap().permissions().len(), 2);
    assert_refused(ann.user_get("root").await, Code::PermissionDenied, DENIED);

    root.user_change_password("ann", "other").await.unwrap();
    root.auth_disable().await.unwrap();
    let mut anonymous = cluster.client().await;
    assert_eq!(anonymous.get("other", None).await.unwrap().count(), 1);
}

#[tokio::test]
async fn a_client_becomes_somebody_else() {
    let (cluster, mut root) = locked(&[]).await;
    let mut client = as_user(&cluster, "ann").await;
    assert_refused(client.get("other", None).await, Code::PermissionDenied, DENIED);
    let user = |password: &str| Some(("root".to_owned(), password.to_owned()));
    assert_refused(client.update_user(user("wrong")).await, Code::InvalidArgument, WRONG);
    client.update_user(user("secret")).await.unwrap();
    assert_eq!(client.get("other", None).await.unwrap().count(), 1);
    client.update_user(None).await.unwrap();
    assert_refused(client.get("other", None).await, Code::InvalidArgument, NO_NAME);
    root.refresh_token().await.unwrap();
    root.get("other", None).await.unwrap();
}

#[tokio::test]
async fn a_token_that_is_over_is_fetched_anew() {
    let (cluster, _root) = locked(&["--auth-token-ttl", "1"]).await;
    let options = ConnectOptions::new().with_user("ann", "secret");
    let mut plain = cluster.client_with(options.clone()).await;
    let mut refreshing = cluster.client_with(options.with_auto_token_refresh(true)).await;
    let over = async {
        while plain.get("r/key", None).await.is_ok() {
            // This pause is longer than the lifetime of an unused token.
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        }
    };
    clearlane_compat_etcd_client::soon("the token is over", over).await;
    let words = "etcdserver: invalid auth token";
    assert_refused(plain.get("r/key", None).await, Code::Unauthenticated, words);
    assert_eq!(refreshing.get("r/key", None).await.unwrap().count(), 1);
    plain.refresh_token().await.unwrap();
    assert_eq!(plain.get("r/key", None).await.unwrap().count(), 1);
}
