//! Entries that take long to apply: what stands behind one waits as long, so each that took longer than a limit
//! is reported with what it was.
//!
//! The apply half reads no clock. Its owner may hand it a [`Stopwatch`]; a simulated member has none. Nothing
//! that is done depends on what it shows. It is read once for each entry: the end of one is the beginning of the
//! next.

use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft_log::{Entry, EntryKind};

use super::{Answer, Applier, Outcome};
use crate::requests::describe;
use crate::stages::{Card, LocksBefore};

/// A clock, and how long an entry may take by it.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    /// What takes longer is told of.
    pub limit: Duration,
    /// Nanoseconds since any fixed moment.
    pub now_ns: fn() -> u64,
}

/// An entry that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slow {
    /// So long.
    pub took: Duration,
    /// Where it has spent the time: what it waited for locks, and for which holder, is told apart.
    pub stages: String,
    /// What it was. Values and passwords are left out.
    pub request: String,
    /// How long its answer is, or why it was refused; nothing if another member answers.
    pub outcome: Option<Result<usize, String>>,
}

/// When the entry at hand began, and what this thread had waited for locks before.
#[derive(Debug)]
pub(super) struct Lap {
    begun_ns: u64,
    locks: LocksBefore,
}

impl Applier {
    pub(super) fn start_lap(&self) -> Option<Lap> {
        let watch = self.stopwatch?;
        Some(Lap { begun_ns: (watch.now_ns)(), locks: LocksBefore::now() })
    }

    /// Ends the lap of an entry, and begins that of the next.
    pub(super) fn lap(&mut self, lap: &mut Option<Lap>, entry: &Entry) {
        let (Some(watch), Some(lap)) = (self.stopwatch, lap) else { return };
        let now_ns = (watch.now_ns)();
        let took = Duration::from_nanos(now_ns.saturating_sub(lap.begun_ns));
        if took > watch.limit && entry.kind == EntryKind::Normal {
            // What was applied can be decoded.
            let request = decode_raft_request(entry.data.clone()).unwrap_or_default();
            let outcome = self.outcome(&request);
            let request = describe::request(&request).to_string();
            let stages = Card::of_entry(lap.begun_ns, now_ns, lap.locks).to_string();
            self.out.slow.push(Slow { took, stages, request, outcome });
        }
        *lap = Lap { begun_ns: now_ns, locks: LocksBefore::now() };
    }

    /// What its answer was, if this member gives it.
    fn outcome(&self, request: &InternalRaftRequest) -> Option<Result<usize, String>> {
        let id = request.header.as_ref().map_or(request.id, |header| header.id);
        let (_, outcome) = self.out.completions.last().filter(|_| self.answered == Some(id))?;
        Some(match outcome {
            Outcome::Applied(Answer::Request(Ok(reply))) => Ok(reply.encoded_len()),
            Outcome::Applied(Answer::Request(Err(refused))) => Err(refused.to_string()),
            _ => Ok(0),
        })
    }
}
