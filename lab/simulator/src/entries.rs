//! Entries of the log, and the messages between members.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::Account;
use crate::requests::{Range, Write};
use crate::signal::Signal;

/// The first member leads; there are no elections.
pub(crate) const LEADER: usize = 0;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Write(Write),
    /// A linearizable read, in era 3.0 only.
    Read(Range),
    Compact,
    /// A user has been authenticated.
    Token,
}

impl Work {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Work::Write(write) => write.keys * write.record_bytes,
            Work::Read(_) | Work::Compact | Work::Token => 100,
        }
    }
}

/// A waiting request follows its progress.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) actor: TaskLabel,
    pub(crate) work: Work,
    /// The member that proposed the entry.
    pub(crate) member: usize,
    /// Set when the entry is applied at `member`.
    pub(crate) done: Signal,
    pub(crate) batch: RefCell<Option<Rc<Batch>>>,
    /// When the applier got the entry, and the applier's account then.
    pub(crate) handed: Cell<(u64, Account)>,
}

/// Entries that are appended together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Rc<Entry>>,
    /// Index of the last entry.
    pub(crate) last: u64,
    pub(crate) bytes: u64,
    pub(crate) sent_ns: u64,
    /// Account of the leader's log at `sent_ns`.
    pub(crate) spent: Account,
    pub(crate) committed_ns: Cell<u64>,
    /// Account of the time from `sent_ns` to `committed_ns`.
    pub(crate) path: Cell<Account>,
}

/// A heartbeat round of ReadIndex.
#[derive(Debug)]
pub(crate) struct QuorumRound {
    pub(crate) begin_ns: u64,
    /// Responses missing for a quorum.
    pub(crate) missing: Cell<usize>,
    pub(crate) done: Signal,
    pub(crate) path: Cell<Account>,
}

#[derive(Debug)]
pub(crate) enum Message {
    Append(Rc<Batch>),
    /// `path` is what the follower has spent on it.
    Appended {
        batch: Rc<Batch>,
        path: Account,
    },
    Committed(u64),
    Heartbeat(Rc<QuorumRound>),
    Follows {
        round: Rc<QuorumRound>,
        path: Account,
    },
}
