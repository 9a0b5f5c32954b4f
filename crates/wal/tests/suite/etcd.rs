//! Tests the log with etcd: its dump tool reads our log, we read etcd's log, and etcd appends to
//! ours.
//!
//! `tests/compat/dump-logs/run` builds etcd's programs and runs these tests. To run them by hand:
//!
//! ```text
//! CLEARLANE_ETCD_DUMP_LOGS=.../etcd-dump-logs CLEARLANE_ETCD=.../etcd \
//!     cargo test -p clearlane-wal --test suite -- --ignored etcd::
//! ```

use std::io::{Read, Write};
use std::iter;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, PutRequest, RequestHeader};
use clearlane_wal::files::OsFileSystem;
use clearlane_wal::{Append, Contents, Options, Wal, read, valid_snapshots};
use clearlane_wal::{
    ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, MemberContext, Metadata,
    WalSnapshot,
};

const MEMBER: u64 = 0x2e12_59d4_15f2_a040;
const LEARNER: u64 = 0xac0d_db74_0cd3_2529;
const METADATA: Metadata = Metadata { node_id: MEMBER, cluster_id: 0x0482_76a8_f75b_6a87 };

fn program(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable);
    path.unwrap_or_else(|| panic!("{variable} must name etcd's program")).into()
}

/// Returns a data directory like etcd's, and the path of the log in it.
fn data_dir() -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join("member/snap")).unwrap();
    let wal = home.path().join("member/wal");
    (home, wal)
}

fn put(index: u64, value: &str) -> Entry {
    let put = PutRequest {
        key: format!("key{index}").into(),
        value: value.to_owned().into(),
        ..Default::default()
    };
    let header = RequestHeader { id: 1000 + index, ..Default::default() };
    let request =
        InternalRaftRequest { header: Some(header), put: Some(put), ..Default::default() };
    Entry { kind: EntryKind::Normal, term: 2, index, data: request.encode_to_vec().into() }
}

fn change(index: u64, kind: ConfChangeKind, node_id: u64, context: Option<MemberContext>) -> Entry {
    let context = context.map(|context| context.encode().into()).unwrap_or_default();
    let change = ConfChange { id: 0, kind, node_id, context };
    let term = if index == 1 { 1 } else { 2 };
    Entry { kind: EntryKind::ConfChange, term, index, data: change.encode().into() }
}

/// Returns the history of a small cluster: a no-op, puts, and a learner that is added, updated,
/// promoted and removed.
fn history() -> Vec<Append> {
    let member = |id, url: &str| MemberContext {
        id,
        peer_urls: vec![url.to_owned()],
        ..MemberContext::default()
    };
    let founder =
        MemberContext { name: "golden".to_owned(), ..member(MEMBER, "http://127.0.0.1:1") };
    let learner = MemberContext { is_learner: true, ..member(LEARNER, "http://127.0.0.1:2") };
    let promotion =
        MemberContext { id: LEARNER, is_promote: Some(true), ..MemberContext::default() };
    let noop = Entry { kind: EntryKind::Normal, term: 2, index: 2, data: "".into() };
    let state = |term, vote, commit| Some(HardState { term, vote, commit });
    let one = |entry: Entry| {
        let state = state(2, MEMBER, entry.index);
        Append { snapshot: None, entries: vec![entry], hard_state: state }
    };
    use ConfChangeKind::{AddLearnerNode, AddNode, RemoveNode, UpdateNode};
    vec![
        Append {
            entries: vec![change(1, AddNode, MEMBER, Some(founder))],
            hard_state: state(1, 0, 1),
            ..Append::default()
        },
        Append { hard_state: state(2, MEMBER, 1), ..Append::default() },
        one(noop),
        one(put(3, "a value")),
        one(put(4, &"a long value ".repeat(100))),
        one(change(5, AddLearnerNode, LEARNER, Some(learner))),
        one(change(6, UpdateNode, LEARNER, Some(member(LEARNER, "http://127.0.0.1:3")))),
        one(put(7, "in another segment")),
        one(change(8, AddNode, LEARNER, Some(promotion))),
        one(change(9, RemoveNode, LEARNER, None)),
        one(put(10, "<&>")),
    ]
}

/// Writes the history into segments of 1 KiB, so that there are several.
fn write_history(dir: &Path) -> Vec<Append> {
    let options = Options { segment_bytes: 1024, segments_max: None, ..Options::default() };
    let mut wal = Wal::create(Arc::new(OsFileSystem), dir, METADATA, options, &[], None).unwrap();
    let history = history();
    for append in &history {
        wal.append_all(append).unwrap();
        wal.sync().unwrap();
    }
    assert!(wal.segment_count() > 1);
    history
}

fn dump(arguments: &[&str], data: &Path) -> Vec<String> {
    let output = Command::new(program("CLEARLANE_ETCD_DUMP_LOGS"))
        .args(arguments)
        .arg(data)
        .output()
        .unwrap();
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complaint}");
    // Go's text form of messages contains one or two spaces at random.
    said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
#[ignore = "needs etcd-dump-logs: run tests/compat/dump-logs/run"]
fn the_dump_tool_prints_every_record_that_was_written() {
    let (home, dir) = data_dir();
    let history = write_history(&dir);
    let lines = dump(&["-raw"], home.path());
    let of = |kind: &str| {
        lines.iter().filter(|line| line.starts_with(kind)).cloned().collect::<Vec<_>>()
    };
    let entries: Vec<String> = history
        .iter()
        .flat_map(|append| &append.entries)
        .map(|entry| {
            let kind = match entry.kind {
                EntryKind::Normal => "",
                _ => " Type:EntryConfChange",
            };
            format!("Entry: Term:{} Index:{}{kind}", entry.term, entry.index)
        })
        .collect();
    let printed = of("Entry:");
    assert_eq!(printed.len(), entries.len(), "{lines:#?}");
    for (printed, expected) in printed.iter().zip(&entries) {
        let rest = printed.strip_prefix(expected.as_str());
        assert!(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')), "{printed}");
    }
    let text = |state: HardState| {
        format!("HardState: term:{} vote:{} commit:{}", state.term, state.vote, state.commit)
    };
    let mut states: Vec<String> = of("HardState:");
    // A segment starts with the last state of the previous segment, so states are repeated.
    states.dedup();
    assert_eq!(
        states,
        history.iter().filter_map(|append| append.hard_state.map(text)).collect::<Vec<_>>()
    );
    let metadata =
        format!("Metadata: NodeID:{} ClusterID:{}", METADATA.node_id, METADATA.cluster_id);
    let segments = of("CRC:").len();
    assert!(segments > 1);
    assert_eq!(of("Metadata:"), vec![metadata; segments]);
    assert_eq!(of("Snapshot:"), ["Snapshot: index:0 term:0"]);
    assert!(lines.iter().any(|line| line.contains("in another segment")), "{lines:#?}");
}

#[test]
#[ignore = "needs etcd-dump-logs: run tests/compat/dump-logs/run"]
fn the_dump_tool_decodes_what_was_written() {
    let (home, dir) = data_dir();
    let history = write_history(&dir);
    let lines = dump(&[], home.path());
    let count: usize = history.iter().map(|append| append.entries.len()).sum();
    assert!(lines.contains(&format!("WAL entries: {count}")), "{lines:#?}");
    let ids = format!("nodeID={:x} clusterID={:x}", METADATA.node_id, METADATA.cluster_id);
    assert!(lines.iter().any(|line| line.starts_with(&ids)), "{lines:#?}");
    // The columns are term, index, type and contents. Version 3.7.1 prints memory addresses as term
    // and index, so only the type and the contents are compared.
    let rows: Vec<&String> =
        lines.iter().skip_while(|line| !line.starts_with("term index")).collect();
    let kind = |kind: &str| rows.iter().filter(|row| row.split(' ').nth(2) == Some(kind)).count();
    assert_eq!((kind("conf"), kind("norm")), (5, count - 5), "{lines:#?}");
    for expected in [
        "method=ConfChangeAddNode id=2e1259d415f2a040",
        "method=ConfChangeAddLearnerNode id=ac0ddb740cd32529",
        "method=ConfChangeUpdateNode id=ac0ddb740cd32529",
        "method=ConfChangeAddNode id=ac0ddb740cd32529",
        "method=ConfChangeRemoveNode id=ac0ddb740cd32529",
        "key7",
        "in another segment",
    ] {
        assert!(rows.iter().any(|row| row.contains(expected)), "{expected}: {lines:#?}");
    }
}

/// A running etcd. When it is dropped, it gets a signal that lets it write its engine's last
/// commit.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let kill_status = Command::new("kill").arg(self.process.id().to_string()).status();
        if !kill_status.is_ok_and(|kill_status| kill_status.success()) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// Returns two ports that were just free, below the range that the system uses for connections.
/// This process tries no port twice.
fn free_ports() -> [u16; 2] {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = 10_000 + process::id() % 2000 * 10;
    let tried = iter::repeat_with(|| first + TRIED.fetch_add(1, Ordering::Relaxed));
    let tried = tried.map(|port| u16::try_from(port).unwrap());
    let mut free = tried.filter(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    [free.next().unwrap(), free.next().unwrap()]
}

impl Server {
    fn start(data: &Path, [port, peers]: [u16; 2]) -> Server {
        let (client, peer) =
            (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
        let process = Command::new(program("CLEARLANE_ETCD"))
            .args(["--name", "golden", "--log-level", "error", "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("golden={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Server { process, port };
        while !server
            .ask("/v3/maintenance/status", "{}")
            .is_some_and(|answer| answer.contains("\"leader\""))
        {
            assert!(server.process.try_wait().unwrap().is_none(), "etcd has stopped");
            std::thread::yield_now();
        }
        server
    }

    /// Sends a request to the JSON gateway. Returns `None` if no server responds with status 200.
    fn ask(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    /// Puts a key and a value, which are both in base64.
    fn put(&self, key: &str, value: &str) {
        self.ask("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#)).unwrap();
    }
}

/// Reads a log from its newest valid snapshot.
fn contents(dir: &Path) -> (WalSnapshot, Contents) {
    let start = valid_snapshots(&OsFileSystem, dir).unwrap().pop().unwrap();
    let contents = read(&OsFileSystem, dir, (start.index, start.term)).unwrap();
    (start, contents)
}

fn puts(contents: &Contents) -> Vec<(Vec<u8>, Vec<u8>)> {
    let requests = contents.entries.iter().filter(|entry| entry.kind == EntryKind::Normal);
    let puts =
        requests.filter_map(|entry| InternalRaftRequest::decode(&entry.data[..]).unwrap().put);
    puts.map(|put| (put.key.to_vec(), put.value.to_vec())).collect()
}

#[test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
fn etcd_goes_on_with_its_log_as_we_write_it() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let dir = data.join("member/wal");
    let ports = free_ports();
    let server = Server::start(&data, ports);
    server.put("YQ==", "MQ==");
    server.put("Yg==", "Mg==");
    server
        .ask("/v3/cluster/member/add", r#"{"peerURLs":["http://127.0.0.1:9"],"isLearner":true}"#)
        .unwrap();
    drop(server);
    let (start, old) = contents(&dir);
    assert_eq!(puts(&old), [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())]);

    // Replaces etcd's log with our own log of the same entries, which has a snapshot and several
    // segments.
    std::fs::rename(&dir, home.path().join("as-etcd-wrote-it")).unwrap();
    let options = Options { segment_bytes: 512, segments_max: None, ..Options::default() };
    let files = Arc::new(OsFileSystem);
    let mut wal = Wal::create(files, &dir, old.metadata, options, &[], None).unwrap();
    assert_eq!(start, WalSnapshot::default());
    wal.save(&old.entries, Some(&old.hard_state)).unwrap();
    wal.sync().unwrap();
    let (index, term) =
        old.entries.iter().find(|entry| entry.index == 2).map(|e| (e.index, e.term)).unwrap();
    let members = ConfState { voters: vec![old.metadata.node_id], ..ConfState::default() };
    let snapshot = Some(WalSnapshot { index, term, conf_state: Some(members) });
    wal.append_all(&Append { snapshot, ..Append::default() }).unwrap();
    wal.sync().unwrap();
    assert!(wal.segment_count() > 1);
    wal.close().unwrap();

    let server = Server::start(&data, ports);
    let all = server.ask("/v3/kv/range", r#"{"key":"YQ==","range_end":"eg=="}"#).unwrap();
    assert!(
        all.contains("\"MQ==\"") && all.contains("\"Mg==\"") && all.contains("\"count\":\"2\""),
        "{all}"
    );
    let members = server.ask("/v3/cluster/member/list", "{}").unwrap();
    assert!(members.contains("\"isLearner\":true"), "{members}");
    drop(server);

    // The entries that etcd has appended follow our entries.
    let (start, new) = contents(&dir);
    assert_eq!((start.index, start.term), (index, term));
    let known = &old.entries[index as usize..];
    assert!(new.entries.starts_with(known) && new.entries.len() > known.len());
    assert!(new.hard_state.term > old.hard_state.term);
    assert!(Wal::open(Arc::new(OsFileSystem), &dir, (index, term), options).is_ok());
}

#[test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
fn etcds_lock_is_respected() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let dir = data.join("member/wal");
    let server = Server::start(&data, free_ports());
    let open = || Wal::open(Arc::new(OsFileSystem), &dir, (0, 0), Options::default());
    let refused = open();
    assert!(matches!(refused, Err(clearlane_wal::Error::Locked { .. })), "{refused:?}");
    drop(server);
    assert!(open().is_ok());
}
