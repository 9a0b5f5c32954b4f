//! Frames of records in a segment. This module distinguishes a torn record from a damaged record.
//!
//! ```text
//!   0        8                                  multiple of 8
//!   ├─length─┤├────────── record ──────────┤├ zeros ┤├─length─┤ ...
//!
//!   length: 64 bits, little endian. The low 56 bits are the record's length. If zeros are needed
//!           to reach a multiple of 8, the highest bit is set, and the three lowest bits of the
//!           highest byte are the number of zeros. Otherwise that byte is 0.
//!
//!   example: a record of 13 bytes needs 3 zeros, so its length field is 0x83_00_00_00_00_00_00_0d
//! ```
//!
//! A length never crosses a sector boundary, because frames start at multiples of 8. Segments are
//! allocated ahead and filled with zeros. So if a length is zero and only zeros follow, nothing was
//! written from this point on. `docs/log.md` has a table of torn and damaged states.

use crate::files::SECTOR;
use crate::wire::{Record, RecordKind};

const ALIGNMENT: u64 = 8;
const LENGTH_BITS: u32 = 56;
const LENGTH_SIZE: u64 = 8;

/// Appends a record with its frame. `out` must start at a multiple of 8 in the segment.
pub(super) fn put(out: &mut Vec<u8>, record: &Record<'_>) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_SIZE as usize]);
    record.encode_to(out);
    let length = (out.len() - start) as u64 - LENGTH_SIZE;
    out.resize(out.len() + padding(length) as usize, 0);
    out[start..start + LENGTH_SIZE as usize].copy_from_slice(&length_field(length).to_le_bytes());
}

fn padding(length: u64) -> u64 {
    length.next_multiple_of(ALIGNMENT) - length
}

fn length_field(length: u64) -> u64 {
    match padding(length) {
        0 => length,
        padding => (0x80 | padding) << LENGTH_BITS | length,
    }
}

/// A part of a segment, starting at a sector. All offsets are offsets in the segment.
#[derive(Debug)]
pub(super) struct SegmentBytes {
    /// The bytes. Unless they extend to the end of the segment, only the result `Record` may be
    /// used: all other results need the rest of the segment.
    pub(super) bytes: Vec<u8>,
    /// The offset of the first byte. It is the start of a sector, because losses are judged by
    /// sectors.
    pub(super) start: u64,
    /// If true, this is the last segment, whose end may be torn.
    pub(super) is_last: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameResult<'a> {
    /// A valid record, and the offset of the next frame. The running crc after the record is the
    /// record's crc.
    Record { record: Record<'a>, next: u64 },
    /// Only zeros follow: nothing was written from this point on.
    End,
    /// From this point on, the bytes are the remains of a write that a power cut interrupted.
    Torn,
    /// Bytes have changed since they were written. The text is the reason for this result.
    Corrupt(String),
}

/// The offset of a frame, and the length of its record without the zeros that follow.
struct Frame {
    offset: u64,
    length: u64,
}

impl Frame {
    fn body(&self) -> u64 {
        self.offset + LENGTH_SIZE
    }

    fn end(&self) -> u64 {
        self.body().saturating_add(self.length).saturating_add(padding(self.length))
    }
}

impl SegmentBytes {
    /// Reads the frame at `offset`, which is a multiple of 8. `crc` is the running crc before the
    /// frame.
    pub(super) fn read_frame(&self, offset: u64, crc: u32) -> FrameResult<'_> {
        let rest = self.bytes_from(offset);
        let Some(field) = rest.first_chunk() else {
            return if rest.is_empty() {
                FrameResult::End
            } else {
                self.torn_or_corrupt("the file ends within a length")
            };
        };
        let field = u64::from_le_bytes(*field);
        if field == 0 {
            return self.read_unwritten(offset);
        }
        let frame = Frame { offset, length: field & ((1 << LENGTH_BITS) - 1) };
        if frame.length == 0 || field != length_field(frame.length) {
            return FrameResult::Corrupt("a length whose padding is wrong".to_owned());
        }
        self.read_record(&frame, crc)
    }

    /// Searches for a record of a later sync, starting at a torn frame at `offset`. If there is
    /// such a record, an earlier sync has covered the frame, so the frame is not torn but damaged.
    /// Returns the record's offset, or `None`.
    ///
    /// One sync covers entries, followed by at most one state. So in the sequence "entry, state,
    /// entry" the third record belongs to a later sync, unless there is a snapshot record between
    /// these three records. The search uses only records whose crc continues from the previous
    /// record, and a first record whose crc the next record continues.
    pub(super) fn find_later_sync(&self, offset: u64) -> Option<u64> {
        let (mut at, mut crc) = (offset, None);
        let (mut has_entry, mut has_state) = (false, false);
        while at < self.end() {
            let Some((record, next)) = self.find_record(at, crc) else {
                (at, crc) = (at + ALIGNMENT, None);
                continue;
            };
            match record.kind {
                RecordKind::Entry if has_state => return Some(at),
                RecordKind::Entry => has_entry = true,
                RecordKind::State => has_state = has_entry,
                _ => (has_entry, has_state) = (false, false),
            }
            (at, crc) = (next, Some(record.crc));
        }
        None
    }

    /// Returns the record at `offset`, and the offset after it. `crc` is the crc of the previous
    /// record, and this record's crc must continue from it. If `crc` is `None`, the crc of the next
    /// record must continue from this record's crc. Returns `None` if the check fails.
    fn find_record(&self, offset: u64, crc: Option<u32>) -> Option<(Record<'_>, u64)> {
        let (record, next) = self.decode_frame(offset)?;
        let is_found = match crc {
            Some(crc) => check_crc(&record, crc).is_ok(),
            None => self
                .decode_frame(next)
                .is_some_and(|(following, _)| check_crc(&following, record.crc).is_ok()),
        };
        is_found.then_some((record, next))
    }

    /// Returns the record of the frame at `offset`, and the offset after the frame. Does not check
    /// the crc. Returns `None` for an invalid frame, and for the two kinds of records that start a
    /// segment.
    fn decode_frame(&self, offset: u64) -> Option<(Record<'_>, u64)> {
        let field = u64::from_le_bytes(*self.bytes_from(offset).first_chunk()?);
        let frame = Frame { offset, length: field & ((1 << LENGTH_BITS) - 1) };
        if frame.length == 0 || field != length_field(frame.length) || frame.end() > self.end() {
            return None;
        }
        let record = Record::decode(self.slice(frame.body(), frame.body() + frame.length)).ok()?;
        let is_head = matches!(record.kind, RecordKind::Crc | RecordKind::Metadata);
        (!is_head).then_some((record, frame.end()))
    }

    fn bytes_from(&self, offset: u64) -> &[u8] {
        self.slice(offset, u64::MAX)
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Returns the bytes from `from` up to `to`, as far as they are available.
    fn slice(&self, from: u64, to: u64) -> &[u8] {
        let [from, to] = [from, to].map(|offset| (offset.min(self.end()) - self.start) as usize);
        &self.bytes[from..to.max(from)]
    }

    fn torn_or_corrupt(&self, what: &str) -> FrameResult<'_> {
        if self.is_last { FrameResult::Torn } else { FrameResult::Corrupt(what.to_owned()) }
    }

    /// Returns the result for a length of zero: the end, a torn frame or a damaged frame.
    fn read_unwritten(&self, offset: u64) -> FrameResult<'_> {
        let sector_end = (offset / SECTOR + 1) * SECTOR;
        if !is_zero(self.slice(offset, sector_end)) {
            FrameResult::Corrupt("a length of zero, but more bytes after it".to_owned())
        } else if is_zero(self.bytes_from(sector_end)) {
            FrameResult::End
        } else {
            self.torn_or_corrupt("a length of zero, but more bytes in later sectors")
        }
    }

    fn read_record(&self, frame: &Frame, crc: u32) -> FrameResult<'_> {
        let damage = match self.decode_record(frame, crc) {
            Ok(record) => return FrameResult::Record { record, next: frame.end() },
            Err(damage) => damage,
        };
        let is_damaged = self.has_whole_record(frame, crc) || self.contradicts_length(frame);
        if self.has_lost_sector(frame) && !is_damaged {
            return self.torn_or_corrupt(&damage);
        }
        FrameResult::Corrupt(damage)
    }

    /// Returns whether the record's own length differs from the frame's length. Returns false if
    /// the two lengths are not in one sector. In one sector they were written together, so if they
    /// differ, one of them has changed since.
    fn contradicts_length(&self, frame: &Frame) -> bool {
        let sector_end = (frame.offset / SECTOR + 1) * SECTOR;
        let head = self.slice(frame.body(), sector_end);
        Record::decode_length(head).is_ok_and(|length| length != frame.length)
    }

    /// Returns whether a whole record with the expected crc follows the frame's length. If so, the
    /// damage is in the length or in the zeros after the record. There is one exception: if the
    /// record has the frame's length and the file ends within those zeros, returns false, because
    /// the frame is torn.
    fn has_whole_record(&self, frame: &Frame, crc: u32) -> bool {
        let body = self.bytes_from(frame.body());
        let is_cut = frame.end() > self.end();
        Record::decode_prefix(body).is_ok_and(|(record, rest)| {
            let length = (body.len() - rest.len()) as u64;
            check_crc(&record, crc).is_ok() && !(is_cut && length == frame.length)
        })
    }

    fn decode_record(&self, frame: &Frame, crc: u32) -> Result<Record<'_>, String> {
        if frame.end() > self.end() {
            return Err("a frame that extends beyond the end of the file".to_owned());
        }
        let body = self.slice(frame.body(), frame.body() + frame.length);
        let record = Record::decode(body).map_err(|garbage| garbage.to_string())?;
        check_crc(&record, crc)?;
        if is_zero(self.slice(frame.body() + frame.length, frame.end())) {
            Ok(record)
        } else {
            Err("no zeros after a record".to_owned())
        }
    }

    /// Returns whether some part of the frame seems not to have reached the disk: the file ends
    /// early, or the frame's part in some sector is zero.
    fn has_lost_sector(&self, frame: &Frame) -> bool {
        if frame.end() > self.end() {
            return true;
        }
        // The sector with the length was written completely. So only the later sectors are checked.
        let mut from = frame.body().next_multiple_of(SECTOR);
        while from < frame.end() {
            let to = (from + SECTOR).min(frame.end());
            if is_zero(self.slice(from, to)) {
                return true;
            }
            from = to;
        }
        false
    }
}

fn check_crc(record: &Record<'_>, crc: u32) -> Result<(), String> {
    let due = match (record.kind, record.data) {
        // A scan that starts in the middle of a log does not know the running crc yet, so `crc` is
        // 0.
        (RecordKind::Crc, _) if crc == 0 => return Ok(()),
        (RecordKind::Crc, _) => crc,
        (_, data) => crc32c::crc32c_append(crc, data.unwrap_or_default()),
    };
    if record.crc == due {
        Ok(())
    } else {
        Err(format!("crc {:08x}, expected {due:08x}", record.crc))
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // Comparing blocks of 64 bytes is fast: tails of 64 MB are scanned when a log is opened.
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
