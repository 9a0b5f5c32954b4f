//! The store as one file in etcd's format. `etcdctl snapshot save` receives such a file, and a
//! restore reads it.
//!
//! ```text
//!   bolt file                  a multiple of 512 bytes, see `docs/bolt.md`
//!   SHA-256 of the bolt file   32 bytes; absent in a copy of `member/snap/db`
//! ```
//!
//! A [`SnapshotWriter`] returns such a file in chunks, from an [`Image`] of one state. [`copy`] and
//! [`restore`] read such files, including etcd's. Each of the two functions verifies the checksum,
//! unless the caller disables the check: [`restore`] before it writes a record, and [`copy`] while
//! it writes the copy.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::bolt_file::BoltFile;
use clearlane_engine::{Bucket, Engine, Image, WriteTxn};
use clearlane_replica::{Error, Result};
use sha2::{Digest, Sha256};

/// Maximum number of bytes of a chunk, as in etcd.
const CHUNK_BYTES: usize = 32 << 10;
const ALIGNMENT_BYTES: u64 = 512;
const CHECKSUM_BYTES: u64 = 32;

/// The magic number of a meta page.
const MAGIC: [u8; 4] = 0xED0C_DAED_u32.to_le_bytes();
/// Number of bytes before the magic number in a meta page.
const PAGE_HEADER_BYTES: u64 = 16;
/// Maximum page size in bytes. The pages of a file are as long as the memory pages of the machine
/// that created the file.
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// Number of bytes after which a restore commits its transaction.
const TXN_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub struct SnapshotWriter {
    image: Image,
    /// Bytes that have been read but not returned yet.
    read: Bytes,
    /// Number of bytes that have not been returned yet, without the checksum.
    bytes_left: u64,
    checksum: Option<Sha256>,
}

impl SnapshotWriter {
    pub fn new(image: Image) -> SnapshotWriter {
        let (bytes_left, checksum) = (image.bytes(), Some(Sha256::new()));
        SnapshotWriter { image, read: Bytes::new(), bytes_left, checksum }
    }

    /// Returns the number of bytes that are still to be returned, without the checksum.
    pub fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    /// Returns the next chunk, or `None` at the end. The last chunk is the checksum. If the caller
    /// stops at an error, it gets no checksum.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        if self.read.is_empty() {
            let Some(read) = self.image.next_chunk()? else {
                let sum = self.checksum.take();
                return Ok(sum.map(|sum| Bytes::copy_from_slice(&sum.finalize())));
            };
            self.read = read;
        }
        let piece = self.read.split_to(self.read.len().min(CHUNK_BYTES));
        self.bytes_left -= piece.len() as u64;
        if let Some(sum) = &mut self.checksum {
            sum.update(&piece);
        }
        Ok(Some(piece))
    }
}

/// Opens a file for reading.
pub fn open(path: &Path) -> Result<File> {
    // The type is checked first, because opening a named pipe would wait for a writer.
    if !fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(damaged("it is not a file"));
    }
    File::open(path).map_err(read_error)
}

/// Returns whether the file has a meta page where a bolt file has one: at the start, or after one
/// page.
fn is_bolt(file: &mut (impl Read + Seek)) -> Result<bool> {
    let mut page_bytes = 0;
    while page_bytes <= PAGE_BYTES_MAX {
        let mut magic = [0; MAGIC.len()];
        file.seek(SeekFrom::Start(page_bytes + PAGE_HEADER_BYTES)).map_err(read_error)?;
        match file.read_exact(&mut magic) {
            Ok(()) if magic == MAGIC => return Ok(true),
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
                return Err(read_error(error));
            }
            _ => page_bytes = (2 * page_bytes).max(1 << 10),
        }
    }
    Ok(false)
}

/// Copies the bolt file of a snapshot to `to`, and syncs it. After an error the caller must remove
/// the written data.
pub fn copy(path: &Path, to: &Path, checks_sum: bool) -> Result<()> {
    // Keep the file locked, so that no program writes it during the copy.
    let _locked = open_bolt(path)?;
    let mut file = open(path)?;
    let mut copy = File::create(to).map_err(write_error)?;
    verify(&mut file, checks_sum, &mut |piece| copy.write_all(piece).map_err(write_error))?;
    copy.sync_all().map_err(write_error)
}

/// Fills an empty engine with the records of a file, and commits. After an error the caller must
/// remove the engine's directory. Without `checks_sum` the file may lack the checksum, like a file
/// copied from a disk.
pub fn restore(path: &Path, engine: &Arc<dyn Engine>, checks_sum: bool) -> Result<()> {
    let bolt = open_bolt(path)?;
    let mut file = open(path)?;
    verify(&mut file, checks_sum, &mut |_| Ok(()))?;
    Bucket::ALL.into_iter().try_for_each(|bucket| copy_bucket(&bolt, bucket, &**engine))
}

/// Verifies the length of a file, and also its checksum if `checks_sum` is true.
pub fn check(file: &mut (impl Read + Seek), checks_sum: bool) -> Result<()> {
    match checks_sum {
        true => verify(file, true, &mut |_| Ok(())),
        false => data_length(file, false).map(drop),
    }
}

/// Returns whether a file of this length has a checksum after its data.
pub fn has_sum(length: u64) -> bool {
    length % ALIGNMENT_BYTES == CHECKSUM_BYTES
}

/// Opens a bolt file. Rejects a file that is not in etcd's format. While it is open, no program
/// writes it.
pub fn open_bolt(path: &Path) -> Result<BoltFile> {
    if !is_bolt(&mut open(path)?)? {
        return Err(damaged(
            "it is neither a store of engine bolt nor a snapshot in etcd's format",
        ));
    }
    let file = BoltFile::open(path)?;
    // etcd creates these buckets in every file. `scan` fails if a bucket is missing.
    for bucket in [Bucket::Key, Bucket::Meta] {
        file.scan(&[bucket.name().as_bytes()], &mut |_| ControlFlow::Break(()))?;
    }
    Ok(file)
}

fn copy_bucket(from: &BoltFile, bucket: Bucket, engine: &dyn Engine) -> Result<()> {
    let mut copy = BucketCopy { engine, bucket, txn: None, bytes: 0 };
    let mut outcome = Ok(());
    let scanned = from.scan(&[bucket.name().as_bytes()], &mut |record| {
        if record.bucket.is_none() {
            outcome = copy.put(&record.key, &record.value);
        }
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    outcome?;
    match scanned {
        // A file may lack a bucket that did not exist in the version that wrote the file.
        Err(clearlane_engine::Error::NoBucket { .. }) => {}
        other => other?,
    }
    copy.commit()
}

struct BucketCopy<'c> {
    engine: &'c dyn Engine,
    bucket: Bucket,
    txn: Option<Box<dyn WriteTxn>>,
    /// Number of bytes written in the open transaction.
    bytes: usize,
}

impl BucketCopy<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut txn = match self.txn.take() {
            Some(txn) => txn,
            None => self.engine.begin_write()?,
        };
        txn.put(self.bucket, key, value)?;
        self.txn = Some(txn);
        self.bytes += key.len() + value.len();
        if self.bytes > TXN_BYTES_MAX { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.bytes = 0;
        Ok(self.txn.take().map_or(Ok(()), |txn| txn.commit())?)
    }
}

/// Passes the data to `take`. If `checks_sum` is true, fails unless the checksum that follows the
/// data is correct.
fn verify(
    file: &mut (impl Read + Seek),
    checks_sum: bool,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let length = data_length(file, checks_sum)?;
    file.rewind().map_err(read_error)?;
    let mut sum = Sha256::new();
    for_each_chunk(file, length, |piece| {
        if checks_sum {
            sum.update(piece);
        }
        take(piece)
    })?;
    if checks_sum {
        let mut there = [0; CHECKSUM_BYTES as usize];
        file.read_exact(&mut there).map_err(read_error)?;
        if there[..] != sum.finalize()[..] {
            return Err(damaged("checksum mismatch"));
        }
    }
    Ok(())
}

/// Returns the length of the data without the checksum. Fails if there is no checksum although
/// `checks_sum` is true, or if no snapshot can have the length of this file.
fn data_length(file: &mut impl Seek, checks_sum: bool) -> Result<u64> {
    let length = file.seek(SeekFrom::End(0)).map_err(read_error)?;
    let has_sum = has_sum(length);
    if !has_sum && (checks_sum || length % ALIGNMENT_BYTES != 0) {
        let why =
            format!("it has {length} bytes, and no checksum after a multiple of {ALIGNMENT_BYTES}");
        return Err(damaged(why));
    }
    let data = if has_sum { length - CHECKSUM_BYTES } else { length };
    if data < ALIGNMENT_BYTES {
        return Err(damaged("it is empty"));
    }
    Ok(data)
}

fn for_each_chunk(
    file: &mut impl Read,
    length: u64,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (mut buffer, mut left) = (vec![0; CHUNK_BYTES], length);
    while left > 0 {
        let piece = &mut buffer[..left.min(CHUNK_BYTES as u64) as usize];
        file.read_exact(piece).map_err(read_error)?;
        take(piece)?;
        left -= piece.len() as u64;
    }
    Ok(())
}

fn damaged(why: impl Into<String>) -> Error {
    Error::damaged("the snapshot", why)
}

fn read_error(error: io::Error) -> Error {
    damaged(format!("it cannot be read: {error}"))
}

fn write_error(error: io::Error) -> Error {
    Error::Engine(clearlane_engine::Error::Storage(format!(
        "the snapshot cannot be written: {error}"
    )))
}
