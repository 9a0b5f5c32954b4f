//! Entries of the log, and the messages between members.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::Account;
use crate::requests::{Range, Write};
use crate::signal::Signal;

/// The first member leads. There are no elections.
pub(crate) const LEADER: usize = 0;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Write(Write),
    /// A linearizable read, in era 3.0 only.
    Read(Range),
    Compact,
    /// The entry that assigns a token, after the user's password was checked.
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

/// An entry of the log. A request that waits for the entry reads the progress of the entry here.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) actor: TaskLabel,
    pub(crate) work: Work,
    /// The member that proposed the entry.
    pub(crate) member: usize,
    /// Set when the entry is applied at `member`.
    pub(crate) done: Signal,
    pub(crate) batch: RefCell<Option<Rc<Batch>>>,
    /// The time when the applier received the entry, and the applier's account at that time.
    pub(crate) handed: Cell<(u64, Account)>,
}

/// Entries that are appended together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Rc<Entry>>,
    /// The index of the last entry.
    pub(crate) last: u64,
    pub(crate) bytes: u64,
    pub(crate) sent_ns: u64,
    /// The account of the leader's log task at `sent_ns`.
    pub(crate) spent: Account,
    pub(crate) committed_ns: Cell<u64>,
    /// The account of the time from `sent_ns` to `committed_ns`.
    pub(crate) path: Cell<Account>,
}

/// The heartbeats that confirm one ReadIndex request.
#[derive(Debug)]
pub(crate) struct QuorumRound {
    pub(crate) begin_ns: u64,
    /// Number of responses that are missing for a quorum.
    pub(crate) missing: Cell<usize>,
    pub(crate) done: Signal,
    pub(crate) path: Cell<Account>,
}

#[derive(Debug)]
pub(crate) enum Message {
    Append(Rc<Batch>),
    /// `path` is the time that the follower has spent on the batch.
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
