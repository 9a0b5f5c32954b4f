//! Damages a log in many ways: cuts it at each byte of its last records, fills sectors with zeros,
//! flips each bit, and removes segments.
//!
//! Either the log opens with the first part of its contents, or opening fails. A flipped bit may
//! lose synced records only in the cases that `docs/log.md` lists, which the format cannot detect.

use clearlane_wal::files::SimulatedDisk;
use clearlane_wal::{Contents, read, valid_snapshots};
use clearlane_wal::{Entry, EntryKind, Error, HardState, Result};

use crate::support::*;

/// Returns a log of one segment with every kind of record. The last two records are an entry and a
/// state.
fn one_of_each() -> Vec<(String, Vec<u8>)> {
    let disk = disk();
    let mut wal = create(&disk, options(2048)).unwrap();
    let change = Entry { kind: EntryKind::ConfChange, ..entry(1, 1, "change") };
    wal.save(&[change, entry(1, 2, "")], Some(&state(1, 0, 2))).unwrap();
    wal.save(&[entry(2, 3, "")], Some(&state(2, 7, 2))).unwrap();
    save_snapshot(&mut wal, snapshot(2, 1)).unwrap();
    wal.save(&[entry(2, 4, "a put of something"), entry(2, 5, "")], None).unwrap();
    wal.save(&[entry(2, 6, "the last entry")], Some(&state(2, 7, 5))).unwrap();
    wal.sync().unwrap();
    contents_of(&disk)
}

fn read_all(disk: &SimulatedDisk) -> Result<Contents> {
    read(disk, &dir(), (0, 0))
}

/// Returns whether `found` is an earlier state of the log `whole`.
fn is_beginning(found: &Contents, whole: &Contents) -> bool {
    whole.entries.starts_with(&found.entries)
        && whole.snapshots.starts_with(&found.snapshots)
        && found.hard_state.commit <= whole.hard_state.commit
        && found.metadata == whole.metadata
}

/// Asserts that opening the log returns `found`, and that one more entry can be appended and read.
fn goes_on(disk: &SimulatedDisk, found: &Contents) {
    let (mut wal, opened) = open(disk, (0, 0)).unwrap();
    assert_eq!(&opened, found);
    let index = found.entries.len() as u64 + 1;
    wal.save(&[entry(9, index, "more")], None).unwrap();
    wal.close().unwrap();
    let read = read_all(disk).unwrap();
    assert_eq!(read.entries.last(), Some(&entry(9, index, "more")));
    assert_eq!(read.entries[..read.entries.len() - 1], found.entries);
}

#[test]
fn a_log_cut_at_any_byte_of_its_last_two_records_opens_to_a_beginning() {
    let log = one_of_each();
    let whole = read_all(&disk_with(&log)).unwrap();
    let frames = frames(&log[0].1);
    let (last, end) = frames[frames.len() - 1];
    for cut in frames[frames.len() - 2].0..end {
        let entries = if cut < last { 5 } else { 6 };
        // Here the file ends at the cut. The next test keeps the file's length and fills a sector
        // with zeros.
        let short = log[0].1[..cut].to_vec();
        let disk = disk_with(&[(log[0].0.clone(), short)]);
        let found = read_all(&disk).unwrap();
        assert!(is_beginning(&found, &whole), "cut at {cut}");
        assert_eq!(found.entries.len(), entries, "cut at {cut}");
        assert_eq!(found.hard_state, if cut < end { state(2, 7, 2) } else { whole.hard_state });
        goes_on(&disk, &found);
    }
}

#[test]
fn a_log_zeroed_from_any_sector_of_a_long_record_opens_to_a_beginning() {
    let disk = disk();
    let mut wal = create(&disk, options(16_384)).unwrap();
    wal.save(&[entry(1, 1, "short")], Some(&state(1, 0, 1))).unwrap();
    wal.save(&[entry(1, 2, &"long".repeat(1000)), entry(1, 3, "behind it")], None).unwrap();
    wal.sync().unwrap();
    let (name, bytes) = contents_of(&disk).remove(0);
    let (from, to) = frames(&bytes)[4..].iter().fold((usize::MAX, 0), |a, f| (a.0.min(f.0), f.1));
    for sector in from / 512 + 1..to.div_ceil(512) {
        let mut torn = bytes.clone();
        torn[sector * 512..(sector + 1) * 512].fill(0);
        let disk = disk_with(&[(name.clone(), torn.clone())]);
        let found = read_all(&disk).unwrap();
        assert!((1..3).contains(&found.entries.len()), "sector {sector}");
        goes_on(&disk, &found);
        let broken = bytes_of_broken(&disk, &name);
        assert_eq!(broken, torn[..broken.len()], "what was cut is kept aside");
    }
}

fn bytes_of_broken(disk: &SimulatedDisk, name: &str) -> Vec<u8> {
    bytes(disk, &dir().join(format!("{name}.broken")))
}

/// Flips each bit of the written part of segment `at`, one at a time. Asserts that the log is then
/// rejected as damaged, or that the first part of its contents is read. Returns the flips after
/// which a first part was read, as pairs of byte and bit.
fn flip_every_bit(log: &[(String, Vec<u8>)], at: usize) -> Vec<(usize, u8)> {
    let whole = read_all(&disk_with(log)).unwrap();
    let mut lost = Vec::new();
    for byte in 0..written(&log[at].1) {
        for bit in 0..8 {
            let mut log = log.to_vec();
            log[at].1[byte] ^= 1 << bit;
            let found = read_all(&disk_with(&log));
            match found {
                Err(Error::Corrupt { path, offset, .. }) => {
                    assert!(path.ends_with(&log[at].0) || at + 1 < log.len());
                    assert!(offset <= byte as u64 || !path.ends_with(&log[at].0));
                }
                Err(other) => panic!("byte {byte}, bit {bit}: {other}"),
                Ok(found) => {
                    assert!(is_beginning(&found, &whole), "byte {byte}, bit {bit}: {found:?}");
                    lost.push((byte, bit));
                }
            }
        }
    }
    lost
}

#[test]
fn every_flipped_bit_of_every_kind_of_record_is_noticed() {
    let log = one_of_each();
    assert_eq!(log.len(), 1);
    assert_eq!(flip_every_bit(&log, 0), []);
}

#[test]
fn every_flipped_bit_of_an_earlier_segment_is_noticed() {
    let disk = disk();
    let mut wal = create(&disk, options(256)).unwrap();
    for index in 1..=3 {
        // The second value contains whole sectors of zeros. In the last segment such sectors may
        // come from a torn write. In an earlier segment no write can be torn, so damage next to
        // such sectors must be noticed.
        let zeros = "\0".repeat(if index == 2 { 2000 } else { 200 });
        wal.save(&[entry(1, index, &zeros)], Some(&state(1, 0, index))).unwrap();
        wal.sync().unwrap();
    }
    let log = contents_of(&disk);
    assert_eq!(log.len(), 4);
    assert_eq!(flip_every_bit(&log, 0), []);
    assert_eq!(flip_every_bit(&log, 1), []);
}

#[test]
fn a_flip_in_the_zeros_behind_the_records_loses_nothing() {
    let log = one_of_each();
    let whole = read_all(&disk_with(&log)).unwrap();
    for byte in written(&log[0].1)..log[0].1.len() {
        for bit in 0..8 {
            let mut log = log.clone();
            log[0].1[byte] ^= 1 << bit;
            match read_all(&disk_with(&log)) {
                Ok(found) => assert_eq!(found, whole),
                Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
            }
        }
    }
}

fn log_of(entries: &[Entry]) -> Vec<(String, Vec<u8>)> {
    let disk = disk();
    let mut wal = create(&disk, options(4096)).unwrap();
    wal.save(entries, None).unwrap();
    wal.sync().unwrap();
    contents_of(&disk)
}

/// Item 1 of the list of undetectable damage in `docs/log.md`: the only set bit of the last
/// record's length is flipped, and the length is at the end of a sector. The record then looks
/// torn.
#[test]
fn a_length_that_becomes_zero_at_the_end_of_a_sector_is_taken_for_torn() {
    let logs = (1..600).flat_map(|filler| (40..56).map(move |last| (filler, last)));
    let found = logs.into_iter().find_map(|(filler, last)| {
        let (filler, last) = ("f".repeat(filler), "l".repeat(last));
        let log = log_of(&[entry(1, 1, &filler), entry(1, 2, &last)]);
        let (from, end) = *frames(&log[0].1).last().unwrap();
        (from % 512 == 504 && end - from == 8 + 64 && log[0].1[from] == 64).then_some((log, from))
    });
    let (log, from) = found.expect("some lengths lead there");
    assert_eq!(flip_every_bit(&log, 0), [(from, 6)]);
}

/// Item 2 of the list in `docs/log.md`: if a value has a sector of zeros, damage to its own record
/// looks like a torn write. Damage to other records does not.
#[test]
fn a_misfit_in_a_record_with_a_sector_of_zeros_is_taken_for_torn() {
    let log = log_of(&[entry(1, 1, "before"), entry(1, 2, &"\0".repeat(1200)), entry(1, 3, "")]);
    let frames = frames(&log[0].1);
    let (from, end) = frames[frames.len() - 2];
    let body =
        from + 8..from + 8 + usize::from(u16::from_le_bytes([log[0].1[from], log[0].1[from + 1]]));
    assert!(body.end < end, "zeros follow the record");
    // Flips of the record's bits look like a torn write, with two exceptions. A flip in the
    // record's own length contradicts the frame's length. A flip of one other bit turns the entry
    // into a state, and the decoder of a state rejects the entry's data. Flips in the frame's
    // length, or in the zeros after the record, are also detected.
    let crc_bytes = log[0].1[from + 11..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let length = from + 11 + crc_bytes + 1;
    let mut expected: Vec<(usize, u8)> =
        body.flat_map(|byte| (0..8).map(move |bit| (byte, bit))).collect();
    expected.retain(|flip| *flip != (from + 9, 0) && !(length..length + 2).contains(&flip.0));
    assert!(flip_every_bit(&log, 0) == expected, "other flips than those are lost");
}

/// The second case of item 2: the flipped bit was the only set bit of the record in a sector.
#[test]
fn a_flip_of_the_only_bit_in_a_sector_is_taken_for_torn() {
    let found = (1..600).find_map(|filler| {
        let data = format!("{}\u{1}", "f".repeat(filler));
        let log = log_of(&[entry(1, 1, &data)]);
        let (_, end) = *frames(&log[0].1).last().unwrap();
        // The last byte of the value is the first byte of a sector.
        (end % 512 == 8 && log[0].1[end - 8] == 1).then_some((log, end - 8))
    });
    let (log, byte) = found.expect("some length leads there");
    assert_eq!(flip_every_bit(&log, 0), [(byte, 0)]);
}

/// Item 3 of the list in `docs/log.md`: the last records of the last segment are missing. The log
/// opens without them.
#[test]
fn last_records_that_are_missing_are_not_missed() {
    let log = one_of_each();
    let whole = read_all(&disk_with(&log)).unwrap();
    for (from, _) in frames(&log[0].1).into_iter().skip(2) {
        let mut log = log.clone();
        log[0].1.truncate(from);
        match read_all(&disk_with(&log)) {
            Ok(found) => assert!(is_beginning(&found, &whole)),
            // The record of the first snapshot is written when a log is created, so a log without
            // it has no start.
            Err(error) => assert!(matches!(error, Error::NoSnapshot { .. }), "{error}"),
        }
    }
}

/// Returns four segments: three with the entries 1 to 3, and the last one with a snapshot at entry
/// 3.
fn four_segments() -> Vec<(String, Vec<u8>)> {
    let disk = disk();
    let mut wal = create(&disk, options(128)).unwrap();
    for index in 1..=3 {
        let state = state(1, 0, index);
        wal.save(&[entry(1, index, &"x".repeat(150))], Some(&state)).unwrap();
        wal.sync().unwrap();
    }
    save_snapshot(&mut wal, snapshot(3, 1)).unwrap();
    wal.close().unwrap();
    let log = contents_of(&disk);
    assert_eq!(log.len(), 4);
    log
}

/// Item 4 of the list in `docs/log.md`: the newest segments are missing. The log opens without
/// them.
#[test]
fn newest_segments_that_are_missing_are_not_missed() {
    let mut log = four_segments();
    let whole = read_all(&disk_with(&log)).unwrap();
    log.pop();
    log.pop();
    let found = read_all(&disk_with(&log)).unwrap();
    assert_eq!(found.entries, whole.entries[..2]);
}

/// Item 5 of the list in `docs/log.md`: the oldest segments are missing. Only a start that needs
/// them fails.
#[test]
fn oldest_segments_that_are_missing_are_missed_by_a_start_there_only() {
    let mut log = four_segments();
    log.remove(0);
    let disk = disk_with(&log);
    assert_eq!(valid_snapshots(&disk, &dir()).unwrap(), [snapshot(3, 1)]);
    assert!(read(&disk, &dir(), (3, 1)).is_ok());
    assert!(matches!(read_all(&disk), Err(Error::NoSnapshot { index: 0, .. })));
}

#[test]
fn segments_in_the_middle_are_missed() {
    let mut log = four_segments();
    let removed = log.remove(1);
    let error = read_all(&disk_with(&log)).unwrap_err();
    let text = "/member/wal/0000000000000002-0000000000000003.wal: damaged at offset 0: it does not \
                follow 0000000000000000-0000000000000000.wal";
    assert_eq!(error.to_string(), text);
    // The bytes of the third segment, which have another crc, get the name of the second segment.
    log.insert(1, (removed.0, four_segments().remove(2).1));
    let error = read_all(&disk_with(&log)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("0000000000000001-0000000000000002.wal: damaged at offset 0: crc")
    );
}

#[test]
fn damage_in_an_earlier_segment_is_refused_with_file_and_offset() {
    let mut log = four_segments();
    let (from, _) = frames(&log[1].1)[3];
    log[1].1[from + 40] ^= 1;
    let disk = disk_with(&log);
    for error in [read_all(&disk).unwrap_err(), open(&disk, (0, 0)).map(drop).unwrap_err()] {
        let Error::Corrupt { path, offset, detail } = error else { panic!("{error}") };
        assert_eq!(path, dir().join(&log[1].0));
        assert_eq!(offset, from as u64);
        assert!(detail.starts_with("crc "), "{detail}");
    }
    assert_eq!(contents_of(&disk), log, "what is refused stays as it is");
}

#[test]
fn an_earlier_segment_that_is_too_short_or_too_long_is_refused() {
    let log = four_segments();
    let written = written(&log[1].1);
    for length in [written - 8, written - 100, 8, 0, written + 8] {
        let mut log = log.clone();
        log[1].1.resize(length, 0);
        if length > written {
            // If this byte were 0, the zeros would be a valid end of the segment.
            log[1].1[length - 1] = 1;
        }
        assert!(matches!(read_all(&disk_with(&log)), Err(Error::Corrupt { .. })), "{length}");
    }
    // If the cut is between two records, the segment itself looks valid, but the crc of the next
    // segment does not continue from it.
    for (from, _) in frames(&log[1].1).into_iter().skip(2) {
        let mut log = log.clone();
        log[1].1.truncate(from);
        let disk = disk_with(&log);
        let message = open(&disk, (0, 0)).map(drop).unwrap_err().to_string();
        assert!(message.contains("-0000000000000003.wal: damaged at offset 0: crc "), "{message}");
        assert!(
            message.ends_with("the previous segment has lost its end, or belongs to another log")
        );
        assert_eq!(contents_of(&disk), log, "what is refused stays as it is");
    }
}

/// The types 2 (entry) and 3 (state) differ in one bit, and no checksum covers a record's type.
#[test]
fn an_entry_that_turns_into_a_state_or_back_is_noticed_by_its_numbers() {
    let refusal = |state: Option<HardState>| {
        let disk = disk();
        let mut wal = create(&disk, options(4096)).unwrap();
        wal.save(&[entry(1, 1, ""), entry(1, 2, "")], state.as_ref()).unwrap();
        wal.sync().unwrap();
        let mut log = contents_of(&disk);
        let type_of_last = frames(&log[0].1).last().unwrap().0 + 9;
        log[0].1[type_of_last] ^= 1;
        let Err(Error::Corrupt { detail, .. }) = read_all(&disk_with(&log)) else { panic!("read") };
        detail
    };
    assert_eq!(refusal(None), "a vote for 1 or commit 2 in term 0");
    assert_eq!(refusal(Some(state(1, 0, 2))), "entry 2 of term 0 follows an entry of term 1");
    let detail = refusal(Some(state(1, 1, 2)));
    assert_eq!(detail, "entry 2 changes the configuration, but has no data");
    assert_eq!(refusal(Some(state(7, 7, 2))), "invalid raft entry: unknown kind");
}
