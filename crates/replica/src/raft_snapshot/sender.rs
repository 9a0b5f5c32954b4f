//! The sending side: a message and a store, as chunks of bytes. The stream has these parts, with
//! their lengths in bytes:
//!
//! ```text
//!   magic (16), version (1) │ length (4) │ the message │ crc32c of all before (4) │ records
//! ```
//!
//! The records have the format of the [engine's stream](clearlane_engine::stream), which has
//! separate checksums.

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_engine::stream::Exporter;
use clearlane_raft::LogPosition;
use clearlane_raft::Message;

use super::error::{Error, Result};
use crate::applied_position::AppliedPosition;

pub(super) const MAGIC: &[u8; 17] = b"clearlane-copy..\x01";
/// Maximum length of the message in bytes. A snapshot message has no entries, so this is enough for
/// the ids of all members.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct SnapshotSender {
    header: Option<Bytes>,
    exporter: Exporter,
    /// The position of the store that is sent.
    pub position: LogPosition,
}

impl SnapshotSender {
    /// Creates a sender. `message` is raft's `MsgSnapshot`; any other message is an error. The
    /// position in `message` is replaced by the position of the store that the exporter reads.
    /// Fails if that store is older than the original position.
    pub fn new(exporter: Exporter, mut message: Message) -> Result<SnapshotSender> {
        if !message.is_snapshot() {
            return Err(Error::NotSnapshot(message.to_string()));
        }
        let progress = AppliedPosition::read(&**exporter.snapshot());
        let position = progress.map_err(|error| Error::Damaged(error.to_string()))?.position();
        let promised = message.snapshot_position().index;
        if position.index < promised {
            return Err(Error::StoreTooOld { promised, has: position.index });
        }
        message.set_snapshot_position(&position);
        let header = Some(header(&message.encode())?);
        Ok(SnapshotSender { header, exporter, position })
    }

    /// Returns the next chunk, or `None` at the end.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        match self.header.take() {
            Some(header) => Ok(Some(header)),
            None => Ok(self.exporter.next_chunk()?),
        }
    }
}

fn header(message: &[u8]) -> Result<Bytes> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Error::Damaged(format!(
            "its message has {} bytes, more than {MESSAGE_BYTES_MAX}",
            message.len()
        )));
    }
    let mut header = BytesMut::with_capacity(MAGIC.len() + 4 + message.len() + 4);
    header.put_slice(MAGIC);
    header.put_u32(message.len() as u32);
    header.put_slice(message);
    let sum = crc32c::crc32c(&header);
    header.put_u32(sum);
    Ok(header.freeze())
}
