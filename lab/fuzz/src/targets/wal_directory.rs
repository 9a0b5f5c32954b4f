//! A directory with a write-ahead log. The log is rejected, or it opens with its readable records,
//! without a torn end. An entry that an opened log accepts can be read back.
//!
//! ```text
//!   segment: index in its name │ steps          see `put_step`
//! ```
//!
//! A record has a correct checksum, unless a step has changed the running checksum or has removed
//! the records before it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_wal::files::{FileSystem, SimulatedDisk, create_with};
use clearlane_wal::wire::{Record, RecordKind};
use clearlane_wal::{
    ConfState, Entry, EntryKind, HardState, Metadata, Options, Wal, WalSnapshot, read,
    valid_snapshots,
};

use crate::input::Input;

const SEGMENTS_MAX: u64 = 4;
const OPTIONS: Options = Options {
    segment_bytes: 2048,
    segments_max: Some(1),
    etcd_wrote_last: false,
    accept_loss: false,
};

pub fn target(data: &[u8]) {
    open_all(data);
}

/// Tries to open the log at its start and at each snapshot that it lists. Returns the number of
/// positions at which the log opens.
pub fn open_all(data: &[u8]) -> usize {
    let disk = SimulatedDisk::new(["/member"]);
    let dir = PathBuf::from("/member/wal");
    disk.create_dir(&dir).expect("it is new");
    let mut input = Input::new(data);
    let mut crc = 0;
    for sequence in 0..SEGMENTS_MAX {
        if sequence > 0 && input.is_empty() {
            break;
        }
        let path = dir.join(format!("{sequence:016x}-{:016x}.wal", input.number()));
        let bytes = segment(&mut input, &mut crc);
        create_with(&disk, &path, &bytes).expect("it is new");
    }
    let mut starts = BTreeSet::from([(0, 0)]);
    starts.extend(valid_snapshots(&disk, &dir).iter().flatten().map(|at| (at.index, at.term)));
    starts.into_iter().filter(|start| open(&disk.after_kill(), &dir, *start)).count()
}

/// Returns whether the log opens from `start`.
fn open(disk: &SimulatedDisk, dir: &Path, start: (u64, u64)) -> bool {
    let files = || Arc::new(disk.clone());
    let Ok(contents) = read(disk, dir, start) else {
        assert!(Wal::open(files(), dir, start, OPTIONS).is_err(), "what cannot be read opens");
        return false;
    };
    let (mut wal, opened) = match Wal::open(files(), dir, start, OPTIONS) {
        // `read` treats lost records as a torn end. `Wal::open` reports them as a loss.
        Err(error) if error.is_loss() => return false,
        opened => opened.expect("what can be read can be opened"),
    };
    assert_eq!(opened, contents);
    let last = contents.entries.last();
    let term = last.map_or(contents.hard_state.term, |entry| entry.term).max(1);
    let index = wal.last_index().saturating_add(1);
    let entry = Entry { kind: EntryKind::Normal, term, index, data: "more".into() };
    let appended = wal.save(std::slice::from_ref(&entry), None).is_ok();
    wal.close().expect("the disk takes it");
    let again = read(disk, dir, start).expect("what was appended to can be read");
    if appended {
        assert_eq!(again.entries.last(), Some(&entry));
    } else {
        assert_eq!(again, contents);
    }
    true
}

fn segment(input: &mut Input<'_>, crc: &mut u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_record(&mut bytes, crc, RecordKind::Crc, None);
    put_record(&mut bytes, crc, RecordKind::Metadata, Some(&Metadata::default().encode()));
    while !input.is_empty() {
        if !put_step(&mut bytes, crc, input) {
            break;
        }
    }
    bytes
}

/// Appends a record or other bytes, or changes the running checksum. Returns whether the segment
/// continues.
fn put_step(bytes: &mut Vec<u8>, crc: &mut u32, input: &mut Input<'_>) -> bool {
    match input.choice(10) {
        0 => return false,
        1 => bytes.extend_from_slice(input.string()),
        2 => bytes.resize(bytes.len().next_multiple_of(512) + 8 * input.choice(4), 0),
        3 => *crc ^= u32::from(input.byte()),
        // Removes all bytes of the segment so far, including its first two records.
        4 => bytes.clear(),
        5 => {
            let kinds = [RecordKind::Entry, RecordKind::State, RecordKind::Snapshot];
            put_record(bytes, crc, kinds[input.choice(3)], Some(input.string()));
        }
        6 | 7 => {
            let kind = [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2];
            let kind = kind[input.choice(3)];
            let (term, index) = (input.number(), input.number());
            let data = input.string().to_vec().into();
            let entry = Entry { kind, term, index, data }.encode();
            put_record(bytes, crc, RecordKind::Entry, Some(&entry));
        }
        8 => {
            let (term, vote, commit) = (input.number(), input.number(), input.number());
            let state = HardState { term, vote, commit }.encode();
            put_record(bytes, crc, RecordKind::State, Some(&state));
        }
        _ => {
            let (index, term) = (input.number(), input.number());
            let voters = vec![input.number()];
            let conf_state = (index > 0).then(|| ConfState { voters, ..ConfState::default() });
            let snapshot = WalSnapshot { index, term, conf_state }.encode();
            put_record(bytes, crc, RecordKind::Snapshot, Some(&snapshot));
        }
    }
    true
}

/// Appends a record with its frame. Its checksum continues the running checksum `crc`.
fn put_record(bytes: &mut Vec<u8>, crc: &mut u32, kind: RecordKind, data: Option<&[u8]>) {
    *crc = crc32c::crc32c_append(*crc, data.unwrap_or_default());
    let mut record = Vec::new();
    Record { kind, crc: *crc, data }.encode_to(&mut record);
    let padding = record.len().next_multiple_of(8) - record.len();
    let flag = if padding > 0 { (0x80 | padding as u64) << 56 } else { 0 };
    bytes.extend_from_slice(&(flag | record.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&record);
    bytes.resize(bytes.len() + padding, 0);
}
