//! Tests that a log is rejected if its last segment is shorter than when it was created, and only
//! then.

use std::io;
use std::path::Path;
use std::sync::Arc;

use clearlane_wal::files::{Fault, File, FileSystem, SimulatedDisk};
use clearlane_wal::{Error, Options, ShortTail, Wal};

use crate::support::*;

const SEGMENT: &str = "0000000000000000-0000000000000000.wal";
const BYTES: u64 = 4096;

fn length_file() -> std::path::PathBuf {
    dir().join("length")
}

/// Returns a closed log of a few entries, in a segment of 4096 bytes.
fn log() -> SimulatedDisk {
    let disk = disk();
    fill(create(&disk, options(BYTES)).unwrap());
    disk
}

fn fill(mut wal: Wal) {
    for index in 1..=5 {
        wal.save(&[entry(1, index, &"x".repeat(100))], Some(&state(1, 0, index))).unwrap();
        wal.sync().unwrap();
    }
    wal.close().unwrap();
}

fn set_length(disk: &SimulatedDisk, name: &str, length: u64) {
    let mut file = disk.open(&dir().join(name)).unwrap();
    file.set_length(length).unwrap();
    file.sync().unwrap();
}

/// Opens the log and accepts a loss. Returns the loss, or `None`, and the number of entries.
fn accepted(disk: &SimulatedDisk) -> (Option<ShortTail>, u64) {
    let options = Options { accept_loss: true, ..options(BYTES) };
    let (wal, contents) = Wal::open(Arc::new(disk.clone()), &dir(), (0, 0), options).unwrap();
    (wal.short_tail, contents.entries.len() as u64)
}

fn opened(disk: &SimulatedDisk) -> (Option<ShortTail>, u64) {
    let (wal, contents) = open(disk, (0, 0)).unwrap();
    (wal.short_tail, contents.entries.len() as u64)
}

/// Asserts that a start fails and leaves the log unchanged. Returns the error.
fn refusal(disk: &SimulatedDisk) -> Error {
    let before = contents_of(disk);
    let error = open(disk, (0, 0)).map(drop).unwrap_err();
    assert!(error.is_loss(), "{error}");
    assert_eq!(contents_of(disk), before);
    error
}

#[test]
fn a_segment_that_was_cut_is_refused_unless_the_loss_is_accepted() {
    let written = written(&contents_of(&log())[0].1) as u64;
    let mut losses = 0;
    // The cuts go through zeros, between records and within records.
    for found in (200..BYTES).rev().step_by(4) {
        let disk = log();
        set_length(&disk, SEGMENT, found);
        let error = refusal(&disk);
        assert_eq!(matches!(error, Error::ShortSegment { .. }), found >= written, "{error}");
        let (short, last_index) = accepted(&disk);
        let path = dir().join(SEGMENT);
        assert_eq!(short, Some(ShortTail { path, expected: BYTES, found, last_index }));
        assert!(last_index == 5 || found < written, "{found}");
        losses += u64::from(last_index < 5);
        assert_eq!(opened(&disk), (None, last_index));
        let (mut wal, _) = open(&disk, (0, 0)).unwrap();
        wal.save(&[entry(2, last_index + 1, "more")], None).unwrap();
        wal.close().unwrap();
        assert_eq!(opened(&disk), (None, last_index + 1));
    }
    assert!(losses > 100, "{losses}");
}

/// etcd cuts the segment after its last record, and may be killed at that point. So exactly that
/// length is accepted if etcd was the last writer.
#[test]
fn etcd_may_have_cut_the_segment_at_the_end_of_a_record() {
    let end = written(&contents_of(&log())[0].1) as u64;
    let options = Options { etcd_wrote_last: true, ..options(BYTES) };
    for (length, is_accepted) in [(end, true), (end + 8, false), (end - 8, false)] {
        let disk = log();
        set_length(&disk, SEGMENT, length);
        let opened = Wal::open(Arc::new(disk.clone()), &dir(), (0, 0), options);
        assert_eq!(opened.map(drop).map_err(|error| error.is_loss()).is_ok(), is_accepted);
    }
}

#[test]
fn a_later_segment_is_refused_too() {
    let disk = disk();
    let mut wal = create(&disk, options(256)).unwrap();
    for index in 1..=4 {
        wal.save(&[entry(1, index, &"x".repeat(200))], Some(&state(1, 0, index))).unwrap();
        wal.sync().unwrap();
    }
    wal.close().unwrap();
    let name = segments(&disk, &dir()).pop().unwrap();
    set_length(&disk, &name, 248);
    let Error::ShortSegment { .. } = refusal(&disk) else { panic!("another error") };
    let options = Options { accept_loss: true, ..options(256) };
    let open = || Wal::open(Arc::new(disk.clone()), &dir(), (0, 0), options).unwrap();
    let short = open().0.short_tail.unwrap();
    assert_eq!((short.path, short.expected, short.found), (dir().join(name), 256, 248));
    assert_eq!(short.last_index, 4);
    assert_eq!(open().0.short_tail, None);
}

/// A log without the file `length` was written by etcd, by an earlier version of Clearlane, or on a
/// full disk. Its segment may have any length, and opening gives it the usual length.
#[test]
fn of_a_log_without_a_length_none_is_expected() {
    let disk = log();
    disk.remove(&length_file()).unwrap();
    set_length(&disk, SEGMENT, 2000);
    assert_eq!(opened(&disk), (None, 5));
    assert_eq!(contents_of(&disk)[0].1.len() as u64, BYTES);
    set_length(&disk, SEGMENT, 2000);
    assert_eq!(accepted(&disk).0.map(|short| short.expected), Some(BYTES));
    for text in ["", "clearlane-wal 1\nsegment 40", "clearlane-wal 2\nsegment 4096\n", "x"] {
        put_file(&disk, &length_file(), text.as_bytes());
        set_length(&disk, SEGMENT, 2000);
        assert_eq!(opened(&disk), (None, 5), "{text:?}");
    }
}

#[test]
fn another_segment_size_is_no_loss() {
    let disk = log();
    let mut last = 5;
    for bytes in [1024, 8192, 4096, 16_384, 512, 512, 4096] {
        let (mut wal, contents) =
            Wal::open(Arc::new(disk.clone()), &dir(), (0, 0), options(bytes)).unwrap();
        assert_eq!(
            (wal.short_tail.clone(), contents.entries.len() as u64),
            (None, last),
            "{bytes}"
        );
        for _ in 0..3 {
            last += 1;
            wal.save(&[entry(1, last, &"x".repeat(200))], None).unwrap();
            wal.sync().unwrap();
        }
        wal.close().unwrap();
    }
}

/// A repair first cuts the segment and then extends it again. A power cut in between must not look
/// like a loss.
#[test]
fn a_repair_that_was_interrupted_is_no_loss() {
    let torn = || {
        let disk = log();
        let mut file = disk.open(&dir().join(SEGMENT)).unwrap();
        let end = written(&contents_of(&disk)[0].1) as u64;
        // Writes a torn frame. Its length field states 1000 bytes, but only the first 100 of these
        // bytes are on the disk; zeros follow.
        file.write_at(end, &1000_u64.to_le_bytes()).unwrap();
        file.write_at(end + 8, &[7; 100]).unwrap();
        file.sync().unwrap();
        disk
    };
    let whole = torn();
    let before = whole.operations();
    assert_eq!(opened(&whole), (None, 5));
    let operations = whole.operations() - before;
    assert!(operations > 8, "{operations}");
    for cut in 1..=operations {
        for seed in 0..30 {
            let disk = torn();
            disk.fail_at(cut, Fault::PowerCut);
            assert!(open(&disk, (0, 0)).is_err());
            let found = disk.after_power_cut(seed);
            assert_eq!(opened(&found), (None, 5), "cut at {cut}, seed {seed}");
            assert_eq!(opened(&found), (None, 5), "cut at {cut}, seed {seed}");
        }
    }
}

/// A disk without free space: no space can be allocated. If `lengths` is false, a file cannot be
/// extended with zeros either, but only by writes.
#[derive(Clone, Debug)]
struct FullFileSystem {
    disk: SimulatedDisk,
    lengths: bool,
}

#[derive(Debug)]
struct FullFile {
    file: Box<dyn File>,
    lengths: bool,
}

impl FullFileSystem {
    fn wrap(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(FullFile { file, lengths: self.lengths })
    }
}

impl FileSystem for FullFileSystem {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(self.wrap(self.disk.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(self.wrap(self.disk.open(path)?))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.disk.open_to_read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn free_space(&self, _dir: &Path) -> u64 {
        0
    }
}

impl File for FullFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        let longer = length > self.file.length()?;
        match longer && !self.lengths {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.file.set_length(length),
        }
    }

    fn allocate(&mut self, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    fn try_lock(&mut self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

fn on(full: &FullFileSystem, options: Options) -> Wal {
    let files: Arc<dyn FileSystem> = Arc::new(full.clone());
    match clearlane_wal::exists(&*files, &dir()).unwrap() {
        true => Wal::open(files, &dir(), (0, 0), options).unwrap().0,
        false => Wal::create(files, &dir(), METADATA, options, &[], None).unwrap(),
    }
}

#[test]
fn a_segment_is_as_long_on_a_full_disk() {
    let full = FullFileSystem { disk: disk(), lengths: true };
    fill(on(&full, options(BYTES)));
    assert_eq!(contents_of(&full.disk)[0].1.len() as u64, BYTES);
    assert_eq!(on(&full, options(BYTES)).short_tail, None);
    set_length(&full.disk, SEGMENT, 3000);
    let options = Options { accept_loss: true, ..options(BYTES) };
    assert_eq!(on(&full, options).short_tail.map(|short| short.found), Some(3000));
}

#[test]
fn without_the_length_no_loss_is_told() {
    let full = FullFileSystem { disk: disk(), lengths: false };
    fill(on(&full, options(BYTES)));
    assert!(contents_of(&full.disk)[0].1.len() < 2000);
    assert_eq!(on(&full, options(BYTES)).short_tail, None);
    // This opening does not go through `full`, so it extends the segment. The next opening has no
    // free space again.
    assert_eq!(opened(&full.disk), (None, 5));
    assert_eq!(contents_of(&full.disk)[0].1.len() as u64, BYTES);
    let mut wal = on(&full, options(1000));
    wal.save(&[entry(1, 6, &"x".repeat(1000))], None).unwrap();
    wal.sync().unwrap();
    wal.close().unwrap();
    assert_eq!(opened(&full.disk), (None, 6));
}
