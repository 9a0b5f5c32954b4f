//! Tests that no output of the program contains a password or a token. The test sends a password in
//! each RPC that accepts one, and a token with some RPCs, while the log is most verbose.
//!
//! The test does not depend on authentication, because it ignores whether a request succeeds.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::*;
use nix::sys::signal::Signal;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};

use crate::member::HardenedMember;

const PASSWORD: &str = "Passwort-Xq7vZ";
const NEW_PASSWORD: &str = "Kennwort-Wn3kP";
const TOKEN: &str = "Tokentext-Jm5rT.1234567";
const VALUE: &str = "Wertinhalt-Lb8sD";
const URL_PASSWORD: &str = "Discovery-Ck2hF";

/// Adds a token to a message. The test uses an unknown token, and a token that the server has
/// issued.
fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("token", MetadataValue::try_from(token).unwrap());
    request.metadata_mut().insert("authorization", MetadataValue::try_from(token).unwrap());
    request
}

/// The text of all errors. The test also searches this text for the secrets.
#[derive(Default)]
struct Answers(String);

impl Answers {
    fn note<T>(&mut self, answer: Result<T, tonic::Status>) -> Option<T> {
        answer.inspect_err(|status| self.0 += &format!("{status} {status:?}\n")).ok()
    }
}

async fn users(channel: Channel, token: &str, answers: &mut Answers) -> Option<String> {
    let mut auth = AuthClient::new(channel);
    let (name, password) = ("ulrike".to_owned(), PASSWORD.to_owned());
    let add = AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
    answers.note(auth.user_add(with(token, add.clone())).await);
    answers.note(auth.user_add(with(token, add)).await);
    let root = AuthUserAddRequest {
        name: "root".to_owned(),
        password: PASSWORD.to_owned(),
        ..Default::default()
    };
    answers.note(auth.user_add(with(token, root)).await);
    let role = AuthRoleAddRequest { name: "root".to_owned() };
    answers.note(auth.role_add(with(token, role)).await);
    let grant = AuthUserGrantRoleRequest { user: "root".to_owned(), role: "root".to_owned() };
    answers.note(auth.user_grant_role(with(token, grant)).await);
    for password in [NEW_PASSWORD, PASSWORD] {
        let change = AuthUserChangePasswordRequest {
            name: name.clone(),
            password: password.to_owned(),
            ..Default::default()
        };
        answers.note(auth.user_change_password(with(token, change)).await);
    }
    let nobody = AuthUserChangePasswordRequest {
        name: "unknown".to_owned(),
        password: NEW_PASSWORD.to_owned(),
        ..Default::default()
    };
    answers.note(auth.user_change_password(with(token, nobody)).await);
    answers.note(auth.auth_enable(with(token, AuthEnableRequest {})).await);
    let mut own = None;
    for (name, password) in [("root", PASSWORD), ("root", NEW_PASSWORD), ("unknown", PASSWORD)] {
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        let answer = answers.note(auth.authenticate(with(token, request)).await);
        own = own.or(answer.map(|answer| answer.into_inner().token));
    }
    own.filter(|token| !token.is_empty())
}

async fn requests(channel: Channel, token: &str, answers: &mut Answers) {
    let mut kv = KvClient::new(channel.clone());
    let put = PutRequest { key: "k".into(), value: VALUE.into(), ..Default::default() };
    answers.note(kv.put(with(token, put.clone())).await);
    let range = RangeRequest { key: "k".into(), ..Default::default() };
    answers.note(kv.range(with(token, range.clone())).await);
    let op = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
    let txn = TxnRequest { success: vec![op], ..Default::default() };
    answers.note(kv.txn(with(token, txn)).await);
    let delete = DeleteRangeRequest { key: "l".into(), ..Default::default() };
    answers.note(kv.delete_range(with(token, delete)).await);
    answers.note(
        kv.compact(with(token, CompactionRequest { revision: 2, ..Default::default() })).await,
    );
    let grant = LeaseGrantRequest { ttl: 60, id: 0 };
    answers.note(LeaseClient::new(channel.clone()).lease_grant(with(token, grant)).await);
    let list = MemberListRequest::default();
    answers.note(ClusterClient::new(channel.clone()).member_list(with(token, list)).await);
    let mut maintenance = MaintenanceClient::new(channel.clone());
    answers.note(maintenance.status(with(token, StatusRequest {})).await);
    answers.note(maintenance.hash_kv(with(token, HashKvRequest::default())).await);
    answers.note(maintenance.defragment(with(token, DefragmentRequest {})).await);
    let create = WatchCreateRequest { key: "k".into(), start_revision: 1, ..Default::default() };
    let create = watch_request::RequestUnion::CreateRequest(create);
    let create = tokio_stream::iter([WatchRequest { request_union: Some(create) }]);
    if let Some(stream) = answers.note(WatchClient::new(channel).watch(with(token, create)).await) {
        answers.note(stream.into_inner().message().await);
    }
}

/// Sends a request over HTTP. Returns the head and the body of the response.
fn http(member: &HardenedMember, request: &str, headers: &str, body: &str) -> String {
    let mut stream = std::net::TcpStream::connect(&member.plain).unwrap();
    let length = body.len();
    let head = format!("{request} HTTP/1.0\r\nhost: here\r\ncontent-length: {length}\r\n{headers}");
    write!(stream, "{head}\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn gateway(member: &HardenedMember) -> String {
    let headers = format!("Authorization: {TOKEN}\r\n");
    let mut answers = String::new();
    let mut post = |path: &str, body: &str| {
        answers += &http(member, &format!("POST {path}"), &headers, body);
    };
    let user = format!(r#"{{"name":"gudrun","password":"{PASSWORD}"}}"#);
    post("/v3/auth/user/add", &user);
    post("/v3/auth/user/changepw", &user);
    post("/v3/auth/authenticate", &user);
    // An error may mention a malformed request, but must not contain all of it.
    post("/v3/auth/authenticate", &format!(r#"{{"name":"gudrun","password":["{PASSWORD}"]}}"#));
    post("/v3/auth/authenticate", &format!(r#"{{"name":7,"password":"{PASSWORD}"#));
    let value = BASE64_STANDARD.encode(VALUE);
    post("/v3/kv/put", &format!(r#"{{"key":"aw==","value":"{value}"}}"#));
    post("/v3/kv/range", r#"{"key":"eA=="}"#);
    post("/v3/nothing", &user);
    answers
}

#[test]
fn no_secret_is_in_an_output_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let (timeline, log) = (dir.path().join("timeline"), dir.path().join("log"));
    let member = HardenedMember::start(&[
        &format!("--timeline={}", timeline.display()),
        &format!("--log-outputs=stderr,{}", log.display()),
        "--metrics=extensive",
        "--bcrypt-cost=4",
        "--max-request-bytes=4000",
        // With these flags every request is logged as slow.
        "--warning-apply-duration=1ns",
        "--warning-unary-request-duration=1ns",
        &format!("--discovery-user=ulrike:{URL_PASSWORD}"),
        &format!("--discovery-password={URL_PASSWORD}"),
    ]);
    let mut answers = Answers::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let own = runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", member.plain)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        requests(channel.clone(), TOKEN, &mut answers).await;
        let own = users(channel.clone(), TOKEN, &mut answers).await;
        if let Some(own) = &own {
            requests(channel.clone(), own, &mut answers).await;
        }
        own
    });
    let mut outputs = BTreeMap::from([("answers", answers.0), ("gateway", gateway(&member))]);
    let pages = ["/metrics", "/health", "/version", "/debug/vars", "/config/local/log"];
    let pages = pages.map(|page| http(&member, &format!("GET {page}"), "", ""));
    outputs.insert("pages", pages.concat());
    let wal = member.dir.path().join("data");
    let HardenedMember { program, .. } = &member;
    program.signal(Signal::SIGTERM);
    let HardenedMember { program, dir: _data, .. } = member;
    outputs.insert("standard error", program.end().1.join("\n"));
    outputs.insert("timeline", fs::read_to_string(&timeline).unwrap());
    outputs.insert("log", fs::read_to_string(&log).unwrap());
    assert!(outputs["log"].contains("request stats"), "requests are to be logged");
    let dumped = crate::program::program(&["wal", "dump", wal.to_str().unwrap()]).output().unwrap();
    assert!(dumped.status.success(), "{dumped:?}");
    let dumped = String::from_utf8(dumped.stdout).unwrap();
    let mut secrets = vec![PASSWORD, NEW_PASSWORD, TOKEN, URL_PASSWORD];
    secrets.extend(own.as_deref());
    for (output, text) in outputs.iter().map(|(name, text)| (*name, &text[..])) {
        for secret in secrets.iter().chain([&VALUE]) {
            let encoded = BASE64_STANDARD.encode(secret);
            for form in [secret, &encoded[..encoded.len() - 4]] {
                let found = text.lines().find(|line| line.contains(form));
                assert!(found.is_none(), "{output}: {}", found.unwrap_or_default());
            }
        }
    }
    // The dump of the log contains the values that were put. The log also has hashes of passwords,
    // which the dump must not show.
    for secret in secrets {
        assert!(!dumped.contains(secret), "{dumped}");
    }
    assert!(!dumped.contains("$2"), "{dumped}");
}
