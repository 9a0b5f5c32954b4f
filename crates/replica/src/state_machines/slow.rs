//! Reports entries that take longer to apply than a limit: later entries wait as long.
//!
//! The apply half reads no clock: its owner may give it an [`ApplyTimer`], which is read once for
//! each entry. A simulated member has none.

use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_proto::nested::decode_raft_request;
use clearlane_wal::{Entry, EntryKind};

use super::{Applier, RequestOutcome};
use crate::apply::describe;
use crate::request_trace::{LockWaitMark, RequestTrace, Stage};

#[derive(Clone, Copy, Debug)]
pub struct ApplyTimer {
    pub limit: Duration,
    /// Nanoseconds since any fixed moment.
    pub now_ns: fn() -> u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
    pub took: Duration,
    /// Time per stage; waits for locks apart, with the holder of the longest.
    pub stages: String,
    /// In etcd's short form, without values and passwords.
    pub request: String,
    /// Length of the answer, as far as it is there, or the refusal; `None` if another member
    /// answers.
    pub outcome: Option<Result<usize, String>>,
}

/// The start of the current entry, and this thread's lock waits before it.
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

    /// Ends the time of an entry, and starts that of the next.
    pub(super) fn record_entry_time(&mut self, timer: &mut Option<EntryTimer>, entry: &Entry) {
        let (Some(watch), Some(timer)) = (self.apply_timer, timer) else { return };
        let now_ns = (watch.now_ns)();
        let took = Duration::from_nanos(now_ns.saturating_sub(timer.start_ns));
        if took > watch.limit && entry.kind == EntryKind::Normal {
            // An applied entry can be decoded.
            let request = decode_raft_request(entry.data.clone()).unwrap_or_default();
            let outcome = self.result_summary(&request);
            let request = describe::request(&request).to_string();
            let mut trace = RequestTrace::start_at(timer.start_ns);
            trace.end_stage_with_locks(Stage::Apply, now_ns, timer.lock_waits);
            let stages = trace.to_string();
            self.ready.slow_entries.push(SlowEntry { took, stages, request, outcome });
        }
        *timer = EntryTimer { start_ns: now_ns, lock_waits: LockWaitMark::now() };
    }

    /// `None` if no request waits at this member.
    fn result_summary(&self, request: &InternalRaftRequest) -> Option<Result<usize, String>> {
        let id = request.header.as_ref().map_or(request.id, |header| header.id);
        let (_, outcome) =
            self.ready.completions.last().filter(|_| self.last_completed == Some(id))?;
        Some(match outcome {
            RequestOutcome::Applied(Ok(reply)) => Ok(reply.encoded_len()),
            RequestOutcome::AppliedInPart(reply) => Ok(reply.encoded_len()),
            RequestOutcome::Applied(Err(refused)) => Err(refused.to_string()),
            _ => Ok(0),
        })
    }
}
