//! Clients with certificates whose names are mapped to users.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clearlane_net::tls::config::{CertificateFiles, FlagPath, TlsInfo};
use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{Dialer, TlsAcceptor};
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    AuthenticateRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest, WatchCreateRequest,
};
use clearlane_proxy::login::CertificateUsers;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use tonic::transport::Channel;
use tonic::{Code, Request};
use x509_cert::der::pem::{LineEnding, encode_string};

use crate::member::{self, Member};
use crate::running::{RunningProxy, WatchStream, config, until};

/// An authority and its certificates, as files.
struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(dir: &Path) -> Authority {
        let mut params = params("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(dir.join("ca.crt"), pem("CERTIFICATE", issuer.der())).unwrap();
        Authority { dir: dir.to_owned(), issuer }
    }

    fn file(&self, flag: &'static str, name: &str) -> FlagPath {
        FlagPath { flag, path: self.dir.join(name) }
    }

    fn pair(&self, name: &str) -> CertificateFiles {
        let key = KeyPair::generate().unwrap();
        let certificate = params(name).signed_by(&key, &self.issuer).unwrap();
        let pair = CertificateFiles {
            certificate: self.file("cert", &format!("{name}.crt")),
            key: self.file("key", &format!("{name}.key")),
        };
        fs::write(&pair.certificate.path, pem("CERTIFICATE", certificate.der())).unwrap();
        fs::write(&pair.key.path, pem("PRIVATE KEY", key.serialized_der())).unwrap();
        pair
    }

    fn acceptor(&self) -> Arc<TlsAcceptor> {
        let info = TlsInfo {
            server_certificate: Some(self.pair("proxy")),
            trusted_ca: Some(self.file("trusted-ca-file", "ca.crt")),
            ..TlsInfo::default()
        };
        Arc::new(TlsAcceptor::new("client", &info, &ProtocolConfig::default()).unwrap())
    }

    async fn connect(&self, proxy: &RunningProxy, name: &str) -> Channel {
        let info = TlsInfo {
            client_certificate: Some(self.pair(name)),
            trusted_ca: Some(self.file("cacert", "ca.crt")),
            ..TlsInfo::default()
        };
        let dialer = Dialer::new(&info, &ProtocolConfig::default()).unwrap();
        let url = format!("https://localhost:{}", proxy.address.port());
        dialer.connect(&url).await.unwrap()
    }
}

fn pem(kind: &str, der: &[u8]) -> String {
    encode_string(kind, LineEnding::LF, der).unwrap()
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A member with auth, and a proxy that maps the name `mapped` to its user.
struct Setup {
    _dir: tempfile::TempDir,
    authority: Authority,
    password: PathBuf,
    member: Member,
    proxy: RunningProxy,
}

impl Setup {
    async fn start() -> Setup {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(dir.path());
        let (password, users) = (dir.path().join("password"), dir.path().join("users"));
        fs::write(&password, member::PASSWORD).unwrap();
        fs::write(&users, format!("mapped {} password\n", member::USER)).unwrap();
        let member = Member::start().await;
        member.state.has_auth.store(true, Ordering::SeqCst);
        let mut config = config(&member);
        config.certificate_users = CertificateUsers::read(&users).unwrap();
        let proxy = RunningProxy::start(config, Some(authority.acceptor())).await;
        Setup { _dir: dir, authority, password, member, proxy }
    }

    async fn connect(&self, name: &str) -> Channel {
        self.authority.connect(&self.proxy, name).await
    }
}

fn get() -> RangeRequest {
    RangeRequest { key: "k".into(), ..RangeRequest::default() }
}

#[tokio::test]
async fn a_mapped_name_acts_as_its_user() {
    let setup = Setup::start().await;
    let member = &setup.member;
    let mut client = KvClient::new(setup.connect("mapped").await);
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    client.put(put.clone()).await.unwrap();
    assert_eq!(client.range(get()).await.unwrap().into_inner().kvs[0].value, "v");
    assert_eq!(member.count(|it| &it.logins), 1, "one login for all calls");
    // A rejected call was not carried out, and is repeated with a new token.
    member.expire_tokens();
    client.put(put).await.unwrap();
    assert_eq!((member.count(|it| &it.logins), member.count(|it| &it.puts)), (2, 2));
    // Many calls that are rejected at the same time share one login.
    member.expire_tokens();
    let calls = (0..50).map(|_| {
        let mut client = client.clone();
        async move { client.range(get()).await.unwrap() }
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(member.count(|it| &it.logins), 3);
}

#[tokio::test]
async fn no_other_name_has_a_user() {
    let setup = Setup::start().await;
    let mut other = KvClient::new(setup.connect("other").await);
    assert_eq!(other.range(get()).await.unwrap_err().message(), "etcdserver: user name is empty");
    // A client's own token is sent as it is.
    let mut mapped = KvClient::new(setup.connect("mapped").await);
    let mut request = Request::new(get());
    request.metadata_mut().insert("token", "own".parse().unwrap());
    let rejected = mapped.range(request).await.unwrap_err();
    assert_eq!(rejected.message(), "etcdserver: invalid auth token");
    assert_eq!(setup.member.count(|it| &it.logins), 0);
}

#[tokio::test]
async fn a_rejected_login_is_reported_and_not_repeated_at_once() {
    let setup = Setup::start().await;
    fs::write(&setup.password, "wrong").unwrap();
    let mut client = KvClient::new(setup.connect("mapped").await);
    for _ in 0..20 {
        let status = client.range(get()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        let end = "etcdserver: authentication failed, invalid user ID or password";
        assert!(status.message().ends_with(end), "{status:?}");
    }
    assert!(setup.member.count(|it| &it.logins) < 20);
    // The password is read again at the next login.
    fs::write(&setup.password, member::PASSWORD).unwrap();
    while client.range(get()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn all_keep_alives_get_the_error_of_a_failed_login() {
    let setup = Setup::start().await;
    fs::write(&setup.password, "wrong").unwrap();
    let channel = setup.connect("mapped").await;
    // A stream takes 64 renewals at a time, so most of these wait until it is opened.
    let clients = (0..200).map(|id| {
        let mut leases = LeaseClient::new(channel.clone());
        let requests = tokio_stream::iter([LeaseKeepAliveRequest { id }]);
        tokio::spawn(async move {
            leases.lease_keep_alive(requests).await?.into_inner().message().await
        })
    });
    for client in clients.collect::<Vec<_>>() {
        let status = client.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    }
}

#[tokio::test]
async fn a_mapped_client_is_not_answered_from_the_cache() {
    let setup = Setup::start().await;
    let member = &setup.member;
    member.state.has_auth.store(false, Ordering::SeqCst);
    member.store("k", b"v");
    let mut mapped = KvClient::new(setup.connect("mapped").await);
    for _ in 0..20 {
        let before = member.count(|it| &it.ranges);
        mapped.range(get()).await.unwrap();
        assert!(member.count(|it| &it.ranges) > before);
    }
    assert_eq!(setup.proxy.proxy.services().cache.scopes().len(), 0);
    // When auth is turned on, the next call logs in.
    member.state.has_auth.store(true, Ordering::SeqCst);
    mapped.range(get()).await.unwrap();
    assert_eq!(member.count(|it| &it.logins), 1);
}

#[tokio::test]
async fn streams_get_a_new_token() {
    let setup = Setup::start().await;
    let member = &setup.member;
    let channel = setup.connect("mapped").await;
    let mut watch = WatchStream::open(channel.clone()).await;
    let create = WatchCreateRequest { key: "k".into(), watch_id: 7, ..Default::default() };
    watch.send(RequestUnion::CreateRequest(create)).await;
    assert!(watch.next().await.created);
    // The second creation is rejected for its token. Both watches continue on a new stream.
    member.expire_tokens();
    let create = WatchCreateRequest { key: "l".into(), watch_id: 8, ..Default::default() };
    watch.send(RequestUnion::CreateRequest(create)).await;
    let created = watch.next().await;
    assert!(created.created && !created.canceled && created.watch_id == 8, "{created:?}");
    for (key, watch_id) in [("k", 7), ("l", 8)] {
        member.store(key, b"v");
        let response = watch.next().await;
        assert_eq!((response.watch_id, response.events.len()), (watch_id, 1));
    }
    assert_eq!(member.count(|it| &it.logins), 2);
    let mut leases = LeaseClient::new(channel);
    member.expire_tokens();
    let requests = tokio_stream::iter([1, 2].map(|id| LeaseKeepAliveRequest { id }));
    let mut answers = leases.lease_keep_alive(requests).await.unwrap().into_inner();
    for _ in 0..2 {
        assert_eq!(answers.message().await.unwrap().unwrap().ttl, member::TTL);
    }
    assert_eq!(member.count(|it| &it.logins), 3);
}

#[tokio::test]
async fn a_rejected_watch_of_a_client_with_a_token_has_a_header() {
    let member = Member::start().await;
    let revision = member.store("k", b"v");
    member.state.has_auth.store(true, Ordering::SeqCst);
    let proxy = RunningProxy::start(config(&member), None).await;
    let channel = proxy.connect().await;
    let (name, password) = (member::USER.to_owned(), member::PASSWORD.to_owned());
    let login = AuthenticateRequest { name, password };
    let login = AuthClient::new(channel.clone()).authenticate(login).await.unwrap();
    let mut watch = WatchStream::open_with(channel, Some(&login.into_inner().token)).await;
    let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
    let invalid = WatchCreateRequest { start_revision: -1, ..create.clone() };
    watch.send(RequestUnion::CreateRequest(invalid)).await;
    let rejected = watch.next().await;
    assert!(rejected.created && rejected.canceled && rejected.watch_id == -1, "{rejected:?}");
    assert_eq!(rejected.header.unwrap().revision, revision);
    watch.send(RequestUnion::CreateRequest(create)).await;
    let created = watch.next().await;
    assert!(created.created && !created.canceled && created.watch_id == 0, "{created:?}");
}

#[tokio::test]
async fn watches_of_a_cached_range_end_when_auth_is_enabled() {
    let member = Member::start().await;
    member.store("c/k", b"v");
    let mut config = config(&member);
    config.cache.prefixes = vec![b"c/".to_vec()];
    let proxy = RunningProxy::start(config, None).await;
    let scopes = proxy.proxy.services().cache.scopes();
    until("the prefix is cached", || scopes[0].revision() != 0).await;
    let mut watch = WatchStream::open(proxy.connect().await).await;
    let create = WatchCreateRequest { key: "c/k".into(), ..WatchCreateRequest::default() };
    watch.send(RequestUnion::CreateRequest(create)).await;
    assert!(watch.next().await.created);
    member.state.has_auth.store(true, Ordering::SeqCst);
    // The feed creates its watch again, and the member rejects it. It also rejects the watch of the
    // client, which has no user.
    member.end_watches();
    let ended = watch.next().await;
    assert!(ended.canceled && ended.cancel_reason.ends_with("user name is empty"), "{ended:?}");
}
