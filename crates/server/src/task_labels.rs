//! Under which names does a member take its locks?
//!
//! A slow request, a metric and a timeline name a lock holder by these names. They are the kinds of
//! work that an operator knows: what a client has asked for, and the [threads](crate::threads) by
//! what they do.

use std::sync::LazyLock;

use clearlane_contention::TaskLabel;
use clearlane_contention::timeline::LaneKind;

/// Looks for the name once.
macro_rules! actors {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        $($(#[$doc])* pub static $name: LazyLock<TaskLabel> = LazyLock::new(|| TaskLabel::named($text));)*
    };
}

actors! {
    /// A read of one key.
    GET "get",
    /// A read of a range of keys. How long it will be is not known when it takes its locks.
    RANGE "range",
    /// A transaction that only reads.
    READ_TXN "read txn",
    /// Drives raft: reads and proposals pass through it.
    RAFT "raft",
    /// Applies what the log has: the writes of all clients.
    APPLIER "applier",
    /// Writes the log.
    LOG "log",
    /// Carries what is pending in the store to the disk, and compacts.
    COMMIT "commit",
    /// Tells watchers what has happened.
    WATCH "watch",
    /// Notifies the watchers that are behind.
    CATCH_UP "catch-up",
}

/// The kind of work that a task with this label does.
pub fn lane_kind_of(actor: TaskLabel) -> LaneKind {
    if [&*GET, &*RANGE, &*READ_TXN].contains(&&actor) { LaneKind::Read } else { LaneKind::Work }
}
