//! The kinds of expensive requests, by name.

use clap::ValueEnum;

/// The first line of a doc is shown by `clearlane-load rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// nothing
    Calm,
    /// 4 ranges of all keys at an old revision at once
    RangeOld,
    /// a count of all keys at an old revision
    CountOld,
    /// a range of all keys without their values
    KeysOnly,
    /// a RangeStream of all keys
    RangeStream,
    /// a transaction: a put, and a range of all keys
    TxnPutRange,
    /// a transaction: a put, and 10 ranges of all keys, sorted by value, the first 10 of each
    TxnSorted,
    /// a transaction: a put, if 10 comparisons hold, each with all keys
    TxnCompare,
    /// one deletion of half of the keys
    Delete,
    /// a snapshot
    Snapshot,
    /// a watch of all keys from revision 1, up to as many events as there are keys
    Watch,
    /// 20 such watches at once
    #[value(name = "watch-20")]
    Watch20,
    /// puts of 1 MiB, 4 at once
    LargeWriters,
    /// one revocation of a lease with a tenth of the number of keys
    Revoke,
    /// 8 ranges at once of half of the keys, sorted by value, the first 10 of each
    SortCrowd,
    /// a hundredth of the number of keys: connections at once, each with a get, which stay
    Connections,
    /// a twentieth of the number of keys: watches at once on one connection, which stay
    Streams,
    /// a tenth of the number of keys: puts at once over 10 connections, whose ends do not come
    HalfOpen,
    /// 200 users, or --clients, that authenticate again and again with a password
    Authenticate,
}

impl Row {
    pub fn all() -> &'static [Row] {
        Row::value_variants()
    }

    /// As in the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What is sent.
    pub fn about(self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().cloned());
        help.unwrap_or_default().to_string()
    }
}
