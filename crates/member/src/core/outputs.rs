//! What comes out of a member: things that its owner is to do.

use std::time::Duration;

use clearlane_backend::Retired;
use clearlane_mvcc::{Change, CompactionJob};
use clearlane_raft_log::driver::{Leadership, Message};
use clearlane_raft_log::wal::group::Batch;

use super::Slow;
use crate::membership;
use crate::requests;

/// What is to be done, in the order of these fields: readers go before writers are answered, and
/// watchers hear last, because whoever was answered and asks at once must find what he wrote.
#[derive(Debug, Default)]
pub struct Outputs {
    /// To be sent now. What is for one member stays in order.
    pub send: Vec<Message>,
    /// Each says "take a copy of the store", and is sent with one: see [`copies`](crate::copies).
    /// What has become of it is told to [`Core::copy_sent`](super::Core::copy_sent).
    pub copies: Vec<Message>,
    /// Goes to the write-ahead log, and what has become of it to
    /// [`Core::written`](super::Core::written). There is no next one before that.
    pub write: Option<Batch>,
    /// Segments of the write-ahead log of which a start from here needs nothing may go.
    pub purge: Option<u64>,
    /// The store was replaced by another member's: [`Core::store`](super::Core::store) is a new
    /// one, and what watches the old one must move.
    pub store_replaced: bool,
    /// What has become of readers.
    pub reads: Vec<Reads>,
    /// Since when it was known what those who may go must see, if this member had to apply it first.
    pub known_at: Option<Duration>,
    /// Entries that took long to apply.
    pub slow: Vec<Slow>,
    /// What has become of proposals, by their ids.
    pub answers: Vec<(u64, Answer)>,
    /// What has changed, by revision: for watchers.
    pub changes: Vec<(i64, Vec<Change>)>,
    /// Compactions that are scheduled; their steps are to be run, one job after the other.
    pub compactions: Vec<CompactionJob>,
    /// To be dropped where it does not matter how long that takes.
    pub retired: Vec<Retired>,
    /// So much is pending, or the log has grown so long, that the store should be committed now.
    pub commit_due: bool,
    /// There is more to do: poll again, once the inputs that have come meanwhile are in.
    pub is_more: bool,
    /// Who leads has changed, or in which term.
    pub leadership: Option<Leadership>,
    /// [`Core::members`](super::Core::members) has changed: who is one, what is known of one, or the
    /// This member is none any more, and stops.
    pub removed: bool,
    /// Every entry that was applied, for those who check that all members apply the same.
    #[cfg(feature = "planted-bugs")]
    pub applied: Vec<clearlane_raft_log::Entry>,
}

/// What has become of some readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reads {
    /// They may look at the store now.
    Go(Vec<u64>),
    /// They may not, for this reason.
    Fail(clearlane_read_index::Error, Vec<u64>),
}

/// What has become of a proposal.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Of a request.
    Request(requests::Answer),
    /// Of a change of members: who is one now, or why nothing has changed.
    Members(std::result::Result<Vec<membership::Member>, membership::Refused>),
}
