//! Tests that a log is rejected if it does not reach its durable end. A log without a durable end
//! is rejected only if records of two different syncs follow a hole.

use std::sync::Arc;

use clearlane_wal::files::{Fault, FileSystem, SECTOR, SimulatedDisk};
use clearlane_wal::{Contents, DURABLE_END_FILE, Error, Options, Result, Wal};

use crate::support::*;

const BYTES: u64 = 8192;

fn durable_file() -> std::path::PathBuf {
    dir().join(DURABLE_END_FILE)
}

/// Returns a log whose process was killed. Each of the entries 1 to `last` was synced separately.
fn killed(last: u64, segment_bytes: u64) -> SimulatedDisk {
    let disk = disk();
    let mut wal = create(&disk, options(segment_bytes)).unwrap();
    for index in 1..=last {
        let commit = index.saturating_sub(1);
        wal.save(&[entry(1, index, &"x".repeat(200))], Some(&state(1, 0, commit))).unwrap();
        wal.sync().unwrap();
    }
    drop(wal);
    disk.after_kill()
}

fn open_with(disk: &SimulatedDisk, options: Options) -> Result<(Wal, Contents)> {
    Wal::open(Arc::new(disk.clone()), &dir(), (0, 0), options)
}

fn accepting() -> Options {
    Options { accept_loss: true, ..options(BYTES) }
}

/// Changes the last segment's bytes.
fn change_last_segment(disk: &SimulatedDisk, change: impl FnOnce(&mut Vec<u8>)) {
    let (name, mut bytes) = contents_of(disk).pop().unwrap();
    change(&mut bytes);
    put_file(disk, &dir().join(name), &bytes);
    disk.sync_dir(&dir()).unwrap();
}

fn zero(bytes: &mut [u8], sector: u64) {
    bytes[(sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize].fill(0);
}

#[test]
fn a_lost_sector_of_what_was_synced_is_refused() {
    let end = written(&contents_of(&killed(8, BYTES))[0].1) as u64;
    for sector in 1..end.div_ceil(SECTOR) {
        let disk = killed(8, BYTES);
        change_last_segment(&disk, |bytes| zero(bytes, sector));
        let before = contents_of(&disk);
        let error = open_with(&disk, options(BYTES)).map(drop).unwrap_err();
        assert!(matches!(error, Error::LostEnd { .. }), "{sector}: {error}");
        assert_eq!(contents_of(&disk), before, "what is refused stays as it is");
        let (wal, contents) = open_with(&disk, accepting()).unwrap();
        assert_eq!(wal.accepted_loss.map(|error| error.is_loss()), Some(true));
        assert!(contents.entries.len() < 8);
        let (wal, again) = open_with(&disk.after_kill(), options(BYTES)).unwrap();
        assert!(wal.accepted_loss.is_none() && again == contents, "it is accepted once");
    }
}

#[test]
fn the_error_names_both_ends() {
    let disk = killed(3, 512);
    let last = segments(&disk, &dir()).pop().unwrap();
    disk.remove(&dir().join(&last)).unwrap();
    let error = open_with(&disk, options(512)).map(drop).unwrap_err().to_string();
    assert!(
        error.starts_with("/member/wal: the log has lost its end: it ends at entry "),
        "{error}"
    );
    assert!(error.ends_with(&format!(" of {last}")), "{error}");
}

#[test]
fn records_that_no_sync_covered_may_be_torn() {
    let disk = disk();
    let mut wal = create(&disk, options(BYTES)).unwrap();
    wal.save(&[entry(1, 1, "durable")], None).unwrap();
    wal.sync().unwrap();
    let durable = bytes(&disk, &durable_file());
    wal.save(&[entry(1, 2, &"t".repeat(2000)), entry(1, 3, "")], None).unwrap();
    wal.sync().unwrap();
    drop(wal);
    for sector in 1..5 {
        let disk = disk.after_kill();
        put_file(&disk, &durable_file(), &durable);
        change_last_segment(&disk, |bytes| zero(bytes, sector));
        assert_eq!(open_with(&disk, options(BYTES)).unwrap().1.entries.len(), 1);
    }
}

/// A log of etcd has no durable end, and neither has a log that was opened on a full disk. A
/// damaged file `durable` is treated like a missing one.
#[test]
fn a_log_without_a_durable_end_is_opened() {
    for text in [None, Some("clearlane-wal-end 1\n"), Some("")] {
        let disk = killed(8, BYTES);
        disk.remove(&durable_file()).unwrap();
        if let Some(text) = text {
            put_file(&disk, &durable_file(), text.as_bytes());
        }
        change_last_segment(&disk, |bytes| bytes[2000..].fill(0));
        let (mut wal, contents) = open_with(&disk, options(BYTES)).unwrap();
        let next = contents.entries.len() as u64 + 1;
        wal.save(&[entry(1, next, "more")], None).unwrap();
        wal.close().unwrap();
        // Opening has created a new durable end, so this loss is noticed.
        change_last_segment(&disk, |bytes| bytes[1500..].fill(0));
        assert!(open_with(&disk, options(BYTES)).is_err());
    }
}

/// If the log has no durable end, records of two different syncs after the hole show that the bytes
/// of the hole were synced.
#[test]
fn a_hole_is_damage_if_two_later_syncs_follow() {
    let whole = killed(12, BYTES);
    whole.remove(&durable_file()).unwrap();
    let bytes = contents_of(&whole).remove(0).1;
    let ends: Vec<usize> = frames(&bytes).iter().map(|(_, end)| *end).collect();
    let mut refused = 0;
    for sector in 1..(written(&bytes) as u64).div_ceil(SECTOR) {
        let disk = whole.after_kill();
        change_last_segment(&disk, |bytes| zero(bytes, sector));
        // A loss is noticed if an entry, a state and an entry follow the hole, with matching crcs.
        // In this log, that is the case if at least five whole records follow.
        let hole_end = ((sector + 1) * SECTOR) as usize;
        let after = ends.iter().filter(|end| **end > hole_end).count().saturating_sub(1);
        match open_with(&disk, options(BYTES)).map(drop) {
            Err(Error::LostRecord { .. }) => refused += 1,
            Ok(()) => assert!(after < 5, "{sector}: {after} records follow"),
            Err(error) => panic!("{sector}: {error}"),
        }
        assert_eq!(open_with(&disk, accepting()).unwrap().0.accepted_loss.is_some(), after >= 5);
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn the_durable_end_may_be_in_a_segment_that_was_removed() {
    let disk = disk();
    let mut wal = create(&disk, options(512)).unwrap();
    let old = bytes(&disk, &durable_file());
    for index in 1..=9 {
        wal.save(&[entry(1, index, &"x".repeat(200))], Some(&state(1, 0, index))).unwrap();
        wal.sync().unwrap();
    }
    save_snapshot(&mut wal, snapshot(9, 1)).unwrap();
    assert!(wal.purge(9).unwrap() > 0);
    wal.close().unwrap();
    put_file(&disk, &durable_file(), &old);
    assert_eq!(open(&disk, (9, 1)).unwrap().0.last_index(), 9);
}

/// Opening with an accepted loss removes the old durable end before it cuts the log. So the power
/// may fail at any operation of this opening.
#[test]
fn an_accepted_loss_may_be_interrupted_anywhere() {
    let damaged = || {
        let disk = killed(8, BYTES);
        change_last_segment(&disk, |bytes| zero(bytes, 2));
        disk
    };
    let whole = damaged();
    let before = whole.operations();
    let found = open_with(&whole, accepting()).unwrap().1;
    for cut in 1..=whole.operations() - before {
        for seed in 0..20 {
            let disk = damaged();
            disk.fail_at(cut, Fault::PowerCut);
            let _ = open_with(&disk, accepting());
            let disk = disk.after_power_cut(seed);
            // Without acceptance, opening reports the loss again, or the log is already cut and
            // opens with the same contents.
            let opened = open_with(&disk, options(BYTES)).map(|(_, contents)| contents);
            let again = open_with(&disk, accepting()).unwrap().1;
            assert_eq!(again, found, "{cut} {seed}");
            assert!(opened.map_or_else(|error| error.is_loss(), |opened| opened == found));
        }
    }
}
