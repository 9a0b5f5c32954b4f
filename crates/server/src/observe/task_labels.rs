//! The labels under which a member takes its locks, as slow requests, metrics and timelines show
//! them: kinds of requests, and the [threads](crate::threads) by what they do.

use std::sync::LazyLock;

use clearlane_contention::TaskLabel;
use clearlane_contention::timeline::LaneKind;

/// A static, so that a name is looked up once.
type Label = LazyLock<TaskLabel>;

pub static GET: Label = Label::new(|| TaskLabel::named("get"));
/// How many keys it reads is not known when it takes its locks.
pub static RANGE: Label = Label::new(|| TaskLabel::named("range"));
pub static READ_TXN: Label = Label::new(|| TaskLabel::named("read txn"));
/// Whether a request that reads no keys may be made.
pub static PERMISSION: Label = Label::new(|| TaskLabel::named("permission"));
/// The check of a password.
pub static AUTHENTICATE: Label = Label::new(|| TaskLabel::named("authenticate"));
/// Reads and proposals pass through it.
pub static RAFT: Label = Label::new(|| TaskLabel::named("raft"));
/// The writes of all clients.
pub static APPLIER: Label = Label::new(|| TaskLabel::named("applier"));
pub static LOG: Label = Label::new(|| TaskLabel::named("log"));
/// Commits the store, and compacts.
pub static COMMIT: Label = Label::new(|| TaskLabel::named("commit"));
pub static WATCH: Label = Label::new(|| TaskLabel::named("watch"));
/// Synchronises unsynced watchers.
pub static CATCH_UP: Label = Label::new(|| TaskLabel::named("catch-up"));

pub fn lane_kind_of(actor: TaskLabel) -> LaneKind {
    if [&*GET, &*RANGE, &*READ_TXN, &*PERMISSION, &*AUTHENTICATE].contains(&&actor) {
        LaneKind::Read
    } else {
        LaneKind::Work
    }
}
