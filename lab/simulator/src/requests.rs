//! Requests as numbers of keys and bytes, without the keys.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Range { range: Range, serializable: bool },
    Write(Write),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Number of keys in the range. The old eras walk over all these keys to count them, even if
    /// there is a limit.
    pub keys: u64,
    /// Number of keys whose records are read.
    pub sent: u64,
    pub record_bytes: u64,
}

/// Responses above this size are sent in pieces. The client receives pieces while the server is
/// still sending.
const LONG_BYTES: u64 = 256 << 10;

impl Range {
    /// Returns the size of the response.
    pub(crate) fn bytes(&self) -> u64 {
        self.sent * self.record_bytes
    }

    pub(crate) fn is_long(&self) -> bool {
        self.bytes() > LONG_BYTES
    }
}

/// A write of one or more keys, in one entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub keys: u64,
    pub record_bytes: u64,
}

/// A read for unsynced watchers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    /// Number of revisions since the oldest revision that a watcher waits for.
    pub(crate) since_oldest: u64,
    /// The largest number of revisions that one watcher gets in this pass.
    pub(crate) given: u64,
    pub(crate) record_bytes: u64,
}
