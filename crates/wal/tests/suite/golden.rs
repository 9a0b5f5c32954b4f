//! The bytes of whole segments: two that are written here, and one that etcd 3.7.1 wrote.
//!
//! `UPDATE_GOLDENFILES=1 cargo test -p clearlane-wal golden` writes the dumps again. Check the
//! difference before you commit it. `tests/golden/etcd-3.7.1.wal` is the log of a new cluster with
//! one member. The cluster received three puts, a learner that was added, updated and removed, and
//! one more put. The zeros after its last record were cut off.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use clearlane_proto::{Message, etcdserverpb};
use clearlane_wal::wire::{Record, RecordKind};
use clearlane_wal::{
    ConfChange, ConfChangeKind, Entry, EntryKind, MemberContext, Metadata, WalSnapshot,
};
use clearlane_wal::{Contents, read, valid_snapshots};

use crate::support::*;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn compare(name: &str, text: &str) {
    let path = golden(name);
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "{name} differs");
}

/// Returns one line of text for each frame, followed by its bytes.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (from, end) in frames(bytes) {
        let length =
            (u64::from_le_bytes(bytes[from..from + 8].try_into().unwrap()) & 0xffff) as usize;
        let record = Record::decode(&bytes[from + 8..from + 8 + length]).unwrap();
        writeln!(text, "@{from} {}", describe(&record)).unwrap();
        for row in bytes[from..end].chunks(16) {
            let words: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "    {}", words.join(" ")).unwrap();
        }
    }
    text
}

fn describe(record: &Record<'_>) -> String {
    let data = record.data.unwrap_or_default();
    match record.kind {
        RecordKind::Crc => format!("crc {:08x}", record.crc),
        RecordKind::Metadata => format!("{:?}", Metadata::decode(data).unwrap()),
        RecordKind::State => {
            let state = clearlane_wal::HardState::decode(data).unwrap();
            format!("{state:?}")
        }
        RecordKind::Snapshot => format!("{:?}", WalSnapshot::decode(data).unwrap()),
        RecordKind::Entry => describe_entry(&Entry::decode(data).unwrap()),
    }
}

fn describe_entry(entry: &Entry) -> String {
    let Entry { kind, term, index, data } = entry;
    let what = match kind {
        EntryKind::Normal if data.is_empty() => "nothing".to_owned(),
        EntryKind::Normal => match etcdserverpb::InternalRaftRequest::decode(&data[..]) {
            Ok(request) => describe_request(&request),
            Err(_) => format!("{data:?}"),
        },
        EntryKind::ConfChange => {
            let change = ConfChange::decode(data).unwrap();
            let (kind, node) = (change.kind, change.node_id);
            format!("{kind:?} {node:x} {}", String::from_utf8_lossy(&change.context))
        }
        EntryKind::ConfChangeV2 => "several changes".to_owned(),
    };
    format!("entry {index} of term {term}: {what}")
}

fn describe_request(request: &etcdserverpb::InternalRaftRequest) -> String {
    if let Some(put) = &request.put {
        return format!("put {:?} = {:?}", put.key, put.value);
    }
    if let Some(version) = &request.cluster_version_set {
        return format!("cluster version {}", version.ver);
    }
    match &request.cluster_member_attr_set {
        Some(set) => format!("attributes of {:x}", set.member_id),
        None => "another request".to_owned(),
    }
}

#[test]
fn two_segments_have_these_bytes() {
    let disk = disk();
    let mut wal = create(&disk, options(1024)).unwrap();
    let context = MemberContext {
        id: 0x2e,
        peer_urls: vec!["http://127.0.0.1:2380".to_owned()],
        name: "a".to_owned(),
        ..MemberContext::default()
    };
    let add =
        ConfChange { node_id: 0x2e, context: context.encode().into(), ..ConfChange::default() };
    let bootstrap =
        Entry { kind: EntryKind::ConfChange, term: 1, index: 1, data: add.encode().into() };
    wal.save(&[bootstrap], Some(&state(1, 0, 1))).unwrap();
    // A state is written only by the next sync, so each state is synced before the next one.
    wal.sync().unwrap();
    wal.save(&[entry(2, 2, "")], Some(&state(2, 0x2e, 1))).unwrap();
    wal.sync().unwrap();
    wal.save(&[entry(2, 3, &"v".repeat(900))], Some(&state(2, 0x2e, 2))).unwrap();
    wal.sync().unwrap();
    save_snapshot(&mut wal, snapshot(2, 2)).unwrap();
    wal.save(&[entry(2, 4, "last")], None).unwrap();
    wal.close().unwrap();
    let mut text = String::new();
    for (name, bytes) in contents_of(&disk) {
        write!(text, "{name}, {} bytes\n{}", bytes.len(), dump(&bytes)).unwrap();
    }
    compare("two_segments", &text);
}

fn changes(contents: &Contents) -> Vec<ConfChange> {
    let changes = contents.entries.iter().filter(|entry| entry.kind == EntryKind::ConfChange);
    changes.map(|entry| ConfChange::decode(&entry.data).unwrap()).collect()
}

#[test]
fn a_log_of_etcd_is_read() {
    let recorded = fs::read(golden("etcd-3.7.1.wal")).unwrap();
    compare("etcd-3.7.1", &dump(&recorded));
    let name = "0000000000000000-0000000000000000.wal".to_owned();
    let disk = disk_with(&[(name, recorded.clone())]);
    assert_eq!(valid_snapshots(&disk, &dir()).unwrap(), [WalSnapshot::default()]);
    let contents = read(&disk, &dir(), (0, 0)).unwrap();
    let ids = contents.metadata;
    assert_eq!((ids.cluster_id, ids.node_id), (324_952_591_200_643_719, 3_319_814_642_761_637_952));
    let kinds: Vec<ConfChangeKind> = changes(&contents).iter().map(|change| change.kind).collect();
    use ConfChangeKind::{AddLearnerNode, AddNode, RemoveNode, UpdateNode};
    assert_eq!(kinds, [AddNode, AddLearnerNode, UpdateNode, RemoveNode]);
    // Decoding and encoding a context gives the same bytes.
    for change in changes(&contents).iter().filter(|change| !change.context.is_empty()) {
        let context = MemberContext::decode(&change.context).unwrap();
        assert_eq!(context.encode().as_bytes(), change.context);
        assert_eq!(context.id, change.node_id);
    }
    // Appending to etcd's log also works.
    let (mut wal, opened) = open(&disk, (0, 0)).unwrap();
    assert_eq!(opened, contents);
    let next = contents.entries.len() as u64 + 1;
    wal.save(&[entry(contents.hard_state.term, next, "ours")], None).unwrap();
    wal.close().unwrap();
    assert!(contents_of(&disk)[0].1.starts_with(&recorded));
    assert_eq!(read(&disk, &dir(), (0, 0)).unwrap().entries.len() as u64, next);
}
