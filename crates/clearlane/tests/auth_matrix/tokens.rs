//! Tables of the results for each way to send a token, and for tokens that are no longer valid.

use std::time::{Duration, SystemTime};

use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthStatusRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest, AuthUserListRequest,
    AuthUserRevokeRoleRequest, CompactionRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest,
    MemberListRequest, StatusRequest, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use serde_json::{Value, json};

use crate::call::{Call, Token};
use crate::jwt;
use crate::kv_rows::{put, range};
use crate::matrix::{WRONG_TOKEN, text};
use crate::row::Row;
use crate::server::{LEASE_NARROW, PASSWORD, Program, Server};
use crate::table::Table;

/// Returns the calls, one for each column of the table. The names of the columns must not contain
/// spaces.
fn probes() -> Vec<Row> {
    let create = WatchCreateRequest { key: "k/1".into(), ..Default::default() };
    let watch = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let reason = |reply: WatchResponse| {
        reply.cancel_reason.split(" desc = ").last().unwrap_or_default().to_owned()
    };
    let compact = CompactionRequest { revision: 1 << 40, ..Default::default() };
    let to_live = |keys| LeaseTimeToLiveRequest { id: LEASE_NARROW, keys };
    vec![
        Row::new("KV/Range", "", range("k/1", "")),
        Row::new("KV/Put", "", put("k/1")),
        Row::new("KV/Txn", "", TxnRequest::default()),
        Row::new("KV/Compact", "", compact),
        Row::new("Watch/Watch", "", watch).fact(reason),
        Row::new("Lease/LeaseTimeToLive", "", to_live(false)),
        Row::new("Lease/LeaseTimeToLive", ",keys", to_live(true)),
        Row::new("Lease/LeaseKeepAlive", "", LeaseKeepAliveRequest { id: LEASE_NARROW }),
        Row::new("Cluster/MemberList", "", MemberListRequest { linearizable: false }),
        Row::new("Maintenance/Status", "", StatusRequest {}),
        Row::new("Auth/AuthStatus", "", AuthStatusRequest {}),
        Row::new("Auth/UserList", "", AuthUserListRequest {}),
        Row::new("Auth/UserGet", ",exact", AuthUserGetRequest { name: "exact".to_owned() }),
    ]
}

struct Recorder {
    server: Server,
    probes: Vec<Row>,
    table: Table,
}

impl Recorder {
    async fn start(program: &Program, flags: &[&str]) -> Recorder {
        let probes = probes();
        let names: Vec<String> =
            probes.iter().map(|row| format!("{}{}", row.method, row.shape)).collect();
        let table = Table::new(names.iter().map(String::as_str));
        Recorder { server: Server::start(program, flags).await, probes, table }
    }

    async fn row(&mut self, name: &str, token: Token) {
        let mut cells = Vec::new();
        for probe in &self.probes {
            let asked = Call { method: probe.method, request: (probe.request)("") };
            cells.push(text(&self.server.call(&asked, &token).await, &probe.fact));
        }
        self.table.push(name, cells);
    }

    /// Returns a token of a new user with the role `exact`.
    async fn new_user(&self, name: &str) -> String {
        self.server.add_user(name, "exact").await;
        self.server.log_in(name).await
    }

    async fn delete_user(&self, name: &str) {
        self.server.must("Auth/UserDelete", AuthUserDeleteRequest { name: name.to_owned() }).await;
    }

    async fn change_password(&self, name: &str) {
        let (name, password) = (name.to_owned(), PASSWORD.to_owned());
        let request = AuthUserChangePasswordRequest { name, password, ..Default::default() };
        self.server.must("Auth/UserChangePassword", request).await;
    }

    async fn change_roles(&self) {
        let role = |name: &str| AuthRoleAddRequest { name: name.to_owned() };
        self.server.must("Auth/RoleAdd", role("another")).await;
    }
}

pub(crate) async fn simple(program: &Program) -> Table {
    let mut recorder = Recorder::start(program, &[]).await;
    shown_in_other_ways(&mut recorder).await;
    malformed(&mut recorder).await;
    gone(&mut recorder).await;
    recorder.table
}

async fn shown_in_other_ways(recorder: &mut Recorder) {
    let token = &recorder.server.token_of("exact");
    let bearer = &format!("Bearer {token}");
    let twice = &format!("Bearer Bearer {token}");
    let lower = &format!("bearer {token}");
    let root = &recorder.server.token_of("root");
    for (name, pairs) in [
        ("token: T", &[("token", token.as_str())][..]),
        ("token: Bearer T", &[("token", bearer)]),
        ("token: Bearer Bearer T", &[("token", twice)]),
        ("token: bearer T", &[("token", lower)]),
        ("authorization: T", &[("authorization", token)]),
        ("authorization: Bearer T", &[("authorization", bearer)]),
        ("authorization: bearer T", &[("authorization", lower)]),
        ("token: T, authorization: wrong", &[("token", token), ("authorization", WRONG_TOKEN)]),
        ("token: wrong, authorization: T", &[("token", WRONG_TOKEN), ("authorization", token)]),
        ("token: empty, authorization: T", &[("token", ""), ("authorization", token)]),
        ("token: T, token: wrong", &[("token", token), ("token", WRONG_TOKEN)]),
        ("token: wrong, token: T", &[("token", WRONG_TOKEN), ("token", token)]),
        ("token: T, token of root", &[("token", token), ("token", root)]),
        ("grpcgateway-authorization: T", &[("grpcgateway-authorization", token)]),
    ] {
        recorder.row(name, Token::metadata(pairs)).await;
    }
}

async fn malformed(recorder: &mut Recorder) {
    let token = recorder.server.token_of("exact");
    let (random, index) = token.split_once('.').unwrap();
    for (name, shown) in [
        ("empty", String::new()),
        ("no dot", random.to_owned()),
        ("no index", format!("{random}.")),
        ("index 0", format!("{random}.0")),
        ("another index", format!("{random}.1")),
        ("index with a zero before it", format!("{random}.0{index}")),
        ("index with a sign", format!("{random}.+{index}")),
        ("index is no number", format!("{random}.x")),
        ("index below 0", format!("{random}.-1")),
        ("index above 2^64", format!("{random}.99999999999999999999")),
        ("three parts", format!("{random}.{index}.{index}")),
        ("a space behind it", format!("{token} x")),
    ] {
        recorder.row(name, Token::of(&shown)).await;
    }
    // etcd waits until the log reaches the token's index, which does not happen here. So this call
    // takes the whole time limit. To save time, only the first probe is called, and the other cells
    // are `not-asked`.
    let range = &recorder.probes[0];
    let asked = Call { method: range.method, request: (range.request)("") };
    let future = Token::of(&format!("{random}.99999999"));
    let mut cells = vec![text(&recorder.server.call(&asked, &future).await, &range.fact)];
    cells.resize(recorder.probes.len(), "not-asked".to_owned());
    recorder.table.push("index not reached", cells);
}

async fn gone(recorder: &mut Recorder) {
    let token = recorder.new_user("deleted").await;
    recorder.delete_user("deleted").await;
    recorder.row("user deleted", Token::of(&token)).await;
    recorder.server.add_user("deleted", "exact").await;
    recorder.row("user deleted and added again", Token::of(&token)).await;

    let token = recorder.new_user("changed").await;
    recorder.change_password("changed").await;
    recorder.row("password changed", Token::of(&token)).await;

    let token = recorder.new_user("roleless").await;
    recorder.change_roles().await;
    recorder.row("some role added", Token::of(&token)).await;
    let (name, role) = ("roleless".to_owned(), "exact".to_owned());
    recorder.server.must("Auth/UserRevokeRole", AuthUserRevokeRoleRequest { name, role }).await;
    recorder.row("role revoked", Token::of(&token)).await;

    let earlier = recorder.server.token_of("exact");
    recorder.server.log_in("exact").await;
    recorder.row("logged in again since", Token::of(&earlier)).await;

    recorder.server.must("Auth/AuthDisable", AuthDisableRequest {}).await;
    recorder.row("disabled: good before", Token::of(&earlier)).await;
    recorder.row("disabled: wrong", Token::of(WRONG_TOKEN)).await;
    recorder.row("disabled: none", Token::none()).await;
    recorder.server.must("Auth/AuthEnable", AuthEnableRequest {}).await;
    recorder.row("disabled and enabled since", Token::of(&earlier)).await;
}

const KEY: &[u8] = b"a key that both sides know";

pub(crate) async fn jwt(program: &Program) -> Table {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("hmac.key");
    std::fs::write(&key, KEY).unwrap();
    let flag = format!("--auth-token=jwt,priv-key={},sign-method=HS256,ttl=10m", key.display());
    let mut recorder = Recorder::start(program, &[&flag]).await;
    check_claims(&recorder.server.token_of("exact"));
    // Users and roles have not changed since the tokens were issued, so each token contains the
    // current auth revision.
    let revision = jwt::claims(&recorder.server.token_of("exact"))["revision"].as_i64().unwrap();
    signed_well(&mut recorder, revision).await;
    signed_badly(&mut recorder, revision).await;
    out_of_date(&mut recorder, revision).await;
    recorder.table
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_secs().try_into().unwrap()
}

/// Number of seconds until the expiry of a token that is still valid.
const LATER: i64 = 600;

/// Checks the claims that a server writes into a token.
fn check_claims(token: &str) {
    let claims = jwt::claims(token);
    let names: Vec<&String> = claims.as_object().unwrap().keys().collect();
    assert_eq!(names, ["exp", "revision", "username"]);
    assert_eq!(claims["username"], "exact");
    let ends_in = Duration::from_secs((claims["exp"].as_i64().unwrap() - now()) as u64);
    assert!((590..=600).contains(&ends_in.as_secs()), "{ends_in:?}");
}

fn header() -> Value {
    json!({"alg": "HS256", "typ": "JWT"})
}

fn good(revision: i64) -> Value {
    json!({"username": "exact", "revision": revision, "exp": now() + LATER})
}

fn with(revision: i64, name: &str, value: Value) -> Value {
    let mut claims = good(revision);
    claims[name] = value;
    claims
}

fn without(revision: i64, name: &str) -> Value {
    let mut claims = good(revision);
    claims.as_object_mut().unwrap().remove(name);
    claims
}

async fn signed_well(recorder: &mut Recorder, revision: i64) {
    let token = recorder.server.token_of("exact");
    recorder.row("token: T", Token::of(&token)).await;
    recorder.row("token: Bearer T", Token::of(&format!("Bearer {token}"))).await;
    let authorization = Token::metadata(&[("authorization", &token)]);
    recorder.row("authorization: T", authorization).await;
    recorder.row("root", Token::of(&recorder.server.token_of("root"))).await;
    for (name, claims) in [
        ("made by hand", good(revision)),
        ("no exp", without(revision, "exp")),
        ("exp in the past", with(revision, "exp", json!(now() - 5))),
        ("exp is text", with(revision, "exp", json!("x"))),
        ("exp with a fraction", with(revision, "exp", json!((now() + LATER) as f64 + 0.5))),
        ("nbf in the past", with(revision, "nbf", json!(now() - 5))),
        ("nbf in the future", with(revision, "nbf", json!(now() + LATER))),
        ("iat in the future", with(revision, "iat", json!(now() + LATER))),
        ("another claim", with(revision, "aud", json!("x"))),
        ("no username", without(revision, "username")),
        ("username is a number", with(revision, "username", json!(1))),
        ("username is empty", with(revision, "username", json!(""))),
        ("unknown user", with(revision, "username", json!("nobody"))),
        ("no revision", without(revision, "revision")),
        ("revision is text", with(revision, "revision", json!(revision.to_string()))),
        ("revision with a fraction", with(revision, "revision", json!(revision as f64 + 0.5))),
        ("revision 0", good(0)),
        ("revision of the past", good(revision - 1)),
        ("revision of the future", good(revision + 1)),
    ] {
        recorder.row(name, Token::of(&jwt::sign(KEY, &header(), &claims))).await;
    }
}

async fn signed_badly(recorder: &mut Recorder, revision: i64) {
    let claims = good(revision);
    let none = json!({"alg": "none", "typ": "JWT"});
    let signed = jwt::sign(KEY, &header(), &claims);
    for (name, token) in [
        ("another key", jwt::sign(b"another key", &header(), &claims)),
        ("no typ", jwt::sign(KEY, &json!({"alg": "HS256"}), &claims)),
        ("no alg", jwt::sign(KEY, &json!({"typ": "JWT"}), &claims)),
        ("alg HS512", jwt::sign(KEY, &json!({"alg": "HS512", "typ": "JWT"}), &claims)),
        ("alg none", jwt::unsigned(&none, &claims)),
        ("alg none, signed", jwt::sign(KEY, &none, &claims)),
        ("no signature", jwt::unsigned(&header(), &claims)),
        ("signature padded", format!("{signed}=")),
        ("four parts", format!("{signed}.x")),
        ("two parts", "a.b".to_owned()),
        ("no part", "a".to_owned()),
        ("empty", String::new()),
        ("a simple token", WRONG_TOKEN.to_owned()),
        ("claims are a list", jwt::sign(KEY, &header(), &json!([1]))),
    ] {
        recorder.row(name, Token::of(&token)).await;
    }
}

async fn out_of_date(recorder: &mut Recorder, revision: i64) {
    let before = Token::of(&jwt::sign(KEY, &header(), &good(revision)));
    let root = with(revision, "username", json!("root"));
    let root = Token::of(&jwt::sign(KEY, &header(), &root));
    recorder.change_roles().await;
    recorder.row("some role added", before.clone()).await;
    recorder.row("some role added, root", root.clone()).await;

    let deleted = recorder.new_user("deleted").await;
    recorder.delete_user("deleted").await;
    recorder.row("user deleted", Token::of(&deleted)).await;

    let changed = recorder.new_user("changed").await;
    recorder.change_password("changed").await;
    recorder.row("password changed", Token::of(&changed)).await;
    let again = recorder.server.log_in("changed").await;
    recorder.row("password changed, logged in again", Token::of(&again)).await;

    let good = recorder.server.log_in("exact").await;
    recorder.server.must("Auth/AuthEnable", AuthEnableRequest {}).await;
    recorder.row("enabled again", Token::of(&good)).await;
    recorder.server.must("Auth/AuthDisable", AuthDisableRequest {}).await;
    recorder.row("disabled: good before", Token::of(&good)).await;
    recorder.row("disabled: wrong", Token::of(WRONG_TOKEN)).await;
    recorder.server.must("Auth/AuthEnable", AuthEnableRequest {}).await;
    recorder.row("disabled and enabled since", Token::of(&good)).await;
}
