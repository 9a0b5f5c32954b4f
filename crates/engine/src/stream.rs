//! Transfers a snapshot as a stream of bytes: a consistent copy of a store that stays in use.
//!
//! An [`Exporter`] reads one snapshot and returns chunks. An [`Importer`] takes chunks and fills an
//! empty engine, which may be of another kind. The exporter keeps one chunk in memory, and the
//! importer keeps a few megabytes. A larger record is kept as a whole. The size of the store does
//! not affect the memory in use.
//!
//! ```text
//!   magic │ frame │ frame │ … │ trailer frame
//!   frame = head: kind u8 · body length u32 · crc32c of these │ body │ crc32c of head and body
//!   body of records = (bucket u8 · key length u32 · value length u32 · key · value) …
//!   body of the trailer = number of records u64 · crc32c of all frame checksums before it
//! ```
//!
//! Numbers are big endian. `docs/engine.md` describes the format.
//!
//! * A copy is complete only when [`Importer::finish`] has returned `Ok`. A missing trailer is an
//!   error, and so are bytes that follow the trailer. If a stream is larger than 1 MiB, most of its
//!   records are committed before the trailer arrives. So the caller imports the stream into a new
//!   directory and afterwards moves the directory into place.
//! * Records arrive in the order of buckets and keys. Each commit of the importer has a bounded
//!   size.
//! * The importer writes only into an engine that has no records.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::{Engine, KeyRange, Snapshot, WriteTxn};

const MAGIC: &[u8; 17] = b"clearlane-stream\x02";
const FRAME_RECORDS: u8 = 1;
const FRAME_TRAILER: u8 = 2;
/// Size of a frame's head: the kind, the body's length, and the checksum of both.
const FRAME_HEAD_BYTES: usize = 9;
/// The offset of the head's checksum in the head.
const HEAD_SUM_OFFSET: usize = 5;
const FRAME_SUM_BYTES: usize = 4;
/// Size of a record's head, which precedes its key: the bucket, and the lengths of key and value.
const RECORD_HEAD_BYTES: usize = 9;
const TRAILER_BODY_BYTES: usize = 12;
/// The exporter ends a frame's body when the body has at least this length.
const FRAME_BODY_BYTES: usize = 256 << 10;
/// The importer commits when at least this many bytes of records are not committed yet.
const COMMIT_BYTES: usize = 1 << 20;
/// Maximum body length that a frame's head may state. One very large value fits, with the records
/// that precede it in the frame.
const FRAME_BODY_BYTES_MAX: usize = 1 << 30;

#[derive(Debug)]
pub struct Exporter {
    snapshot: Arc<dyn Snapshot>,
    next: ExportPosition,
    records: u64,
    sum_of_sums: u32,
}

#[derive(Debug)]
enum ExportPosition {
    Magic,
    Records { bucket: Bucket, from: Vec<u8> },
    Trailer,
    End,
}

impl Exporter {
    pub fn new(snapshot: Arc<dyn Snapshot>) -> Exporter {
        Exporter { snapshot, next: ExportPosition::Magic, records: 0, sum_of_sums: 0 }
    }

    /// Returns the snapshot that is exported, for a caller that must know which records the copy
    /// will contain.
    pub fn snapshot(&self) -> &Arc<dyn Snapshot> {
        &self.snapshot
    }

    /// Returns the next chunk, or `None` at the end of the stream. After an error, all later calls
    /// return `None`.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        match std::mem::replace(&mut self.next, ExportPosition::End) {
            ExportPosition::Magic => {
                self.next = ExportPosition::Records { bucket: Bucket::ALL[0], from: Vec::new() };
                Ok(Some(Bytes::from_static(MAGIC)))
            }
            ExportPosition::Records { bucket, from } => self.next_records(bucket, from),
            ExportPosition::Trailer => Ok(Some(self.trailer())),
            ExportPosition::End => Ok(None),
        }
    }

    /// Returns the next frame of records, or the trailer if no record is left. A frame may contain
    /// records of several buckets.
    fn next_records(&mut self, bucket: Bucket, from: Vec<u8>) -> Result<Option<Bytes>> {
        let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + FRAME_BODY_BYTES + (4 << 10));
        frame.put_bytes(0, FRAME_HEAD_BYTES);
        let mut from = Some(from);
        for bucket in Bucket::ALL.into_iter().skip(bucket.index()) {
            let start = from.take().unwrap_or_default();
            if let Some(rest) = self.append_records(&mut frame, bucket, &start)? {
                self.next = ExportPosition::Records { bucket, from: rest };
                return Ok(Some(self.finish_frame(frame, FRAME_RECORDS)));
            }
        }
        self.next = ExportPosition::Trailer;
        if frame.len() == FRAME_HEAD_BYTES {
            return self.next_chunk();
        }
        Ok(Some(self.finish_frame(frame, FRAME_RECORDS)))
    }

    /// Appends records of a bucket until the frame is full. Returns the first key that did not fit,
    /// or `None` at the end of the bucket. Fails if a record is larger than 1 GiB minus 256 KiB,
    /// because it might not fit after the records that precede it in the frame.
    fn append_records(
        &mut self,
        frame: &mut BytesMut,
        bucket: Bucket,
        from: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let mut rest = None;
        let mut too_large = false;
        self.snapshot.scan(bucket, KeyRange::starting_at(from), &mut |key, value| {
            if frame.len() >= FRAME_HEAD_BYTES + FRAME_BODY_BYTES {
                rest = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            let size = RECORD_HEAD_BYTES + key.len() + value.len();
            too_large = size > FRAME_BODY_BYTES_MAX - FRAME_BODY_BYTES;
            if too_large {
                return ControlFlow::Break(());
            }
            frame.put_u8(bucket as u8);
            frame.put_u32(key.len() as u32);
            frame.put_u32(value.len() as u32);
            frame.put_slice(key);
            frame.put_slice(value);
            self.records += 1;
            ControlFlow::Continue(())
        })?;
        if too_large {
            return Err(Error::Storage("a record is too large to be streamed".to_owned()));
        }
        Ok(rest)
    }

    fn trailer(&mut self) -> Bytes {
        let mut frame = BytesMut::zeroed(FRAME_HEAD_BYTES);
        frame.put_u64(self.records);
        frame.put_u32(self.sum_of_sums);
        self.finish_frame(frame, FRAME_TRAILER)
    }

    fn finish_frame(&mut self, mut frame: BytesMut, kind: u8) -> Bytes {
        let body = (frame.len() - FRAME_HEAD_BYTES) as u32;
        frame[0] = kind;
        frame[1..HEAD_SUM_OFFSET].copy_from_slice(&body.to_be_bytes());
        let head_sum = crc32c::crc32c(&frame[..HEAD_SUM_OFFSET]);
        frame[HEAD_SUM_OFFSET..FRAME_HEAD_BYTES].copy_from_slice(&head_sum.to_be_bytes());
        let sum = crc32c::crc32c(&frame);
        frame.put_u32(sum);
        self.sum_of_sums = crc32c::crc32c_append(self.sum_of_sums, &sum.to_be_bytes());
        frame.freeze()
    }
}

/// Fills an engine from the chunks of a stream. The stream may be split into chunks at any byte.
#[derive(Debug)]
pub struct Importer {
    /// The open transaction, which contains the records that are not committed yet, or `None` if
    /// all records are committed.
    txn: Option<Box<dyn WriteTxn>>,
    uncommitted_bytes: usize,
    engine: Arc<dyn Engine>,
    /// The received bytes that do not form a whole frame yet.
    buffered: BytesMut,
    state: ImportState,
    /// The number of frames imported so far.
    frames: u64,
    records: u64,
    sum_of_sums: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportState {
    Magic,
    Frames,
    Complete,
    /// An error was returned. Every further chunk is rejected.
    Failed,
}

impl Importer {
    /// Creates an importer. Fails if the engine has any record.
    pub fn new(engine: Arc<dyn Engine>) -> Result<Importer> {
        let snapshot = engine.snapshot()?;
        for bucket in Bucket::ALL {
            if snapshot.last_key(bucket)?.is_some() {
                return Err(Error::Storage(
                    "the store is not empty, so no stream can be imported".to_owned(),
                ));
            }
        }
        Ok(Importer {
            txn: None,
            uncommitted_bytes: 0,
            engine,
            buffered: BytesMut::new(),
            state: ImportState::Magic,
            frames: 0,
            records: 0,
            sum_of_sums: 0,
        })
    }

    pub fn feed(&mut self, chunk: &[u8]) -> Result<()> {
        self.buffered.extend_from_slice(chunk);
        let outcome = self.import_buffered();
        if outcome.is_err() {
            self.state = ImportState::Failed;
            self.txn = None;
        }
        outcome
    }

    /// Fails unless the whole stream was received. Returns the number of records.
    pub fn finish(self) -> Result<u64> {
        match self.state {
            ImportState::Complete => Ok(self.records),
            _ => Err(damaged("the stream ends too early")),
        }
    }

    fn import_buffered(&mut self) -> Result<()> {
        loop {
            match self.state {
                // The first bytes are already wrong, so the import fails without waiting for more
                // bytes.
                ImportState::Magic if self.buffered.iter().zip(MAGIC).any(|(a, b)| a != b) => {
                    return Err(damaged("not a stream of this program, or of another version"));
                }
                ImportState::Magic if self.buffered.len() >= MAGIC.len() => {
                    self.buffered.advance(MAGIC.len());
                    self.state = ImportState::Frames;
                }
                ImportState::Frames => match self.next_frame()? {
                    Some(frame) => self.import_frame(&frame)?,
                    None => return Ok(()),
                },
                ImportState::Complete if !self.buffered.is_empty() => {
                    return Err(damaged("something follows the end of the stream"));
                }
                ImportState::Failed => return Err(self.damaged_frame()),
                ImportState::Magic | ImportState::Complete => return Ok(()),
            }
        }
    }

    /// Returns the head and the body of the next frame, without the checksum at its end. Returns
    /// `None` if more bytes are needed. Fails if a checksum, the kind or the length is wrong.
    fn next_frame(&mut self) -> Result<Option<Bytes>> {
        let Some((head, _)) = self.buffered.split_at_checked(FRAME_HEAD_BYTES) else {
            return Ok(None);
        };
        let (numbers, sum) = head.split_at(HEAD_SUM_OFFSET);
        let body = u32::from_be_bytes(numbers[1..].try_into().expect("four bytes")) as usize;
        // The head is checked on its own, before the body arrives. Otherwise a damaged length could
        // make the importer wait for a gigabyte.
        let is_whole = crc32c::crc32c(numbers).to_be_bytes() == sum;
        let is_known = matches!(head[0], FRAME_RECORDS | FRAME_TRAILER);
        if !is_whole || !is_known || body > FRAME_BODY_BYTES_MAX {
            return Err(self.damaged_frame());
        }
        if self.buffered.len() < FRAME_HEAD_BYTES + body + FRAME_SUM_BYTES {
            return Ok(None);
        }
        let frame = self.buffered.split_to(FRAME_HEAD_BYTES + body).freeze();
        let sum = self.buffered.split_to(FRAME_SUM_BYTES);
        if crc32c::crc32c(&frame).to_be_bytes() != sum[..] {
            return Err(self.damaged_frame());
        }
        if frame[0] == FRAME_RECORDS {
            self.sum_of_sums = crc32c::crc32c_append(self.sum_of_sums, &sum);
        }
        Ok(Some(frame))
    }

    fn import_frame(&mut self, frame: &[u8]) -> Result<()> {
        let (kind, body) = (frame[0], &frame[FRAME_HEAD_BYTES..]);
        if kind == FRAME_TRAILER {
            return self.import_trailer(body);
        }
        let records = parse_records(body).ok_or_else(|| self.damaged_frame())?;
        let mut txn = match self.txn.take() {
            Some(txn) => txn,
            None => self.engine.begin_write()?,
        };
        for records in records.chunk_by(|a, b| a.bucket == b.bucket) {
            let pairs = &mut records.iter().map(|record| (record.key, record.value));
            txn.put_all(records[0].bucket, pairs)?;
        }
        self.txn = Some(txn);
        self.uncommitted_bytes += body.len();
        self.records += records.len() as u64;
        self.frames += 1;
        if self.uncommitted_bytes >= COMMIT_BYTES { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.uncommitted_bytes = 0;
        self.txn.take().map_or(Ok(()), |txn| txn.commit())
    }

    fn import_trailer(&mut self, body: &[u8]) -> Result<()> {
        if body.len() != TRAILER_BODY_BYTES {
            return Err(self.damaged_frame());
        }
        let (records, sum) = body.split_at(8);
        if records != self.records.to_be_bytes() || sum != self.sum_of_sums.to_be_bytes() {
            // Every frame is undamaged, but frames are missing, repeated or out of order.
            let detail = "the records do not match the trailer";
            return Err(damaged(detail));
        }
        self.commit()?;
        self.state = ImportState::Complete;
        Ok(())
    }

    fn damaged_frame(&self) -> Error {
        damaged(format!("frame {} is damaged", self.frames))
    }
}

fn damaged(detail: impl Into<String>) -> Error {
    Error::corrupt(Path::new("stream"), detail)
}

struct Record<'b> {
    bucket: Bucket,
    key: &'b [u8],
    value: &'b [u8],
}

fn parse_records(mut body: &[u8]) -> Option<Vec<Record<'_>>> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let (head, rest) = body.split_at_checked(RECORD_HEAD_BYTES)?;
        let length = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
        let (key, rest) = rest.split_at_checked(length(&head[1..5])? as usize)?;
        let (value, rest) = rest.split_at_checked(length(&head[5..])? as usize)?;
        records.push(Record { bucket: *Bucket::ALL.get(head[0] as usize)?, key, value });
        body = rest;
    }
    Some(records)
}
