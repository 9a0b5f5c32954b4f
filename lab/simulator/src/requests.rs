//! Requests as numbers of keys and bytes, without the keys.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Range { range: Range, serializable: bool },
    Write(Write),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Keys in the range. The old eras walk over all of them to count them, whatever the limit.
    pub keys: u64,
    /// Keys whose records are read.
    pub sent: u64,
    pub record_bytes: u64,
}

/// Longer responses are received while they are sent.
const LONG_BYTES: u64 = 256 << 10;

impl Range {
    /// Of the response.
    pub(crate) fn bytes(&self) -> u64 {
        self.sent * self.record_bytes
    }

    pub(crate) fn is_long(&self) -> bool {
        self.bytes() > LONG_BYTES
    }
}

/// Writes keys, in one entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub keys: u64,
    pub record_bytes: u64,
}

/// A read for unsynced watchers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    /// Revisions since the oldest that a watcher waits for.
    pub(crate) since_oldest: u64,
    /// The most revisions that one watcher is given in this pass.
    pub(crate) given: u64,
    pub(crate) record_bytes: u64,
}
