//! Reads a segment, usually of 64 MB, through a window that shows a part of it.
//!
//! ```text
//!   0                                written            length
//!   ├── records ─ ... ───────────────┤┄┄┄┄┄ zeros ┄┄┄┄┄┄┤
//!         └── window: 1 MiB ──┘
//!                       ▲ a record that extends beyond the window: the window moves to it,
//!                         and grows if the record is larger than the window
//! ```
//!
//! The window can show that a record is whole. If a record is not valid, all bytes after it decide
//! whether it is torn or damaged. So the window then grows until it [reaches the
//! end](Window::reaches_end). At the proper end of the log the window need not grow, because all
//! bytes after [`written`](Window::written) are known to be zero.

use std::io;

use super::frame::{FrameResult, SegmentBytes, is_zero};
use crate::files::{File, SECTOR};

/// Usual size of the window in bytes. The window grows if it is too small for a result.
const WINDOW_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Window<'a> {
    file: &'a dyn File,
    length: u64,
    written: u64,
    visible: SegmentBytes,
    window_bytes: u64,
}

impl<'a> Window<'a> {
    pub(super) fn open(file: &'a dyn File, is_last: bool) -> io::Result<Window<'a>> {
        Window::of_size(WINDOW_BYTES, file, is_last)
    }

    fn of_size(piece: u64, file: &'a dyn File, is_last: bool) -> io::Result<Window<'a>> {
        let length = file.length()?;
        let visible = SegmentBytes { bytes: Vec::new(), start: 0, is_last };
        let written = written_length(file, length, piece)?;
        let mut window = Window { file, length, written, visible, window_bytes: piece };
        window.load(0, 0)?;
        Ok(window)
    }

    /// Returns the offset after the last byte of the file that is not zero.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Reads the frame at `offset`, which must not be before the window. Returns `None` if the
    /// window is too small for a result.
    pub(super) fn read_frame(&self, offset: u64, crc: u32) -> Option<FrameResult<'_>> {
        // If 1 to 7 bytes remain, the file ends within a length, which is not a proper end.
        let room = self.length.saturating_sub(offset);
        if offset >= self.written && (room == 0 || room >= 8) {
            return Some(FrameResult::End);
        }
        let found = self.visible.read_frame(offset, crc);
        (matches!(found, FrameResult::Record { .. }) || self.reaches_end()).then_some(found)
    }

    /// See [`SegmentBytes::find_later_sync`]. The frame at `offset` must be torn, so the window
    /// reaches the end of the segment.
    pub(super) fn find_later_sync(&self, offset: u64) -> Option<u64> {
        self.visible.find_later_sync(offset)
    }

    fn reaches_end(&self) -> bool {
        self.visible.end() >= self.length
    }

    /// Moves the window to the sector of an offset. If the window already starts there, doubles its
    /// size.
    pub(super) fn widen(&mut self, offset: u64) -> io::Result<()> {
        let start = offset / SECTOR * SECTOR;
        let is_there = start <= self.visible.start;
        self.load(start, if is_there { 2 * self.visible.bytes.len() as u64 } else { 0 })
    }

    /// Loads at least the window's usual size, but nothing after the end of the segment.
    fn load(&mut self, start: u64, size: u64) -> io::Result<()> {
        let size = size.max(self.window_bytes).min(self.length.saturating_sub(start));
        self.visible.bytes.resize(usize::try_from(size).map_err(io::Error::other)?, 0);
        self.visible.start = start;
        self.file.read_at(start, &mut self.visible.bytes)
    }
}

/// Returns the offset after the last byte that is not zero. Searches backwards from the end of the
/// file or from the start of known zeros, `at_once` bytes at a time.
fn written_length(file: &dyn File, length: u64, at_once: u64) -> io::Result<u64> {
    let mut piece = Vec::new();
    let mut end = file.zeros_from()?.min(length);
    while end > 0 {
        let start = (end - 1) / at_once * at_once;
        piece.resize(usize::try_from(end - start).map_err(io::Error::other)?, 0);
        file.read_at(start, &mut piece)?;
        if !is_zero(&piece) {
            let last = piece.iter().rposition(|byte| *byte != 0);
            return Ok(start + last.map_or(0, |last| last as u64 + 1));
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::files::{FileSystem, SimulatedDisk};
    use crate::frame;
    use crate::wire::{Record, RecordKind};

    /// Returns the end and the crc of each record of a segment, and the frame result that ends the
    /// reading.
    fn found(file: &dyn File, piece: u64, is_last: bool) -> (Vec<(u64, u32)>, String) {
        let mut window = Window::of_size(piece, file, is_last).unwrap();
        let (mut offset, mut crc, mut records) = (0, 0, Vec::new());
        loop {
            match window.read_frame(offset, crc) {
                None => window.widen(offset).unwrap(),
                Some(FrameResult::Record { record, next }) => {
                    (offset, crc) = (next, record.crc);
                    records.push((offset, crc));
                }
                Some(end) => return (records, format!("{end:?}")),
            }
        }
    }

    /// Returns a segment with records and zeros after them. Each item of `damage` has a position, a
    /// byte and a length: the bytes from the position on are overwritten with this byte.
    fn segment(
        sizes: &[usize],
        zeros: usize,
        damage: &[(prop::sample::Index, u8, usize)],
    ) -> Vec<u8> {
        let (mut bytes, mut crc) = (Vec::new(), 0);
        for (number, size) in sizes.iter().enumerate() {
            let data = vec![number as u8; *size];
            crc = crc32c::crc32c_append(crc, &data);
            frame::put(&mut bytes, &Record { kind: RecordKind::Entry, crc, data: Some(&data) });
        }
        bytes.resize(bytes.len() + zeros, 0);
        for (at, byte, length) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                let end = bytes.len().min(at + length);
                bytes[at..end].fill(*byte);
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn what_is_found_does_not_depend_on_the_window(
            sizes in prop::collection::vec(prop_oneof![0_usize..40, 400_usize..5000], 0..20),
            zeros in prop_oneof![Just(0_usize), 0_usize..3000],
            damage in prop::collection::vec(
                (any::<prop::sample::Index>(), prop_oneof![Just(0), any::<u8>()], 1_usize..1200), 0..3),
            is_last: bool,
        ) {
            let disk = SimulatedDisk::new(["/log"]);
            let mut file = disk.create(Path::new("/log/segment")).unwrap();
            file.write_at(0, &segment(&sizes, zeros, &damage)).unwrap();
            let whole = found(&*file, 1 << 20, is_last);
            prop_assert_eq!(&found(&*file, 512, is_last), &whole);
            prop_assert_eq!(&found(&*file, 1024, is_last), &whole);
            if damage.is_empty() && zeros % 8 == 0 {
                prop_assert_eq!((whole.0.len(), &*whole.1), (sizes.len(), "End"));
            }
        }
    }
}
