//! Tests of the gRPC proxy in front of three members, which are killed and stopped.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use clearlane_net::tls::Dialer;
use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_proto::authpb::{Permission, permission::Type};
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserGrantRoleRequest, LeaseGrantRequest, LeaseKeepAliveRequest, MemberAddRequest,
    MemberRemoveRequest, PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

use crate::authority::Authority;
use crate::program::{
    Program, TIMEOUT, joining_member, leader_of, members, patient_channel, ports, short_pause,
};

const PREFIX: &str = "/proxied/";

struct Proxy {
    port: u16,
    process: Child,
}

impl Proxy {
    async fn start(dir: &Path, members: &[Program], flags: &[&str]) -> Proxy {
        Proxy::start_before(dir, members.iter().map(Program::url).collect(), flags).await
    }

    async fn start_before(dir: &Path, endpoints: Vec<String>, flags: &[&str]) -> Proxy {
        let port = ports(1)[0];
        let log = dir.join("proxy.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_clearlane"));
        command.args(["grpc-proxy", "start", "--endpoints", &endpoints.join(",")]);
        command.args(["--listen-addr", &format!("127.0.0.1:{port}")]).args(flags);
        command.env_clear().stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let process = command.spawn().unwrap();
        let begin = Instant::now();
        while !std::fs::read_to_string(&log).unwrap().contains("started gRPC proxy") {
            assert!(begin.elapsed() < TIMEOUT, "{}", std::fs::read_to_string(&log).unwrap());
            short_pause().await;
        }
        Proxy { port, process }
    }

    async fn connect(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.port)).unwrap();
        endpoint.timeout(Duration::from_secs(10)).connect().await.unwrap()
    }

    /// Opens a stream and creates a watch. The connection has no timeout, because a timeout would
    /// end the stream.
    async fn watch(&self, create: WatchCreateRequest) -> Watch {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.port)).unwrap();
        let (requests, receiver) = mpsc::channel(16);
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        requests.send(create).await.unwrap();
        let mut client = WatchClient::new(endpoint.connect().await.unwrap());
        let responses = client.watch(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Watch { _requests: requests, responses }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Watch {
    _requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Watch {
    async fn next(&mut self) -> WatchResponse {
        let next = tokio::time::timeout(TIMEOUT, self.responses.message()).await;
        next.expect("a response in time").unwrap().expect("the stream is open")
    }
}

fn prefix_watch(start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest {
        key: PREFIX.into(),
        range_end: "/proxied0".into(),
        start_revision,
        ..WatchCreateRequest::default()
    }
}

async fn started(dir: &Path) -> Vec<Program> {
    let mut members = members(dir, 3);
    members.iter_mut().for_each(Program::start);
    for member in &mut members {
        member.ready().await;
    }
    leader_of(&mut members).await;
    members
}

/// Puts consecutive numbers, using 50 keys in turn, until `is_done` is set. Returns the revisions
/// of the acknowledged puts.
async fn write(channel: Channel, is_done: Arc<AtomicBool>, newest: Arc<AtomicI64>) -> Vec<i64> {
    let mut client = KvClient::new(channel);
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while !is_done.load(Ordering::SeqCst) {
        let put = PutRequest {
            key: format!("{PREFIX}{}", number % 50).into(),
            value: number.to_string().into(),
            ..PutRequest::default()
        };
        number += 1;
        // A failed put may have been carried out, but it was not acknowledged.
        if let Ok(done) = client.put(put).await {
            let revision = done.into_inner().header.unwrap().revision;
            acknowledged.push(revision);
            newest.store(revision, Ordering::SeqCst);
        }
    }
    acknowledged
}

/// Reads a watch up to the last acknowledged put. Each of the puts must arrive, and no event twice.
async fn check_events(watch: &mut Watch, acknowledged: &[i64]) {
    let mut seen = Vec::new();
    while seen.last() < acknowledged.last() {
        let response = watch.next().await;
        assert!(!response.canceled, "{response:?}");
        seen.extend(response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision));
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "each event once, in order");
    let missing: Vec<_> =
        acknowledged.iter().filter(|it| seen.binary_search(it).is_err()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Members are killed or stopped, one at a time. During this time, reads through the proxy must
/// succeed, no client may lose its connection, each read must be at least as new as the last put
/// that was acknowledged before it, and a watch must get every acknowledged put exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_proxy_notice_no_lost_member() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = started(dir.path()).await;
    let proxy = Proxy::start(dir.path(), &members, &["--cache-prefix", PREFIX]).await;
    let mut watch = proxy.watch(prefix_watch(0)).await;
    assert!(watch.next().await.created);
    let (is_done, newest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let writer =
        tokio::spawn(write(proxy.connect().await, Arc::clone(&is_done), Arc::clone(&newest)));
    let mut reader = KvClient::new(proxy.connect().await);
    let mut longest = Duration::ZERO;
    for round in 0..6 {
        let victim = leader_of(&mut members).await;
        let victim = if round % 2 == 0 { victim } else { (victim + 1) % 3 };
        let is_killed = round < 3;
        if is_killed {
            members[victim].kill()
        } else {
            members[victim].signal("STOP")
        }
        let begin = Instant::now();
        let mut reads = 0;
        while reads < 20 || begin.elapsed() < Duration::from_secs(4) {
            let asked = Instant::now();
            read_fresh(&mut reader, &newest).await;
            longest = longest.max(asked.elapsed());
            reads += 1;
        }
        if is_killed {
            members[victim].start()
        } else {
            members[victim].signal("CONT")
        }
        members[victim].ready().await;
    }
    is_done.store(true, Ordering::SeqCst);
    check_events(&mut watch, &writer.await.unwrap()).await;
    // An election takes one to two seconds, and the machine may be busy.
    assert!(longest < Duration::from_secs(10), "a read took {longest:?}");
}

/// All members are replaced by new ones, one after the other. The proxy learns the new addresses. A
/// watch must get every acknowledged put exactly once, and each read must succeed, on the same
/// connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_members_behind_a_proxy_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = started(dir.path()).await;
    let flags = ["--cache-prefix", PREFIX, "--endpoints-auto-sync-interval", "500ms"];
    let proxy = Proxy::start(dir.path(), &members, &flags).await;
    let mut watch = proxy.watch(prefix_watch(0)).await;
    assert!(watch.next().await.created);
    let (is_done, newest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let writer =
        tokio::spawn(write(proxy.connect().await, Arc::clone(&is_done), Arc::clone(&newest)));
    let mut reader = KvClient::new(proxy.connect().await);
    for number in 3..6 {
        let mut new = joining_member(dir.path(), &format!("m{number}"), &members);
        let add = || MemberAddRequest { peer_urls: vec![new.peer_url()], is_learner: false };
        let mut cluster = ClusterClient::new(patient_channel(members[0].client).await);
        // A cluster is healthy only after its members have been connected for a while.
        while let Err(status) = cluster.member_add(add()).await {
            assert_eq!(status.message(), "etcdserver: unhealthy cluster");
            read_fresh(&mut reader, &newest).await;
        }
        new.start_existing();
        new.ready().await;
        members.push(new);
        let id = members[0].ready().await.header.unwrap().member_id;
        let mut cluster = ClusterClient::new(patient_channel(members[1].client).await);
        while let Err(status) = cluster.member_remove(MemberRemoveRequest { id }).await {
            assert_eq!(status.message(), "etcdserver: unhealthy cluster");
            read_fresh(&mut reader, &newest).await;
        }
        members[0].ended().await;
        members.remove(0);
        for _ in 0..50 {
            read_fresh(&mut reader, &newest).await;
        }
    }
    is_done.store(true, Ordering::SeqCst);
    check_events(&mut watch, &writer.await.unwrap()).await;
}

/// Makes a read, which must be at least as new as the last put that was acknowledged before it.
async fn read_fresh(reader: &mut KvClient<Channel>, newest: &AtomicI64) {
    let before = newest.load(Ordering::SeqCst);
    let get = RangeRequest { key: format!("{PREFIX}1").into(), ..RangeRequest::default() };
    let revision = reader.range(get).await.unwrap().into_inner().header.unwrap().revision;
    assert!(revision >= before, "read at {revision}, after a put at {before}");
    short_pause().await;
}

/// A hundred watches of one prefix, which start at different revisions before the proxy did, need
/// only one watch on the members. The older events are read once for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watches_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let members = started(dir.path()).await;
    let direct = Endpoint::from_shared(members[0].url()).unwrap().connect().await.unwrap();
    let mut client = KvClient::new(direct);
    let mut first = 0;
    for number in 0..100 {
        let put = PutRequest { key: format!("{PREFIX}{number}").into(), ..PutRequest::default() };
        let revision = client.put(put).await.unwrap().into_inner().header.unwrap().revision;
        if number == 0 {
            first = revision;
        }
    }
    let proxy = Proxy::start(dir.path(), &members, &[]).await;
    let mut watches = Vec::new();
    for number in 0..100_i64 {
        let mut watch = proxy.watch(prefix_watch(first + number)).await;
        assert!(watch.next().await.created);
        watches.push(watch);
    }
    let last = client.put(PutRequest { key: PREFIX.into(), ..PutRequest::default() }).await;
    let last = last.unwrap().into_inner().header.unwrap().revision;
    for (number, watch) in (0_i64..).zip(&mut watches) {
        let mut seen = Vec::new();
        while seen.last() != Some(&last) {
            let response = watch.next().await;
            seen.extend(response.events.iter().map(|it| it.kv.as_ref().unwrap().mod_revision));
        }
        let expected: Vec<i64> = (first + number..=last).collect();
        assert_eq!(seen, expected, "the watch that starts at {number}");
    }
    let begin = Instant::now();
    loop {
        let mut upstream = 0;
        for member in &members {
            upstream += watchers_of(member).await;
        }
        assert!(upstream < 10, "{upstream} watches upstream, each with its own events");
        if upstream == 1 {
            break;
        }
        assert!(begin.elapsed() < TIMEOUT, "{upstream} watches upstream");
        short_pause().await;
    }
}

/// Accepts connections, and answers each with bytes that mean nothing. Some of them begin like
/// HTTP/2. Returns its URL.
async fn garbage(seed: u64) -> String {
    use rand::{RngExt as _, SeedableRng as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // An empty frame of settings, and the confirmation of the client's.
            let mut bytes = vec![0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];
            bytes.truncate(if random.random_bool(0.5) { 18 } else { 0 });
            bytes.extend((0..random.random_range(1..2000)).map(|_| random.random::<u8>()));
            tokio::spawn(async move {
                let mut read = [0; 1024];
                let _ = stream.read(&mut read).await;
                let _ = stream.write_all(&bytes).await;
                let _ = tokio::time::timeout(TIMEOUT, stream.read(&mut read)).await;
            });
        }
    });
    url
}

/// One of the endpoints returns garbage. Clients create thousands of watches, and some read
/// nothing while many bytes of events are written. Another client must not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_peers_do_not_disturb_a_client() {
    let seed = std::env::var("CLEARLANE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let members = started(dir.path()).await;
    let mut endpoints: Vec<String> = members.iter().map(Program::url).collect();
    endpoints.insert(0, garbage(seed).await);
    let mut proxy = Proxy::start_before(dir.path(), endpoints, &["--cache-prefix", PREFIX]).await;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(proxy.watch(prefix_watch(0)).await);
    }
    // This client creates watches for as long as the proxy takes the requests, and reads nothing.
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", proxy.port)).unwrap();
    let (requests, receiver) = mpsc::channel(16);
    let mut flood = WatchClient::new(endpoint.connect().await.unwrap());
    let flooding = tokio::spawn(async move {
        for _ in 0..20_000 {
            let create = RequestUnion::CreateRequest(prefix_watch(0));
            let create = WatchRequest { request_union: Some(create) };
            if requests.send(create).await.is_err() {
                break;
            }
        }
        requests
    });
    let _unread = flood.watch(ReceiverStream::new(receiver)).await.unwrap();
    let mut good = proxy.watch(prefix_watch(0)).await;
    assert!(good.next().await.created);
    let mut client = KvClient::new(proxy.connect().await);
    let (mut last, mut longest) = (0, Duration::ZERO);
    for number in 0..500 {
        let put = PutRequest {
            key: format!("{PREFIX}{}", number % 50).into(),
            value: vec![b'v'; 32 << 10].into(),
            ..PutRequest::default()
        };
        last = client.put(put).await.unwrap().into_inner().header.unwrap().revision;
        let asked = Instant::now();
        let get = RangeRequest { key: format!("{PREFIX}1").into(), ..RangeRequest::default() };
        let read = client.range(get).await.unwrap().into_inner();
        longest = longest.max(asked.elapsed());
        assert!(read.header.unwrap().revision >= last);
    }
    let mut seen = 0;
    while seen < last {
        let response = good.next().await;
        seen = response.events.last().map_or(seen, |it| it.kv.as_ref().unwrap().mod_revision);
    }
    assert!(longest < Duration::from_secs(5), "a read took {longest:?}");
    assert_eq!(proxy.process.try_wait().unwrap(), None, "the proxy runs");
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.process.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 512 << 10, "{kib} KiB of memory");
    let log = std::fs::read_to_string(dir.path().join("proxy.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
    flooding.abort();
}

/// Returns the number of watches from the member's metrics page.
async fn watchers_of(member: &Program) -> u64 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", member.client)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let line = page.lines().find_map(|it| it.strip_prefix("etcd_debugging_mvcc_watcher_total "));
    line.unwrap().trim().parse().unwrap()
}

/// Many clients keep the same lease alive, and all of them get responses. The lease ends when they
/// stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lives_as_long_as_its_clients_ask() {
    let dir = tempfile::tempdir().unwrap();
    let members = started(dir.path()).await;
    let proxy = Proxy::start(dir.path(), &members, &[]).await;
    let mut client = LeaseClient::new(proxy.connect().await);
    let grant = LeaseGrantRequest { ttl: 3, id: 7 };
    assert_eq!(client.lease_grant(grant).await.unwrap().into_inner().ttl, 3);
    let mut put = KvClient::new(proxy.connect().await);
    let key = PutRequest { key: "leased".into(), lease: 7, ..PutRequest::default() };
    put.put(key).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..20 {
        let (requests, receiver) = mpsc::channel(4);
        requests.send(LeaseKeepAliveRequest { id: 7 }).await.unwrap();
        let stream = ReceiverStream::new(receiver);
        let answers = client.lease_keep_alive(stream).await.unwrap().into_inner();
        streams.push((requests, answers));
    }
    for (_, answers) in &mut streams {
        assert_eq!(answers.message().await.unwrap().unwrap().ttl, 3);
    }
    // A missing lease has the TTL 0, as without the proxy.
    let (requests, answers) = &mut streams[0];
    requests.send(LeaseKeepAliveRequest { id: 99 }).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap().ttl, 0);
    // For longer than the TTL, one client keeps the lease alive.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        requests.send(LeaseKeepAliveRequest { id: 7 }).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!((answer.id, answer.ttl), (7, 3));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let last = Instant::now();
    loop {
        let get = RangeRequest { key: "leased".into(), ..RangeRequest::default() };
        let found = put.range(get).await.unwrap().into_inner();
        if found.kvs.is_empty() {
            break;
        }
        assert!(last.elapsed() < TIMEOUT, "the lease does not end");
        short_pause().await;
    }
    assert!(last.elapsed() >= Duration::from_secs(2), "it lived {:?}", last.elapsed());
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..PutRequest::default() }
}

/// Makes the user `app`, who may use the keys below the prefix, and turns auth on.
async fn enable_auth(channel: Channel) {
    let mut auth = AuthClient::new(channel);
    for name in ["root", "app"] {
        let (name, role) = (name.to_owned(), name.to_owned());
        let password = format!("{name}'s password");
        let user = AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
        auth.user_add(user).await.unwrap();
        auth.role_add(AuthRoleAddRequest { name: role.clone() }).await.unwrap();
        auth.user_grant_role(AuthUserGrantRoleRequest { user: name, role }).await.unwrap();
    }
    let perm = Some(Permission {
        perm_type: Type::Readwrite as i32,
        key: PREFIX.into(),
        range_end: "/proxied0".into(),
    });
    let grant = AuthRoleGrantPermissionRequest { name: "app".to_owned(), perm };
    auth.role_grant_permission(grant).await.unwrap();
    auth.auth_enable(AuthEnableRequest {}).await.unwrap();
}

/// Waits until a member with auth answers a linearizable read, which has no user.
async fn until_it_reads(member: &Program) {
    let get = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    let begin = Instant::now();
    loop {
        let rejected = match crate::program::kv(member.client).await {
            Ok(mut client) => client.range(get.clone()).await.err(),
            Err(_) => None,
        };
        if rejected.as_ref().is_some_and(|it| it.message() == "etcdserver: user name is empty") {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "{rejected:?} {}", member.log());
        short_pause().await;
    }
}

/// A client with a mapped certificate has the permissions of its user. It notices nothing when
/// members restart and forget the tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_stands_for_its_user() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = started(dir.path()).await;
    enable_auth(crate::program::connect(members[0].client).await.unwrap()).await;
    let authority = Authority::new(dir.path(), "authority");
    let server = authority.pair("proxy", &["localhost"]);
    let (password, users) = (dir.path().join("app.password"), dir.path().join("users"));
    std::fs::write(&password, "app's password\n").unwrap();
    std::fs::set_permissions(&password, Permissions::from_mode(0o644)).unwrap();
    std::fs::write(&users, "\"the app\" app app.password\n").unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let flags = [
        ["--cert-file".to_owned(), text(&server.certificate.path)],
        ["--key-file".to_owned(), text(&server.key.path)],
        ["--trusted-ca-file".to_owned(), text(authority.certificate())],
        ["--client-cert-users".to_owned(), text(&users)],
    ];
    let flags: Vec<&str> = flags.iter().flatten().map(String::as_str).collect();
    let proxy = Proxy::start(dir.path(), &members, &flags).await;
    let connect = async |name: &str| {
        let info = authority.caller(authority.pair(name, &["localhost"]));
        let dialer = Dialer::new(&info, &ProtocolConfig::default()).unwrap();
        dialer.connect(&format!("https://localhost:{}", proxy.port)).await.unwrap()
    };
    let mut stranger = KvClient::new(connect("stranger").await);
    let status = stranger.put(put("/proxied/a")).await.unwrap_err();
    assert_eq!(status.message(), "etcdserver: user name is empty");
    let mut app = KvClient::new(connect("the app").await);
    app.put(put("/proxied/a")).await.unwrap();
    assert_eq!(app.put(put("/other")).await.unwrap_err().code(), Code::PermissionDenied);
    for member in &mut members {
        member.kill();
        member.start();
        until_it_reads(member).await;
    }
    let begin = Instant::now();
    // A put that was in flight when its connection was lost is not repeated.
    while let Err(status) = app.put(put("/proxied/a")).await {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(begin.elapsed() < TIMEOUT, "{status:?}");
        short_pause().await;
    }
    let log = std::fs::read_to_string(dir.path().join("proxy.log")).unwrap();
    assert!(log.contains("other users may read a password file"), "{log}");
    assert!(!log.contains("app's password"), "{log}");
}
