//! The labels under which a member's work takes locks: one label for each kind of read or check,
//! and one for each kind of [thread](crate::threads). Logs of slow requests, metrics and timelines
//! show these labels.

use std::sync::LazyLock;

use clearlane_contention::TaskLabel;
use clearlane_contention::timeline::LaneKind;

/// The type of a static label. The label's name is looked up only once.
type Label = LazyLock<TaskLabel>;

pub static GET: Label = Label::new(|| TaskLabel::named("get"));
/// A range. The number of its keys is not known when it takes its locks.
pub static RANGE: Label = Label::new(|| TaskLabel::named("range"));
pub static READ_TXN: Label = Label::new(|| TaskLabel::named("read txn"));
/// The check of a permission, for a request that reads no keys.
pub static PERMISSION: Label = Label::new(|| TaskLabel::named("permission"));
/// The check of a password.
pub static AUTHENTICATE: Label = Label::new(|| TaskLabel::named("authenticate"));
/// The raft loop, through which reads and proposals pass.
pub static RAFT: Label = Label::new(|| TaskLabel::named("raft"));
/// The apply loop, which carries out the writes of all clients.
pub static APPLIER: Label = Label::new(|| TaskLabel::named("applier"));
pub static LOG: Label = Label::new(|| TaskLabel::named("log"));
/// The thread that commits the store and compacts.
pub static COMMIT: Label = Label::new(|| TaskLabel::named("commit"));
pub static WATCH: Label = Label::new(|| TaskLabel::named("watch"));
/// The sync thread. It reads from the store the events that unsynced watchers have missed.
pub static CATCH_UP: Label = Label::new(|| TaskLabel::named("catch-up"));

pub fn lane_kind_of(actor: TaskLabel) -> LaneKind {
    if [&*GET, &*RANGE, &*READ_TXN, &*PERMISSION, &*AUTHENTICATE].contains(&&actor) {
        LaneKind::Read
    } else {
        LaneKind::Work
    }
}
