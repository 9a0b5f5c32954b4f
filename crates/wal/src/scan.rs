//! Reads segments from the first record to the last.
//!
//! The running crc continues from segment to segment. Each segment starts with the running crc and
//! the metadata. So a segment that is missing, swapped or copied from another log is detected. The
//! [rules](super::log_validator) check every record before the caller sees it.
//!
//! A segment is read [through a window](super::segment_window), so that a start usually needs
//! memory for a part of a segment and not for 64 MB.

use std::path::PathBuf;

use super::durable_end::DurableEnd;
use super::frame::FrameResult;
use super::log_validator::LogValidator;
use super::segment_name::SegmentName;
use super::segment_window::Window;
use super::writer::LogEnd;
use crate::error::{Error, Result};
use crate::files::File;
use crate::wire::{DecodeError, Entry, HardState, Metadata, Record, RecordKind, WalSnapshot};

#[derive(Debug)]
pub(super) struct OpenSegment {
    pub(super) name: SegmentName,
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn File>,
    /// Writes up to this offset are not expected to fail on a full disk.
    pub(super) reserved: u64,
}

/// A record of the log, decoded and checked.
#[derive(Debug)]
pub(super) enum ScannedRecord {
    Entry(Entry),
    State(HardState),
    Snapshot {
        snapshot: WalSnapshot,
        /// If true, the log restarts after this snapshot.
        restarts_log: bool,
    },
}

/// The end of a log as found by a scan, and signs of lost records.
#[derive(Debug)]
pub(super) struct ScanEnd {
    pub(super) end: LogEnd,
    /// The offset after the last non-zero byte of the last segment. It is above `end.offset` if the
    /// log's end is torn.
    pub(super) written: u64,
    /// If true, a record ends at the expected durable end, with the same crc.
    pub(super) has_durable_end: bool,
    /// The offset of a record after the end that belongs to a later sync, or `None`. If there is
    /// such a record, the end looks torn but is damaged.
    pub(super) later_sync: Option<u64>,
}

/// Reads one or more segments, which must be consecutive. `expected` is the durable end to search
/// for. An error from `on_record` is returned as [`Error::Corrupt`].
pub(super) fn scan(
    segments: &[OpenSegment],
    expected: Option<&DurableEnd>,
    mut on_record: impl FnMut(ScannedRecord) -> std::result::Result<(), String>,
) -> Result<ScanEnd> {
    let first = segments.first().map_or(0, |segment| segment.name.index);
    let validator = LogValidator::after(first.saturating_sub(1));
    let end = LogEnd { validator, ..LogEnd::default() };
    let mut found = ScanEnd { end, written: 0, has_durable_end: false, later_sync: None };
    for (at, open) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        let unread = |source| Error::path(&open.path, "read it", source);
        let mut window = Window::open(&*open.file, is_last).map_err(unread)?;
        let expected = expected.filter(|durable| durable.segment == open.name);
        let expected = expected.map(|durable| (durable.offset, durable.crc));
        found.has_durable_end |=
            found.end.read_segment(open, &mut window, (at == 0, expected), &mut on_record)?;
        found.written = window.written();
        if is_last && found.written > found.end.offset {
            found.later_sync = window.find_later_sync(found.end.offset);
        }
    }
    Ok(found)
}

impl LogEnd {
    /// Reads one segment. Returns whether a record ends at the expected offset, with the expected
    /// crc.
    fn read_segment(
        &mut self,
        open: &OpenSegment,
        window: &mut Window<'_>,
        (is_first, expected): (bool, Option<(u64, u32)>),
        on_record: &mut impl FnMut(ScannedRecord) -> std::result::Result<(), String>,
    ) -> Result<bool> {
        self.offset = 0;
        let mut is_found = false;
        for number in 0_u64.. {
            let corrupt = |detail| Error::corrupt(&open.path, self.offset, detail);
            let found = loop {
                match window.read_frame(self.offset, self.crc) {
                    Some(found) => break found,
                    None => window
                        .widen(self.offset)
                        .map_err(|source| Error::path(&open.path, "read it", source))?,
                }
            };
            let (record, next) = match found {
                FrameResult::Record { record, next } => (record, next),
                // The first record of the segment is invalid, for example because its crc differs
                // from the running crc.
                FrameResult::Corrupt(detail) if number == 0 && !is_first => {
                    let before = "the previous segment has lost its end, or belongs to another log";
                    return Err(corrupt(format!("{detail}: {before}")));
                }
                FrameResult::Corrupt(detail) => return Err(corrupt(detail)),
                // The head of a segment is synced before the segment gets its name, so it cannot be
                // torn.
                FrameResult::End | FrameResult::Torn if number < 2 => {
                    return Err(corrupt("a segment without its first records".to_owned()));
                }
                FrameResult::End | FrameResult::Torn => break,
            };
            let checked = match number {
                0 => check_first_record(&record, open.name),
                1 => self.check_metadata_record(&record, is_first),
                _ => self.decode_record(&record).and_then(&mut *on_record),
            };
            checked.map_err(|detail| Error::corrupt(&open.path, self.offset, detail))?;
            (self.crc, self.offset) = (record.crc, next);
            is_found |= expected == Some((self.offset, self.crc));
        }
        Ok(is_found)
    }

    fn check_metadata_record(
        &mut self,
        record: &Record<'_>,
        is_first: bool,
    ) -> std::result::Result<(), String> {
        let data = match (record.kind, record.data) {
            (RecordKind::Metadata, Some(data)) => data,
            _ => return Err("a segment without metadata after its crc".to_owned()),
        };
        let found = Metadata::decode(data).map_err(|garbage| garbage.to_string())?;
        if !is_first && found != self.metadata {
            return Err(format!(
                "the metadata of another log: {found:?} after {:?}",
                self.metadata
            ));
        }
        self.metadata = found;
        Ok(())
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
                Err("a crc or metadata record in the middle of a segment".to_owned())
            }
        }
    }
}

fn check_first_record(record: &Record<'_>, name: SegmentName) -> std::result::Result<(), String> {
    match record.kind {
        RecordKind::Crc if name.sequence == 0 && record.crc != 0 => {
            Err(format!("a log that starts with crc {:08x}, expected 0", record.crc))
        }
        RecordKind::Crc => Ok(()),
        _ => Err("a segment that does not start with a crc".to_owned()),
    }
}
