//! Tests of the real and the simulated disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clearlane_wal::files::{Fault, FileSystem, OsFileSystem, SimulatedDisk, UnsyncedFileSystem};
use clearlane_wal::{DURABLE_END_FILE, Error, Options, Wal, read, valid_snapshots};

use crate::support::*;

fn small() -> Options {
    Options { segment_bytes: 8192, segments_max: Some(2), ..Options::default() }
}

/// Lets only one test at a time use real files. A process that another test starts holds copies of
/// all locks of this process for a short time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_log_lives_in_real_files() {
    let _alone = alone();
    check_files(&(Arc::new(OsFileSystem) as Arc<dyn FileSystem>));
    check_files(&(Arc::new(UnsyncedFileSystem) as Arc<dyn FileSystem>));
}

fn check_files(files: &Arc<dyn FileSystem>) {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("wal");
    let mut wal = Wal::create(Arc::clone(files), &dir, METADATA, small(), &[], None).unwrap();
    for index in 1..=50 {
        let text = "x".repeat(1000);
        wal.save(&[entry(1, index, &text)], Some(&state(1, 0, index))).unwrap();
        wal.sync().unwrap();
    }
    save_snapshot(&mut wal, snapshot(30, 1)).unwrap();
    let names = segments(&**files, &dir);
    assert_eq!(names.len(), wal.segment_count());
    assert_eq!(names[1], "0000000000000001-0000000000000009.wal");
    assert_eq!(fs::metadata(dir.join(names.last().unwrap())).unwrap().len(), 8192);
    assert!(fs::metadata(dir.join(&names[0])).unwrap().len() < 10_000, "cut to what is in it");
    assert_eq!((mode(&dir), mode(&dir.join(&names[0]))), (0o700, 0o600));
    // An operator may have removed a segment that is no longer needed. The purge must still
    // succeed.
    fs::remove_file(dir.join(&names[1])).unwrap();
    assert_eq!(wal.purge(30).unwrap(), 3);
    wal.close().unwrap();
    let start = valid_snapshots(&**files, &dir).unwrap().pop().unwrap();
    let (mut wal, contents) =
        Wal::open(Arc::clone(files), &dir, (start.index, start.term), small()).unwrap();
    assert_eq!((start.index, contents.entries.len()), (30, 20));
    wal.save(&[entry(1, 51, "after")], None).unwrap();
    wal.close().unwrap();
    assert_eq!(read(&**files, &dir, (30, 1)).unwrap().entries.len(), 21);
}

/// The temporary directory must be on a file system that supports holes, but not on tmpfs. On tmpfs
/// `zeros_from` does not return the length, even for synced files.
#[cfg(target_os = "linux")]
#[test]
fn zeros_at_the_end_of_an_unsynced_file_are_known() {
    let _alone = alone();
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("segment");
    let mut file = UnsyncedFileSystem.create(&path).unwrap();
    file.allocate(1 << 20).unwrap();
    assert_eq!((file.length().unwrap(), file.zeros_from().unwrap()), (1 << 20, 0));
    file.write_at(0, b"a").unwrap();
    file.write_at(300_000, b"b").unwrap();
    let zeros_from = file.zeros_from().unwrap();
    assert!((300_001..1 << 20).contains(&zeros_from), "{zeros_from}");
    file.write_at((1 << 20) - 1, b"c").unwrap();
    assert_eq!(file.zeros_from().unwrap(), 1 << 20);
    file.set_length(2 << 20).unwrap();
    assert_eq!(OsFileSystem.open(&path).unwrap().zeros_from().unwrap(), 2 << 20);
}

#[test]
fn a_torn_end_is_cut_and_kept_aside() {
    let _alone = alone();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("wal");
    let mut wal = Wal::create(Arc::new(OsFileSystem), &dir, METADATA, small(), &[], None).unwrap();
    wal.save(&[entry(1, 1, "whole")], None).unwrap();
    wal.sync().unwrap();
    let durable = fs::read(dir.join(DURABLE_END_FILE)).unwrap();
    wal.save(&[entry(1, 2, &"t".repeat(1000))], None).unwrap();
    wal.close().unwrap();
    // Restores the older durable end, as if the last sync had not completed.
    fs::write(dir.join(DURABLE_END_FILE), durable).unwrap();
    let path = dir.join(&segments(&OsFileSystem, &dir)[0]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[512..1024].fill(0);
    fs::write(&path, &bytes).unwrap();
    fs::write(dir.join("0.tmp"), "a segment that was being made").unwrap();
    fs::write(dir.join("notes"), "not ours").unwrap();
    let (wal, contents) = Wal::open(Arc::new(OsFileSystem), &dir, (0, 0), small()).unwrap();
    assert_eq!(contents.entries, [entry(1, 1, "whole")]);
    let broken = fs::read(dir.join("0000000000000000-0000000000000000.wal.broken")).unwrap();
    assert!(bytes.starts_with(&broken) && broken.len() > 1024);
    assert!(dir.join("notes").exists() && !dir.join("0.tmp").exists());
    assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
    drop(wal);
}

/// The second process is this test program. An environment variable selects its part of the test.
#[test]
fn another_process_is_kept_out() {
    const VARIABLE: &str = "CLEARLANE_TEST_OPEN_WAL";
    let _alone = alone();
    if let Some(dir) = std::env::var_os(VARIABLE) {
        let refused = Wal::open(Arc::new(OsFileSystem), Path::new(&dir), (0, 0), small());
        assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
        println!("the second process was kept out");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("wal");
    let wal = Wal::create(Arc::new(OsFileSystem), &dir, METADATA, small(), &[], None).unwrap();
    let refused = Wal::open(Arc::new(OsFileSystem), &dir, (0, 0), small());
    assert!(matches!(refused, Err(Error::Locked { .. })), "in this process, too");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["disk::another_process_is_kept_out", "--exact", "--nocapture"])
        .env(VARIABLE, &dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("was kept out"), "{said}");
    drop(wal);
    assert!(Wal::open(Arc::new(OsFileSystem), &dir, (0, 0), small()).is_ok());
}

fn found_after(seeds: u64, build: impl Fn(&SimulatedDisk)) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = (0..seeds)
        .map(|seed| {
            let disk = disk();
            build(&disk);
            disk.after_power_cut(seed).list(Path::new("/member")).unwrap()
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn names_that_were_not_synced_are_there_or_not() {
    let create = |disk: &SimulatedDisk| drop(disk.create(Path::new("/member/a")).unwrap());
    assert_eq!(found_after(100, create).len(), 2);
    let rename = |disk: &SimulatedDisk| {
        create(disk);
        disk.sync_dir(Path::new("/member")).unwrap();
        disk.rename(Path::new("/member/a"), Path::new("/member/b")).unwrap();
    };
    assert_eq!(found_after(100, rename), [["a"], ["b"]]);
    let synced = |disk: &SimulatedDisk| {
        rename(disk);
        disk.sync_dir(Path::new("/member")).unwrap();
    };
    assert_eq!(found_after(100, synced), [["b"]]);
}

#[test]
fn sectors_are_kept_or_lost_whole_and_in_order() {
    let path = Path::new("/member/a");
    let disk = disk();
    let mut file = disk.create(path).unwrap();
    disk.sync_dir(Path::new("/member")).unwrap();
    file.allocate(1536).unwrap();
    file.write_at(0, &[1; 600]).unwrap();
    file.sync().unwrap();
    file.write_at(600, &[2; 900]).unwrap();
    file.write_at(700, &[3; 8]).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..400 {
        let found = bytes(&disk.after_power_cut(seed), path);
        assert_eq!(found[..600], [1; 600], "what was synced is there");
        for sector in [600..700, 1024..1500] {
            assert!(found[sector].windows(2).all(|pair| pair[0] == pair[1]));
        }
        assert!(found[700] != 3 || found[650] == 2, "the later of two writes to a sector alone");
        seen.insert((found[650], found[700], found[1100]));
    }
    assert_eq!(seen.len(), 6, "every mixture is possible: {seen:?}");
}

#[test]
fn faults_happen_where_they_were_told() {
    let disk = disk();
    let mut file = disk.create(Path::new("/member/a")).unwrap();
    disk.fail_at(3, Fault::Error);
    disk.fail_at(5, Fault::PowerCut);
    file.set_length(8).unwrap();
    file.write_at(0, b"abcdefgh").unwrap();
    // A failed sync has lost its bytes, and the next sync succeeds.
    assert!(file.sync().is_err());
    assert!(file.sync().is_ok());
    assert!(file.sync().is_err());
    assert!(file.length().is_err() && disk.list(Path::new("/member")).is_err());
    assert_eq!((disk.operations(), disk.syncs()), (6, 1));
}
