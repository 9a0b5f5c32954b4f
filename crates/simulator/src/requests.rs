//! What a member is asked to do, in numbers: keys and bytes, not the keys themselves.

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads keys in a row.
    Range {
        /// How many keys there are in the range.
        keys: u64,
        /// How many of them are read and sent.
        sent: u64,
        /// Bytes of each record.
        record_bytes: u64,
        /// Whether the past will do.
        serializable: bool,
    },
    /// Writes keys, in one entry of the log.
    Write {
        /// How many.
        keys: u64,
        /// Bytes of each record.
        record_bytes: u64,
    },
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeOutcome {
    /// It was answered.
    Answered,
    /// Too much is committed and not applied: "etcdserver: too many requests".
    Rejected,
}

/// What a range reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Keys in it. To count them, the old eras walk over all, whatever the limit.
    pub(crate) keys: u64,
    /// Keys whose records are read.
    pub(crate) sent: u64,
    pub(crate) record_bytes: u64,
}

/// A longer answer is taken while it is sent.
const LONG_BYTES: u64 = 256 << 10;

impl Range {
    /// Of the records that are sent.
    pub(crate) fn bytes(&self) -> u64 {
        self.sent * self.record_bytes
    }

    pub(crate) fn is_long(&self) -> bool {
        self.bytes() > LONG_BYTES
    }
}

/// What an entry of the log writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) keys: u64,
    pub(crate) record_bytes: u64,
}

/// What watchers that are behind have missed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    /// Revisions since the first that one of them waits for.
    pub(crate) since_oldest: u64,
    /// The most that one of them is given now.
    pub(crate) given: u64,
    pub(crate) record_bytes: u64,
}
