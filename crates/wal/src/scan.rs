//! Reading segments from the first record to the last.
//!
//! The sum runs on from segment to segment, and each segment begins with the sum so far and the
//! metadata. So a segment that is missing, exchanged or taken from another log does not fit. What
//! is read passes the [rules](super::log_validator) before the caller sees it.
//!
//! A segment is read [through a window](super::segment_window), so that a start needs memory for a
//! piece of a segment and not for 64 MB.

use std::path::PathBuf;

use super::frame::FrameResult;
use super::log_validator::LogValidator;
use super::segment_name::SegmentName;
use super::segment_window::Window;
use crate::error::{Error, Result};
use crate::files::File;
use crate::wire::{DecodeError, Entry, HardState, Metadata, Record, RecordKind, WalSnapshot};

#[derive(Debug)]
pub(super) struct OpenSegment {
    pub(super) name: SegmentName,
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn File>,
    /// Writing up to here is not expected to fail for want of space.
    pub(super) reserved: u64,
}

/// In the order of the log.
#[derive(Debug)]
pub(super) enum ScannedRecord {
    Entry(Entry),
    State(HardState),
    Snapshot {
        snapshot: WalSnapshot,
        /// The log begins anew behind it.
        restarts_log: bool,
    },
}

#[derive(Debug)]
pub(super) struct ScanEnd {
    pub(super) metadata: Metadata,
    pub(super) validator: LogValidator,
    pub(super) crc: u32,
    /// In the last segment, behind the last record that fits.
    pub(super) offset: u64,
    /// The end of the last non-zero byte of that segment: beyond `offset` if the end is torn.
    pub(super) written: u64,
}

/// Reads segments, at least one, without a gap in their sequence. An error of `tell` makes the log
/// corrupt.
pub(super) fn scan(
    segments: &[OpenSegment],
    mut tell: impl FnMut(ScannedRecord) -> std::result::Result<(), String>,
) -> Result<ScanEnd> {
    let first = segments.first().map_or(0, |segment| segment.name.index);
    let mut scan =
        Scan { validator: LogValidator::after(first.saturating_sub(1)), crc: 0, metadata: None };
    let (mut offset, mut written) = (0, 0);
    for (at, open) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        let unread = |source| Error::path(&open.path, "read it", source);
        let mut window = Window::open(&*open.file, is_last).map_err(unread)?;
        offset = scan.read_segment(open, &mut window, &mut tell)?;
        written = window.written();
    }
    let metadata = scan.metadata.unwrap_or_default();
    Ok(ScanEnd { metadata, validator: scan.validator, crc: scan.crc, offset, written })
}

struct Scan {
    validator: LogValidator,
    crc: u32,
    /// Of the first segment; the others have the same.
    metadata: Option<Metadata>,
}

impl Scan {
    /// Returns where its last record ends.
    fn read_segment(
        &mut self,
        open: &OpenSegment,
        window: &mut Window<'_>,
        tell: &mut impl FnMut(ScannedRecord) -> std::result::Result<(), String>,
    ) -> Result<u64> {
        let unread = |source| Error::path(&open.path, "read it", source);
        let corrupt = |offset, detail| Error::corrupt(&open.path, offset, detail);
        let mut offset = 0;
        for number in 0_u64.. {
            let found = loop {
                match window.read_frame(offset, self.crc) {
                    Some(found) => break found,
                    None => window.widen(offset).map_err(unread)?,
                }
            };
            let (record, next) = match found {
                FrameResult::Record { record, next } => (record, next),
                // Its head is whole, and the sum up to there is another one.
                FrameResult::Corrupt(detail) if number == 0 && self.metadata.is_some() => {
                    let before = "the segment before it has lost its end, or is of another log";
                    return Err(corrupt(offset, format!("{detail}: {before}")));
                }
                FrameResult::Corrupt(detail) => return Err(corrupt(offset, detail)),
                // The head of a segment is synced before the segment gets its name.
                FrameResult::End | FrameResult::Torn if number < 2 => {
                    return Err(corrupt(offset, "a segment without its first records".to_owned()));
                }
                FrameResult::End | FrameResult::Torn => break,
            };
            let told = match number {
                0 => self.check_first_record(&record, open.name),
                1 => self.check_metadata_record(&record),
                _ => self.decode_record(&record).and_then(&mut *tell),
            };
            told.map_err(|detail| corrupt(offset, detail))?;
            self.crc = record.crc;
            offset = next;
        }
        Ok(offset)
    }

    fn check_first_record(
        &self,
        record: &Record<'_>,
        name: SegmentName,
    ) -> std::result::Result<(), String> {
        match record.kind {
            RecordKind::Crc if name.sequence == 0 && record.crc != 0 => {
                Err(format!("a log that begins with crc {:08x}", record.crc))
            }
            RecordKind::Crc => Ok(()),
            _ => Err("a segment that does not begin with a crc".to_owned()),
        }
    }

    fn check_metadata_record(&mut self, record: &Record<'_>) -> std::result::Result<(), String> {
        let data = match (record.kind, record.data) {
            (RecordKind::Metadata, Some(data)) => data,
            _ => return Err("a segment without metadata behind its crc".to_owned()),
        };
        let found = Metadata::decode(data).map_err(|garbage| garbage.to_string())?;
        let of = self.metadata.get_or_insert(found);
        if *of == found {
            Ok(())
        } else {
            Err(format!("the metadata of another log: {found:?} after {of:?}"))
        }
    }

    fn decode_record(&mut self, record: &Record<'_>) -> std::result::Result<ScannedRecord, String> {
        let data = record.data.unwrap_or_default();
        let text = |garbage: DecodeError| garbage.to_string();
        match record.kind {
            RecordKind::Entry => {
                let entry = Entry::decode(data).map_err(text)?;
                self.validator.accept_entry(&entry)?;
                Ok(ScannedRecord::Entry(entry))
            }
            RecordKind::State => {
                let state = HardState::decode(data).map_err(text)?;
                self.validator.accept_hard_state(&state)?;
                Ok(ScannedRecord::State(state))
            }
            RecordKind::Snapshot => {
                let snapshot = WalSnapshot::decode(data).map_err(text)?;
                let anew = self.validator.accept_snapshot(&snapshot)?;
                Ok(ScannedRecord::Snapshot { snapshot, restarts_log: anew })
            }
            RecordKind::Metadata | RecordKind::Crc => {
                Err("the head of a segment in its middle".to_owned())
            }
        }
    }
}
