//! Entries of the log, and raft's hard state.

use bytes::Bytes;

use super::fields::{DecodeError, Fields, Value, put_bytes, put_number};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A request. The data may be empty, because a new leader starts its term with an empty entry.
    #[default]
    Normal,
    /// A [`ConfChange`](super::ConfChange).
    ConfChange,
    /// A change of several members at once. etcd stops when it has to apply such an entry.
    ConfChangeV2,
}

/// An entry of the log.
///
/// ```
/// use clearlane_wal::wire::{Entry, EntryKind};
///
/// let entry = Entry { kind: EntryKind::Normal, term: 2, index: 300, data: "hi".into() };
/// let bytes = [
///     0x08, 0, //          field 1, varint: the kind, although it is 0
///     0x10, 2, //          field 2: the term
///     0x18, 0xac, 0x02, // field 3: 300 = 0b10_0101100, seven bits a byte, lowest first
///     0x22, 2, b'h', b'i', // field 4, length and bytes
/// ];
/// assert_eq!(entry.encode(), bytes);
/// assert_eq!(Entry::decode(&bytes)?, entry);
/// # Ok::<(), clearlane_wal::wire::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub kind: EntryKind,
    /// The term of the leader that created the entry.
    pub term: u64,
    /// The index of the entry. The first entry has the index 1.
    pub index: u64,
    /// The proposed bytes.
    pub data: Bytes,
}

impl Entry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len() + 36);
        self.encode_to(&mut out);
        out
    }

    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        put_number(out, 1, self.kind as u64);
        put_number(out, 2, self.term);
        put_number(out, 3, self.index);
        if !self.data.is_empty() {
            put_bytes(out, 4, &self.data);
        }
    }

    /// Decodes an entry. The data is copied, so that an entry does not keep a segment in memory.
    pub fn decode(bytes: &[u8]) -> Result<Entry, DecodeError> {
        let mut fields = Fields::new("raft entry", bytes);
        let mut entry = Entry::default();
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Number(0)) => entry.kind = EntryKind::Normal,
                (1, Value::Number(1)) => entry.kind = EntryKind::ConfChange,
                (1, Value::Number(2)) => entry.kind = EntryKind::ConfChangeV2,
                (1, Value::Number(_)) => return Err(fields.error("unknown kind")),
                (2, Value::Number(term)) => entry.term = term,
                (3, Value::Number(index)) => entry.index = index,
                (4, Value::Bytes(data)) => entry.data = Bytes::copy_from_slice(data),
                _ => return Err(fields.unknown_field()),
            }
        }
        Ok(entry)
    }
}

/// Raft's state that must be durable. Otherwise a member could vote twice in one term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HardState {
    /// The newest term that the member has seen.
    pub term: u64,
    /// The member that got this member's vote in that term, or 0 for none.
    pub vote: u64,
    /// The last index that the member knows to be committed.
    pub commit: u64,
}

impl HardState {
    pub fn is_empty(&self) -> bool {
        *self == HardState::default()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(33);
        put_number(&mut out, 1, self.term);
        put_number(&mut out, 2, self.vote);
        put_number(&mut out, 3, self.commit);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<HardState, DecodeError> {
        let mut fields = Fields::new("hard state", bytes);
        let mut state = HardState::default();
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Number(term)) => state.term = term,
                (2, Value::Number(vote)) => state.vote = vote,
                (3, Value::Number(commit)) => state.commit = commit,
                _ => return Err(fields.unknown_field()),
            }
        }
        Ok(state)
    }
}
