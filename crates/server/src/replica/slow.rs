//! Entries that take long to apply: what stands behind one waits as long, so each that took longer
//! than a limit is reported with what it was.
//!
//! The apply half reads no clock. Its owner may hand it a [`ApplyTimer`]; a simulated member has
//! none. Nothing that is done depends on what it shows. It is read once for each entry: the end of
//! one is the beginning of the next.

use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_proto::nested::decode_raft_request;
use clearlane_wal::{Entry, EntryKind};

use super::{Applier, ProposalResult, RequestOutcome};
use crate::apply::describe;
use crate::request_trace::{LockWaitMark, RequestTrace};

/// A clock, and how long an entry may take by it.
#[derive(Clone, Copy, Debug)]
pub struct ApplyTimer {
    /// What takes longer is told of.
    pub limit: Duration,
    /// Nanoseconds since any fixed moment.
    pub now_ns: fn() -> u64,
}

/// An entry that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
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
pub(super) struct EntryTimer {
    start_ns: u64,
    lock_waits: LockWaitMark,
}

impl Applier {
    pub(super) fn start_entry_timer(&self) -> Option<EntryTimer> {
        let watch = self.apply_timer?;
        Some(EntryTimer { start_ns: (watch.now_ns)(), lock_waits: LockWaitMark::now() })
    }

    /// Ends the lap of an entry, and begins that of the next.
    pub(super) fn record_entry_time(&mut self, lap: &mut Option<EntryTimer>, entry: &Entry) {
        let (Some(watch), Some(lap)) = (self.apply_timer, lap) else { return };
        let now_ns = (watch.now_ns)();
        let took = Duration::from_nanos(now_ns.saturating_sub(lap.start_ns));
        if took > watch.limit && entry.kind == EntryKind::Normal {
            // What was applied can be decoded.
            let request = decode_raft_request(entry.data.clone()).unwrap_or_default();
            let outcome = self.result_summary(&request);
            let request = describe::request(&request).to_string();
            let stages =
                RequestTrace::entry_report(lap.start_ns, now_ns, lap.lock_waits).to_string();
            self.ready.slow_entries.push(SlowEntry { took, stages, request, outcome });
        }
        *lap = EntryTimer { start_ns: now_ns, lock_waits: LockWaitMark::now() };
    }

    /// What its answer was, if this member gives it.
    fn result_summary(&self, request: &InternalRaftRequest) -> Option<Result<usize, String>> {
        let id = request.header.as_ref().map_or(request.id, |header| header.id);
        let (_, outcome) =
            self.ready.completions.last().filter(|_| self.last_completed == Some(id))?;
        Some(match outcome {
            RequestOutcome::Applied(ProposalResult::Request(Ok(reply))) => Ok(reply.encoded_len()),
            RequestOutcome::Applied(ProposalResult::Request(Err(refused))) => {
                Err(refused.to_string())
            }
            _ => Ok(0),
        })
    }
}
