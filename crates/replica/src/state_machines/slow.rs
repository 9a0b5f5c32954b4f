//! Reports requests whose entries take longer to apply than a limit, because later entries must
//! wait for them. Changes of raft's configuration are not reported.
//!
//! The apply half reads no clock itself. Its owner may give it an [`ApplyTimer`], which is read at
//! the start of each step and after each entry. A simulated member has no timer, so it reports
//! nothing.

use std::time::Duration;

use clearlane_contention::{LockWaitMark, LockWaits};
use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_proto::nested::decode_raft_request;
use clearlane_wal::{Entry, EntryKind};

use super::{Applier, RequestOutcome};
use crate::apply::describe;

#[derive(Clone, Copy, Debug)]
pub struct ApplyTimer {
    pub limit: Duration,
    /// Returns the nanoseconds since any fixed time.
    pub now_ns: fn() -> u64,
}

#[derive(Clone, Debug)]
pub struct SlowEntry {
    pub took: Duration,
    /// The waits for locks. Their time is included in `took`.
    pub lock_waits: LockWaits,
    /// The request in etcd's short form, without values and passwords.
    pub request: String,
    /// Length of the response without deferred reads, or the rejection. `None` if no request waits
    /// at this member, because another member answers it or because it was cancelled.
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

    /// Ends the measurement of an entry, and starts the measurement of the next one.
    pub(super) fn record_entry_time(&mut self, timer: &mut Option<EntryTimer>, entry: &Entry) {
        let (Some(watch), Some(timer)) = (self.apply_timer, timer) else { return };
        let now_ns = (watch.now_ns)();
        let took = Duration::from_nanos(now_ns.saturating_sub(timer.start_ns));
        if took > watch.limit && entry.kind == EntryKind::Normal {
            // An applied entry can be decoded.
            let request = decode_raft_request(entry.data.clone()).unwrap_or_default();
            let outcome = self.result_summary(&request);
            let request = describe::request(&request).to_string();
            let lock_waits = timer.lock_waits.waits();
            self.ready.slow_entries.push(SlowEntry { took, lock_waits, request, outcome });
        }
        *timer = EntryTimer { start_ns: now_ns, lock_waits: LockWaitMark::now() };
    }

    /// Returns the length of the response, or the rejection. Returns `None` if no request waited at
    /// this member.
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
