//! Records of a segment, and the two messages that only the log itself writes.
//!
//! A record's type, its crc and the length of its data are covered by no checksum, so
//! [`Record::decode`] accepts one spelling only. A flipped bit in them is then noticed: the crc
//! differs, the length does not end where the record ends, or the tag is none. For the type, see
//! `log_validator.rs`.

use super::conf::ConfState;
use super::fields::{DecodeError, Fields, Value, put_bytes, put_number};

/// What the data of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    Metadata = 1,
    Entry = 2,
    State = 3,
    /// No data: the crc is the sum with which a segment begins.
    Crc = 4,
    Snapshot = 5,
}

/// Without its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub kind: RecordKind,
    /// The CRC-32C of the data of all records of the log up to this one.
    pub crc: u32,
    /// `None` for [`RecordKind::Crc`].
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

    /// Reads a message that fills `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, DecodeError> {
        let (record, rest) = Record::decode_prefix(bytes)?;
        if rest.is_empty() {
            Ok(record)
        } else {
            Err(DecodeError { message: MESSAGE, what: "something follows its data" })
        }
    }

    /// Reads a message that begins where `bytes` begin and ends by itself, and returns the rest.
    /// What follows is taken for data exactly if it begins with the data's tag.
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
            return Err(fields.error("data and type do not go together"));
        }
        Ok((Record { kind, crc, data }, fields.rest()))
    }

    /// The length of a record as its first bytes name it. An error if these are not all there:
    /// zeros in their place are none of a record with data.
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
            _ => return Err(fields.error("its type does not come first")),
        };
        let crc = match fields.next()? {
            Some((2, Value::Number(crc))) => crc,
            _ => return Err(fields.error("its crc does not come second")),
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
        _ => Err(fields.error("a type that does not exist")),
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

/// Records that the state up to an index is kept elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalSnapshot {
    /// The last entry that it covers; 0 for the beginning of a log.
    pub index: u64,
    /// Of that entry.
    pub term: u64,
    /// The members then. Absent at index 0, and only there.
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
