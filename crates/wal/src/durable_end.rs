//! The durable end: the position where the newest synced record ends. It is stored in a file next
//! to the segments.
//!
//! If the last records of a log turn into zeros, or its last segment is deleted, the rest looks
//! like a complete log. So the file `durable` names the end of the records that the last sync
//! covered:
//!
//! ```text
//!   append ── write ── sync the segment ── overwrite `durable`, without a sync
//! ```
//!
//! * The file is written after the sync. So it never names a record that a power cut can lose.
//! * It fits into one sector and is overwritten in place, so it is always whole. After a power cut
//!   it may name an earlier sync.
//! * A program that does not know the file (etcd) only appends after the durable end. So the file
//!   remains correct.
//!
//! A log that does not reach its durable end has lost acknowledged records. See `docs/log.md`.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::segment_name::SegmentName;
use crate::files::{
    File, FileSystem, create_with, is_out_of_space, read_short, remove_if_there, replace,
};

/// The name of the file that contains the durable end. The file is overwritten after every sync.
pub const DURABLE_END_FILE: &str = "durable";
const DURABLE_END_FILE_NEW: &str = "durable.tmp";
const TEXT_BYTES: usize = 110;

/// The end of the last record that was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DurableEnd {
    pub(super) segment: SegmentName,
    pub(super) offset: u64,
    /// The running crc at this position.
    pub(super) crc: u32,
    /// The index of the last entry before this position, or of a received snapshot if the log
    /// restarts there.
    pub(super) last_index: u64,
}

impl DurableEnd {
    /// Returns whether this position is after the given end of a log.
    pub(super) fn is_after(&self, (sequence, offset): (u64, u64)) -> bool {
        (self.segment.sequence, self.offset) > (sequence, offset)
    }

    fn encode(&self) -> Vec<u8> {
        let DurableEnd { segment: SegmentName { sequence, index }, offset, crc, last_index } = self;
        let mut text = format!(
            "clearlane-wal-end 1\n{sequence:016x}-{index:016x}.wal\n\
             {offset:016x}\n{crc:08x}\n{last_index:016x}\n"
        );
        let sum = crc32c::crc32c(text.as_bytes());
        text += &format!("{sum:08x}\n");
        text.into_bytes()
    }

    /// Decodes the file's bytes. Returns `None` if they are not exactly the bytes of a durable end.
    fn decode(bytes: &[u8]) -> Option<DurableEnd> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines().skip(1);
        let segment = SegmentName::parse(lines.next()?)?;
        let mut hex = || u64::from_str_radix(lines.next()?, 16).ok();
        let (offset, crc, last_index) = (hex()?, u32::try_from(hex()?).ok()?, hex()?);
        let found = DurableEnd { segment, offset, crc, last_index };
        (found.encode() == bytes).then_some(found)
    }
}

impl fmt::Display for DurableEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {}, offset {} of {}", self.last_index, self.offset, self.segment)
    }
}

/// Reads the file. Returns `None` if it does not exist or is damaged.
pub(super) fn read(files: &dyn FileSystem, dir: &Path) -> io::Result<Option<DurableEnd>> {
    match read_short(files, &dir.join(DURABLE_END_FILE), TEXT_BYTES as u64) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        bytes => Ok(DurableEnd::decode(&bytes?)),
    }
}

/// Removes the file. After this call the log has no durable end.
pub(super) fn remove(files: &dyn FileSystem, dir: &Path) -> io::Result<()> {
    remove_if_there(files, &dir.join(DURABLE_END_FILE))?;
    files.sync_dir(dir)
}

/// The file, open for overwriting.
#[derive(Debug)]
pub(super) struct DurableEndFile(Box<dyn File>);

impl DurableEndFile {
    /// Creates or replaces the file. Everything up to `end` must be on disk. If the disk is full,
    /// removes the file and returns `None`, because a member must be able to start.
    pub(super) fn create(
        files: &dyn FileSystem,
        dir: &Path,
        end: &DurableEnd,
    ) -> io::Result<Option<DurableEndFile>> {
        let bytes = end.encode();
        match replace(files, dir, DURABLE_END_FILE_NEW, DURABLE_END_FILE, &bytes) {
            Ok(()) => DurableEndFile::open(files, dir).map(Some),
            Err(error) if is_out_of_space(&error) => {
                // The old file would still be correct, but nothing would update it.
                remove(files, dir)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the file in the temporary directory of a new log. The directory is renamed later.
    pub(super) fn create_first(
        files: &dyn FileSystem,
        dir: &Path,
        end: &DurableEnd,
    ) -> io::Result<()> {
        create_with(files, &dir.join(DURABLE_END_FILE), &end.encode())
    }

    pub(super) fn open(files: &dyn FileSystem, dir: &Path) -> io::Result<DurableEndFile> {
        files.open(&dir.join(DURABLE_END_FILE)).map(DurableEndFile)
    }

    /// Overwrites the file, without a sync. Everything up to `end` must be on disk.
    pub(super) fn write(&mut self, end: &DurableEnd) -> io::Result<()> {
        self.0.write_at(0, &end.encode())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_end_is_read_back_and_a_changed_byte_is_noticed() {
        let segment = SegmentName { sequence: 3, index: 17 };
        let end = DurableEnd { segment, offset: 4096, crc: 0x9abc_def0, last_index: 21 };
        let bytes = end.encode();
        assert_eq!(bytes.len(), TEXT_BYTES, "all texts are equally long");
        assert_eq!(DurableEnd::decode(&bytes), Some(end));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(DurableEnd::decode(&damaged), None, "byte {at}");
            assert_eq!(DurableEnd::decode(&bytes[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn ends_are_ordered_by_segment_and_offset() {
        let segment = SegmentName { sequence: 3, index: 17 };
        let end = DurableEnd { segment, offset: 4096, crc: 0, last_index: 0 };
        assert!(end.is_after((2, 9000)) && end.is_after((3, 4088)));
        assert!(!end.is_after((3, 4096)) && !end.is_after((4, 0)));
    }
}
