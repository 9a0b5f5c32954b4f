//! Records of a segment, and the two messages that only the log itself writes: [`Metadata`] and
//! [`WalSnapshot`].
//!
//! No checksum covers a record's type, its crc and the length of its data. So [`Record::decode`]
//! accepts only one encoding of these fields. Then a flipped bit is noticed: either the crc
//! differs, or the data does not end where the record ends, or the tag is invalid. If a flip turns
//! the type into another valid type, `log_validator.rs` detects the flip.

use super::conf::ConfState;
use super::fields::{DecodeError, Fields, Value, put_bytes, put_number};

/// The type of a record, which decides how its data is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    Metadata = 1,
    Entry = 2,
    State = 3,
    /// A record without data. Its crc is the running crc with which a segment starts.
    Crc = 4,
    Snapshot = 5,
}

/// A record without its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub kind: RecordKind,
    /// The CRC-32C of the data of all records in the log up to this one.
    pub crc: u32,
    /// The record's message. `None` for [`RecordKind::Crc`].
    pub data: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        put_number(out, 1, self.kind as u64);
        put_number(out, 2, u64::from(self.crc));
        if let Some(data) = self.data {
            put_bytes(out, 3, data);
        }
    }

    /// Reads a record that fills `bytes` completely.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, DecodeError> {
        let (record, rest) = Record::decode_prefix(bytes)?;
        if rest.is_empty() {
            Ok(record)
        } else {
            Err(DecodeError { message: MESSAGE, what: "more bytes after its data" })
        }
    }

    /// Reads the record at the start of `bytes`, whose own fields show where it ends. Also returns
    /// the bytes after it. The record has data if and only if the bytes after its crc start with
    /// the tag of the data.
    pub(crate) fn decode_prefix(bytes: &'a [u8]) -> Result<(Record<'a>, &'a [u8]), DecodeError> {
        let mut fields = Fields::new(MESSAGE, bytes);
        let (kind, crc) = Record::decode_head(&mut fields)?;
        let mut data = None;
        if fields.rest().first() == Some(&DATA_TAG) {
            match fields.next()? {
                Some((3, Value::Bytes(bytes))) => data = Some(bytes),
                _ => return Err(fields.unknown_field()),
            }
        }
        if (kind == RecordKind::Crc) != data.is_none() {
            return Err(fields.error("a crc record with data, or another record without data"));
        }
        Ok((Record { kind, crc, data }, fields.rest()))
    }

    /// Returns the length of a record as stated in its first bytes. Fails if some of these bytes
    /// are missing. Zeros in their place are also an error, because no record with data starts like
    /// that.
    pub(crate) fn decode_length(bytes: &[u8]) -> Result<u64, DecodeError> {
        let mut fields = Fields::new(MESSAGE, bytes);
        let (kind, _) = Record::decode_head(&mut fields)?;
        let mut data_bytes = 0;
        if kind != RecordKind::Crc {
            if fields.varint()? != u64::from(DATA_TAG) {
                return Err(fields.unknown_field());
            }
            data_bytes = fields.varint()?;
            if data_bytes == 0 {
                return Err(fields.error("a record without data"));
            }
        }
        let head = (bytes.len() - fields.rest().len()) as u64;
        head.checked_add(data_bytes).ok_or_else(|| fields.error("a length of more than 64 bits"))
    }

    fn decode_head(fields: &mut Fields<'_>) -> Result<(RecordKind, u32), DecodeError> {
        let kind = match fields.next()? {
            Some((1, Value::Number(kind))) => kind_of(kind, fields)?,
            _ => return Err(fields.error("its first field is not its type")),
        };
        let crc = match fields.next()? {
            Some((2, Value::Number(crc))) => crc,
            _ => return Err(fields.error("its second field is not its crc")),
        };
        let crc = u32::try_from(crc).map_err(|_| fields.error("a crc of more than 32 bits"))?;
        Ok((kind, crc))
    }
}

const MESSAGE: &str = "record";
const DATA_TAG: u8 = 3 << 3 | 2;

fn kind_of(kind: u64, fields: &Fields<'_>) -> Result<RecordKind, DecodeError> {
    match kind {
        1 => Ok(RecordKind::Metadata),
        2 => Ok(RecordKind::Entry),
        3 => Ok(RecordKind::State),
        4 => Ok(RecordKind::Crc),
        5 => Ok(RecordKind::Snapshot),
        _ => Err(fields.error("unknown type")),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    pub node_id: u64,
    pub cluster_id: u64,
}

impl Metadata {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(22);
        put_number(&mut out, 1, self.node_id);
        put_number(&mut out, 2, self.cluster_id);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Metadata, DecodeError> {
        let mut fields = Fields::new("metadata of a log", bytes);
        let mut metadata = Metadata::default();
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Number(id)) => metadata.node_id = id,
                (2, Value::Number(id)) => metadata.cluster_id = id,
                _ => return Err(fields.unknown_field()),
            }
        }
        Ok(metadata)
    }
}

/// The message of a snapshot record: it states that everything up to an index is stored outside the
/// log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalSnapshot {
    /// The index of the last entry that the snapshot covers, or 0 for the start of a log.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// The members at that entry. `None` at index 0. Only the writer rejects `None` at a later
    /// index; a reader accepts it.
    pub conf_state: Option<ConfState>,
}

impl WalSnapshot {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, 1, self.index);
        put_number(&mut out, 2, self.term);
        if let Some(conf_state) = &self.conf_state {
            put_bytes(&mut out, 3, &conf_state.encode());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<WalSnapshot, DecodeError> {
        let mut fields = Fields::new("record of a snapshot", bytes);
        let mut snapshot = WalSnapshot::default();
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Number(index)) => snapshot.index = index,
                (2, Value::Number(term)) => snapshot.term = term,
                (3, Value::Bytes(state)) => snapshot.conf_state = Some(ConfState::decode(state)?),
                _ => return Err(fields.unknown_field()),
            }
        }
        Ok(snapshot)
    }
}
