//! What is in the logs of members, and what of it they tell each other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::Account;
use crate::requests::{Range, Write};
use crate::signal::Signal;

/// The first member leads.
pub(crate) const LEADER: usize = 0;

/// What an entry of the log says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Write(Write),
    /// In 3.0, a linearizable read.
    Read(Range),
    /// What was overwritten before it may go.
    Compact,
    /// A user has a token now.
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

/// In the log.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) actor: TaskLabel,
    pub(crate) work: Work,
    pub(crate) ticket: Rc<Ticket>,
}

/// What a request waits for, and how it came about.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// At which member.
    pub(crate) member: usize,
    /// It is applied there.
    pub(crate) done: Signal,
    pub(crate) batch: RefCell<Option<Rc<Batch>>>,
    /// When the applier got it, and what that had spent by then.
    pub(crate) handed: Cell<(u64, Account)>,
}

/// Entries that went to the logs together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    /// The number of the last one.
    pub(crate) last: u64,
    pub(crate) bytes: u64,
    pub(crate) sent_ns: u64,
    /// What the leader's log had spent by then.
    pub(crate) spent: Account,
    pub(crate) committed_ns: Cell<u64>,
    /// From sent to committed.
    pub(crate) path: Cell<Account>,
}

/// A batch that has arrived at another member: when, and what that one's log had spent by then.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) batch: Rc<Batch>,
    pub(crate) spent: Account,
}

/// The leader asks all voting members.
#[derive(Debug)]
pub(crate) struct QuorumRound {
    pub(crate) begin_ns: u64,
    /// Answers that are missing for a quorum.
    pub(crate) missing: Cell<usize>,
    pub(crate) done: Signal,
    pub(crate) path: Cell<Account>,
}

/// What a member tells another one.
#[derive(Debug)]
pub(crate) enum Message {
    /// These entries are next in the log.
    Append(Rc<Batch>),
    /// They are in mine: this was done meanwhile.
    Appended { batch: Rc<Batch>, path: Account },
    /// So much is committed.
    Committed(u64),
    /// Do you still follow me?
    Heartbeat(Rc<QuorumRound>),
    /// Yes.
    Follows { round: Rc<QuorumRound>, path: Account },
}
