//! Helpers of the suites: a log on a simulated disk, and entries for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_wal::files::{FileSystem, SimulatedDisk};
use clearlane_wal::{Append, Contents, Options, Wal};
use clearlane_wal::{ConfState, Entry, EntryKind, HardState, Metadata, Result, WalSnapshot};

pub(crate) const METADATA: Metadata = Metadata { node_id: 0x2e, cluster_id: 0x0cd5_81f7 };

pub(crate) fn dir() -> PathBuf {
    PathBuf::from("/member/wal")
}

pub(crate) fn disk() -> SimulatedDisk {
    SimulatedDisk::new(["/member"])
}

/// Returns options with segments of this size. All segments are kept until a purge, which leaves
/// only one if no other segment is needed.
pub(crate) fn options(segment_bytes: u64) -> Options {
    Options { segment_bytes, segments_max: Some(1), ..Options::default() }
}

pub(crate) fn create(disk: &SimulatedDisk, options: Options) -> Result<Wal> {
    Wal::create(Arc::new(disk.clone()), &dir(), METADATA, options, &[], None)
}

pub(crate) fn open(disk: &SimulatedDisk, start: (u64, u64)) -> Result<(Wal, Contents)> {
    Wal::open(Arc::new(disk.clone()), &dir(), start, options(4096))
}

pub(crate) fn save_snapshot(wal: &mut Wal, snapshot: WalSnapshot) -> Result<()> {
    wal.append_all(&Append { snapshot: Some(snapshot), ..Append::default() })?;
    wal.sync()
}

pub(crate) fn entry(term: u64, index: u64, data: &str) -> Entry {
    Entry { kind: EntryKind::Normal, term, index, data: data.to_owned().into() }
}

pub(crate) fn state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

pub(crate) fn snapshot(index: u64, term: u64) -> WalSnapshot {
    let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
    WalSnapshot { index, term, conf_state: Some(conf_state) }
}

/// Returns the names of the segments in order.
pub(crate) fn segments(disk: &dyn FileSystem, dir: &Path) -> Vec<String> {
    let names = disk.list(dir).unwrap().into_iter();
    names.filter(|name| name.ends_with(".wal")).collect()
}

pub(crate) fn bytes(disk: &dyn FileSystem, path: &Path) -> Vec<u8> {
    let file = disk.open_to_read(path).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Adds or replaces a file.
pub(crate) fn put_file(disk: &SimulatedDisk, path: &Path, bytes: &[u8]) {
    let _ = disk.remove(path);
    let mut file = disk.create(path).unwrap();
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
}

pub(crate) fn disk_with(segments: &[(String, Vec<u8>)]) -> SimulatedDisk {
    let disk = disk();
    disk.create_dir(&dir()).unwrap();
    for (name, bytes) in segments {
        put_file(&disk, &dir().join(name), bytes);
    }
    disk
}

pub(crate) fn contents_of(disk: &SimulatedDisk) -> Vec<(String, Vec<u8>)> {
    let names = segments(disk, &dir()).into_iter();
    names.map(|name| (name.clone(), bytes(disk, &dir().join(name)))).collect()
}

/// Returns the length of the records in a segment without the zeros that follow them.
pub(crate) fn written(bytes: &[u8]) -> usize {
    frames(bytes).last().map_or(0, |(_, end)| *end)
}

/// Returns the start and end of each frame of a segment. Only the length fields are read.
pub(crate) fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut frames, mut from) = (Vec::new(), 0);
    while let Some(field) = bytes.get(from..from + 8) {
        let field = u64::from_le_bytes(field.try_into().unwrap());
        if field == 0 {
            break;
        }
        let length = (field & ((1 << 56) - 1)) as usize;
        let end = from + 8 + length.next_multiple_of(8);
        frames.push((from, end));
        from = end;
    }
    frames
}

/// Returns the number in the environment variable `name`, such as a seed, or `default`.
pub(crate) fn number_or(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |number| number.parse().unwrap())
}
