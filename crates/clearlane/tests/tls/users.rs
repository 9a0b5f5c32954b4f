//! Tests of users that are identified by the common name of their certificate: `--client-cert-auth`
//! with authentication enabled.
//!
//! The expected results are etcd's. To run the tests against etcd itself:
//!
//! ```text
//! CLEARLANE_ETCD=.../etcd cargo test -p clearlane --test tls -- --ignored
//! ```

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use clearlane_net::free_ports;
use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{CertificateFiles, Dialer};
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::authpb::{Permission, UserAddOptions};
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthStatusRequest,
    AuthUserAddRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserListRequest,
    AuthUserRevokeRoleRequest, AuthenticateRequest, MemberListRequest, PutRequest, RangeRequest,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::authority::Authority;
use crate::program_process::{RunningProgram, member};
use crate::test_server::block_on;

/// The password of root and `bob`. The user `alice` has no password.
const PASSWORD: &str = "pw";

/// A row of the table: the common name of a client, the metadata of its calls, and the expected
/// results. `ROOT` and `BOB` in the metadata are placeholders for tokens. The six results belong to
/// a range and a put on a key of alice's, a range on another key, a list of members, the auth
/// status, and a list of users.
type Calls = (&'static str, &'static [(&'static str, &'static str)], [&'static str; 6]);

const CALLS: [Calls; 15] = [
    ("alice", &[], ["ok", "ok", "denied", "ok", "ok", "denied"]),
    ("root", &[], ["ok", "ok", "ok", "ok", "ok", "ok"]),
    // An unknown user, and an empty name.
    ("mallory", &[], ["denied", "denied", "denied", "ok", "ok", "unknown"]),
    ("", &[], ["denied", "denied", "denied", "ok", "ok", "empty"]),
    // A token takes precedence over the certificate.
    ("alice", &[("token", "ROOT")], ["ok", "ok", "ok", "ok", "ok", "ok"]),
    ("alice", &[("authorization", "ROOT")], ["ok", "ok", "ok", "ok", "ok", "ok"]),
    ("mallory", &[("token", "ROOT")], ["ok", "ok", "ok", "ok", "ok", "ok"]),
    ("root", &[("token", "BOB")], ["ok", "denied", "denied", "ok", "ok", "denied"]),
    ("alice", &[("token", "wrong")], ["token", "token", "token", "token", "token", "token"]),
    ("alice", &[("token", "a.1")], ["token", "token", "token", "token", "token", "token"]),
    ("alice", &[("token", "")], ["token", "token", "token", "token", "token", "token"]),
    ("root", &[("authorization", "x")], ["token", "token", "token", "token", "token", "token"]),
    // With the metadata that the gateway adds to its requests, the certificate names no user.
    (
        "alice",
        &[("grpcgateway-accept", "*/*")],
        ["empty", "empty", "empty", "empty", "ok", "empty"],
    ),
    ("root", &[("grpcgateway-accept", "")], ["empty", "empty", "empty", "empty", "ok", "empty"]),
    ("alice", &[("grpcgateway-accept", "x"), ("token", "ROOT")], ["ok"; 6]),
];

const IGNORED_NAME: &str = "CommonName of client sending a request against gateway will be ignored and not used as expected";

const ACCEPT: &str = "Accept: */*\r\n";

enum Program {
    Clearlane,
    Etcd(PathBuf),
}

struct AuthServer {
    ca: Authority,
    address: String,
    _process: RunningProgram,
    _dir: TempDir,
}

impl AuthServer {
    fn start(program: &Program, client_cert_auth: bool) -> AuthServer {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path(), "ca");
        let pair = ca.pair("server", &["127.0.0.1", "localhost"]);
        let mut command = member(&dir.path().join("data"), &["--bcrypt-cost=4"]);
        let listen = match program {
            Program::Clearlane => "127.0.0.1:0".to_owned(),
            Program::Etcd(_) => free_address(),
        };
        command.arg(format!("--listen-client-urls=https://{listen}"));
        command.args(["--advertise-client-urls=https://127.0.0.1:2379"]);
        for (name, path) in [
            ("cert-file", &*pair.certificate.path),
            ("key-file", &pair.key.path),
            ("trusted-ca-file", ca.certificate()),
        ] {
            command.arg(format!("--{name}={}", path.display()));
        }
        command.arg(format!("--client-cert-auth={client_cert_auth}"));
        if let Program::Etcd(program) = program {
            let arguments = command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>();
            command = Command::new(program);
            command.args(arguments);
        }
        let mut process = RunningProgram::start(&mut command);
        process.line("ready to serve client requests");
        let address = process.address("serving client traffic securely");
        AuthServer { ca, address, _process: process, _dir: dir }
    }

    /// Connects with a certificate for this name.
    async fn client(&self, name: &str) -> Channel {
        let side = self.ca.caller(self.ca.pair(name, &[]));
        let dialer = Dialer::new(&side, &ProtocolConfig::default()).unwrap();
        dialer.connect(&format!("https://{}", self.address)).await.unwrap()
    }

    async fn enable(&self) {
        let channel = self.client("root").await;
        let mut auth = AuthClient::new(channel.clone());
        for name in ["alice", "root"] {
            auth.role_add(AuthRoleAddRequest { name: name.to_owned() }).await.unwrap();
        }
        auth.role_add(AuthRoleAddRequest { name: "bob".to_owned() }).await.unwrap();
        for (name, kind) in [("alice", Type::Readwrite), ("bob", Type::Read)] {
            let perm = Permission { perm_type: kind as i32, key: "a".into(), ..Default::default() };
            let (name, perm) = (name.to_owned(), Some(perm));
            let granted = AuthRoleGrantPermissionRequest { name, perm };
            auth.role_grant_permission(granted).await.unwrap();
        }
        for user in ["alice", "bob", "root"] {
            let options = Some(UserAddOptions { no_password: user == "alice" });
            let password = if user == "alice" { "" } else { PASSWORD };
            let (name, password) = (user.to_owned(), password.to_owned());
            let added = AuthUserAddRequest { name, password, options, ..Default::default() };
            auth.user_add(added).await.unwrap();
            let (user, role) = (user.to_owned(), user.to_owned());
            auth.user_grant_role(AuthUserGrantRoleRequest { user, role }).await.unwrap();
        }
        auth.auth_enable(AuthEnableRequest {}).await.unwrap();
    }

    async fn token(&self, user: &str) -> String {
        let mut auth = AuthClient::new(self.client("mallory").await);
        let (name, password) = (user.to_owned(), PASSWORD.to_owned());
        auth.authenticate(AuthenticateRequest { name, password }).await.unwrap().into_inner().token
    }

    /// Sends a request over HTTP/1.1, with a certificate.
    async fn post(&self, name: &str, path: &str, headers: &str) -> String {
        let pair = self.ca.pair(name, &[]);
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(client_config(&self.ca, &pair)));
        let host = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(host, stream).await.unwrap();
        let (body, method) =
            if path.starts_with("/v3/") { ("{\"key\":\"YQ==\"}", "POST") } else { ("", "GET") };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close");
        let len = body.len();
        let request = format!("{head}\r\n{headers}Content-Length: {len}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

/// Returns an address with a free port. etcd's gateway calls the port in the flag, so the port
/// cannot be 0.
fn free_address() -> String {
    format!("127.0.0.1:{}", free_ports(1).unwrap()[0])
}

fn client_config(ca: &Authority, pair: &CertificateFiles) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca.certificate()).unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_file(&pair.certificate.path).unwrap();
    let key = PrivateKeyDer::from_pem_file(&pair.key.path).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    config.with_client_auth_cert(vec![certificate], key).unwrap()
}

fn range(key: &'static str) -> RangeRequest {
    RangeRequest { key: key.into(), ..Default::default() }
}

fn with<T>(metadata: &[(&'static str, String)], message: T) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    request
}

fn short<T>(answer: Result<Response<T>, Status>) -> String {
    let Err(status) = answer else { return "ok".to_owned() };
    let name = match status.message() {
        "etcdserver: permission denied" => "denied",
        "etcdserver: user name is empty" => "empty",
        "etcdserver: user name not found" => "unknown",
        "etcdserver: invalid auth token" => "token",
        other => other,
    };
    name.to_owned()
}

async fn answers(channel: Channel, metadata: &[(&'static str, String)]) -> [String; 6] {
    let put = PutRequest { key: "a".into(), value: "1".into(), ..Default::default() };
    let mut kv = KvClient::new(channel.clone());
    let mut auth = AuthClient::new(channel.clone());
    let list = MemberListRequest { linearizable: false };
    [
        short(kv.range(with(metadata, range("a"))).await),
        short(kv.put(with(metadata, put)).await),
        short(kv.range(with(metadata, range("b"))).await),
        short(ClusterClient::new(channel).member_list(with(metadata, list)).await),
        short(auth.auth_status(with(metadata, AuthStatusRequest {})).await),
        short(auth.user_list(with(metadata, AuthUserListRequest {})).await),
    ]
}

fn check_calls(program: &Program) {
    let server = AuthServer::start(program, true);
    block_on(async {
        server.enable().await;
        let (root, bob) = (server.token("root").await, server.token("bob").await);
        let mut wrong = Vec::new();
        for (name, metadata, wanted) in CALLS {
            let sent: Vec<(&'static str, String)> = metadata
                .iter()
                .map(|(name, value)| (*name, value.replace("ROOT", &root).replace("BOB", &bob)))
                .collect();
            let got = answers(server.client(name).await, &sent).await;
            if got != wanted {
                wrong.push(format!("{name:?} with {metadata:?}: {got:?}, expected {wanted:?}"));
            }
        }
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    });
}

/// A connection has no fixed user: each call is checked against the current users and roles.
fn check_changes(program: &Program) {
    let server = AuthServer::start(program, true);
    block_on(async {
        server.enable().await;
        let alice = server.client("alice").await;
        let mut auth = AuthClient::new(server.client("root").await);
        assert_eq!(answers(alice.clone(), &[]).await[..2], ["ok", "ok"]);
        let (name, role) = ("alice".to_owned(), "alice".to_owned());
        let revoke = AuthUserRevokeRoleRequest { name: name.clone(), role: role.clone() };
        auth.user_revoke_role(revoke).await.unwrap();
        assert_eq!(answers(alice.clone(), &[]).await[..2], ["denied", "denied"]);
        let grant = AuthUserGrantRoleRequest { user: name.clone(), role };
        auth.user_grant_role(grant).await.unwrap();
        assert_eq!(answers(alice.clone(), &[]).await[..2], ["ok", "ok"]);
        auth.user_delete(AuthUserDeleteRequest { name }).await.unwrap();
        let gone = answers(alice, &[]).await;
        assert_eq!(gone, ["denied", "denied", "denied", "ok", "ok", "unknown"]);
    });
}

fn check_gateway(program: &Program) {
    let server = AuthServer::start(program, true);
    block_on(async {
        let range = "/v3/kv/range";
        let before = server.post("alice", range, ACCEPT).await;
        assert!(before.starts_with("HTTP/1.1 200"), "{before}");
        server.enable().await;
        let with_token = format!("{ACCEPT}Authorization: {}\r\n", server.token("root").await);
        for name in ["alice", "root", "mallory"] {
            for headers in [ACCEPT, "", &with_token] {
                let answer = server.post(name, range, headers).await;
                assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
                assert!(answer.ends_with(&format!("\r\n\r\n{IGNORED_NAME}\n")), "{answer}");
                let header = answer.to_ascii_lowercase();
                assert!(header.contains("content-type: text/plain; charset=utf-8"), "{answer}");
            }
            for path in ["/health", "/version", "/metrics", "/readyz"] {
                let answer = server.post(name, path, ACCEPT).await;
                assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            }
        }
        // With a certificate without a name, a request may carry a token, but has no user by
        // itself.
        let answer = server.post("", range, &with_token).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let answer = server.post("", range, ACCEPT).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("etcdserver: user name is empty"), "{answer}");
        // Without the header in `ACCEPT`, etcd uses the name in the gateway's own certificate.
        // Clearlane does not.
        let answer = server.post("", range, "").await;
        let words = match program {
            Program::Clearlane => "etcdserver: user name is empty",
            Program::Etcd(_) => "etcdserver: permission denied",
        };
        assert!(answer.contains(words), "{answer}");
    });
}

/// Without `--client-cert-auth`, certificates are still required because there is an authority, but
/// they name no user.
fn check_without_flag(program: &Program) {
    let server = AuthServer::start(program, false);
    block_on(async {
        server.enable().await;
        let got = answers(server.client("root").await, &[]).await;
        assert_eq!(got, ["empty", "empty", "empty", "empty", "ok", "empty"]);
        let root = server.token("root").await;
        let got = answers(server.client("alice").await, &[("token", root.clone())]).await;
        assert_eq!(got, ["ok"; 6]);
        let headers = format!("Authorization: {root}\r\n");
        let answer = server.post("alice", "/v3/kv/range", &headers).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    });
}

#[test]
fn a_common_name_is_a_user_and_a_token_comes_first() {
    check_calls(&Program::Clearlane);
}

#[test]
fn changes_count_on_open_connections() {
    check_changes(&Program::Clearlane);
}

#[test]
fn the_gateway_takes_no_name() {
    check_gateway(&Program::Clearlane);
}

#[test]
fn without_the_flag_a_name_is_no_user() {
    check_without_flag(&Program::Clearlane);
}

#[test]
#[ignore = "needs etcd, which `tests/compat/dump-logs/run` builds"]
fn etcd_takes_names_in_this_way() {
    let program = std::env::var_os("CLEARLANE_ETCD").expect("it must name etcd's program");
    let program = Program::Etcd(program.into());
    check_calls(&program);
    check_changes(&program);
    check_gateway(&program);
    check_without_flag(&program);
}
