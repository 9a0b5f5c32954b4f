//! The labels under which a member takes its locks, as slow requests, metrics and timelines show
//! them: kinds of requests, and the [threads](crate::threads) by what they do.

use std::sync::LazyLock;

use clearlane_contention::TaskLabel;
use clearlane_contention::timeline::LaneKind;

/// A static per name, so that a name is looked up once.
macro_rules! actors {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        $($(#[$doc])* pub static $name: LazyLock<TaskLabel> = LazyLock::new(|| TaskLabel::named($text));)*
    };
}

actors! {
    GET "get",
    /// How many keys it reads is not known when it takes its locks.
    RANGE "range",
    READ_TXN "read txn",
    /// Reads and proposals pass through it.
    RAFT "raft",
    /// The writes of all clients.
    APPLIER "applier",
    LOG "log",
    /// Commits the store, and compacts.
    COMMIT "commit",
    WATCH "watch",
    /// Synchronises unsynced watchers.
    CATCH_UP "catch-up",
}

pub fn lane_kind_of(actor: TaskLabel) -> LaneKind {
    if [&*GET, &*RANGE, &*READ_TXN].contains(&&actor) { LaneKind::Read } else { LaneKind::Work }
}
