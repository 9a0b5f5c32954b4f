//! Costs in nanoseconds: all that the model knows of the speed of a machine and of the real code.
//!
//! Most are time on a core. The rest is waiting for a disk, and for threads that must be woken,
//! which on a virtual machine takes longer than many requests compute. Measured costs are in a
//! [file](crate::cost_file).

use crate::spread::Spread;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// How long a computation runs before it yields to a queued one.
    pub quantum_ns: u64,
    /// Share of waking threads that preempt: see [`Cores`](crate::Cores::with_impatience).
    pub impatience: f64,
    /// Server CPU for framing, handling and response of a request.
    pub request_ns: u64,
    /// Client CPU for a request, if the client runs on the same machine; else 0.
    pub client_ns: u64,
    /// Thread hand-overs of a request from client to server and back, on a machine that is awake.
    pub awake: Spread,
    /// Additional time of these hand-overs on a machine that sleeps.
    pub wakeups_ns: u64,
    /// Time constant of falling asleep: an idle machine approaches sleep exponentially.
    pub doze_ns: u64,
    /// Additional thread hand-overs of a write, on a machine that is awake.
    pub write_awake_ns: u64,
    /// Additional time of those on a machine that sleeps.
    pub write_wakeups_ns: u64,
    /// Thread hand-overs of a ReadIndex round, however awake the machine is.
    pub round_wakeups_ns: u64,
    /// Server CPU to hand a read to the thread pool.
    pub pool_ns: u64,
    /// Thread hand-overs for that.
    pub pool_wakeups_ns: u64,
    /// Server CPU for each record of a response.
    pub sent_record_ns: u64,
    /// Server CPU for each byte of a response.
    pub sent_byte_ns: f64,
    /// Per MiB of a long response: waits of server and client for each other and for memory.
    pub sent_waits: Spread,
    /// Client CPU for each byte of a response.
    pub received_byte_ns: f64,
    /// CPU of a turn of the raft loop.
    pub raft_turn_ns: u64,
    /// Log: CPU per entry.
    pub log_entry_ns: u64,
    /// Log: CPU per byte.
    pub log_byte_ns: f64,
    /// Log: how long a sync waits for the disk.
    pub log_sync: Spread,
    /// Index: per lookup of the first key.
    pub index_seek_ns: u64,
    /// Index: per key of a walk.
    pub index_key_ns: u64,
    /// Backend: per record read.
    pub record_ns: u64,
    /// Backend: per byte read or written.
    pub record_byte_ns: f64,
    /// Backend: per key written.
    pub apply_ns: u64,
    /// Read buffer: per operation merged into it or copied.
    pub buffer_op_ns: u64,
    /// Commit: fixed CPU.
    pub commit_ns: u64,
    /// Commit: per operation.
    pub commit_op_ns: u64,
    /// Commit: per byte.
    pub commit_byte_ns: f64,
    /// Commit: how long its syncs wait for the disk.
    pub commit_sync: Spread,
    /// Per revision of a scan in order of revisions, as for unsynced watchers and compactions.
    pub scan_revision_ns: u64,
    /// Per watcher and key written.
    pub notify_ns: u64,
    /// Compaction: per revision removed.
    pub remove_revision_ns: u64,
    /// Per permission check.
    pub permission_ns: u64,
}

impl Costs {
    /// Multiplies the costs of a group by `times`.
    #[must_use]
    pub fn scaled(&self, group: CostGroup, times: f64) -> Costs {
        let mut costs = self.clone();
        for (_, _, place) in costs.fields().into_iter().filter(|(_, its, _)| *its == Some(group)) {
            match place {
                CostField::Whole(ns) => *ns = (*ns as f64 * times) as u64,
                CostField::Part(ns) => *ns *= times,
                CostField::Spread(spread) => *spread = spread.times(times),
            }
        }
        costs
    }
}

/// Costs that are measured together, since one plain load shows their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostGroup {
    /// CPU of server and client per request.
    Request,
    /// Thread hand-overs per request.
    RequestWaits,
    /// CPU per record of a response.
    Record,
    /// Waits of a long response.
    RecordWaits,
    /// CPU of a put beyond that of a request.
    Put,
    /// Waits of a put beyond those of a request: thread hand-overs, and the log's disk.
    PutWaits,
}

#[derive(Debug)]
pub(crate) enum CostField<'c> {
    Whole(&'c mut u64),
    Part(&'c mut f64),
    Spread(&'c mut Spread),
}

impl Costs {
    /// Each name in a [`cost_file`](crate::cost_file), where a [`Spread`] has its unit, and the
    /// group that a load determines.
    pub(crate) fn fields(&mut self) -> [(&'static str, Option<CostGroup>, CostField<'_>); 34] {
        use CostField::{Part, Whole};
        use CostGroup::{Put, PutWaits, Record, RecordWaits, Request, RequestWaits};
        [
            ("quantum_ns", None, Whole(&mut self.quantum_ns)),
            ("impatience", None, Part(&mut self.impatience)),
            ("request_ns", Some(Request), Whole(&mut self.request_ns)),
            ("client_ns", Some(Request), Whole(&mut self.client_ns)),
            ("awake_ns", Some(RequestWaits), CostField::Spread(&mut self.awake)),
            ("wakeups_ns", Some(RequestWaits), Whole(&mut self.wakeups_ns)),
            ("doze_ns", None, Whole(&mut self.doze_ns)),
            ("write_awake_ns", Some(PutWaits), Whole(&mut self.write_awake_ns)),
            ("write_wakeups_ns", Some(PutWaits), Whole(&mut self.write_wakeups_ns)),
            ("round_wakeups_ns", None, Whole(&mut self.round_wakeups_ns)),
            ("pool_ns", None, Whole(&mut self.pool_ns)),
            ("pool_wakeups_ns", None, Whole(&mut self.pool_wakeups_ns)),
            ("sent_record_ns", Some(Record), Whole(&mut self.sent_record_ns)),
            ("sent_byte_ns", Some(Record), Part(&mut self.sent_byte_ns)),
            ("sent_waits_ns", Some(RecordWaits), CostField::Spread(&mut self.sent_waits)),
            ("received_byte_ns", Some(Record), Part(&mut self.received_byte_ns)),
            ("raft_turn_ns", Some(Request), Whole(&mut self.raft_turn_ns)),
            ("log_entry_ns", Some(Put), Whole(&mut self.log_entry_ns)),
            ("log_byte_ns", Some(Put), Part(&mut self.log_byte_ns)),
            ("log_sync_ns", Some(PutWaits), CostField::Spread(&mut self.log_sync)),
            ("index_seek_ns", Some(Request), Whole(&mut self.index_seek_ns)),
            ("index_key_ns", Some(Record), Whole(&mut self.index_key_ns)),
            ("record_ns", Some(Record), Whole(&mut self.record_ns)),
            ("record_byte_ns", Some(Record), Part(&mut self.record_byte_ns)),
            ("apply_ns", Some(Put), Whole(&mut self.apply_ns)),
            ("buffer_op_ns", Some(Put), Whole(&mut self.buffer_op_ns)),
            ("commit_ns", Some(Put), Whole(&mut self.commit_ns)),
            ("commit_op_ns", Some(Put), Whole(&mut self.commit_op_ns)),
            ("commit_byte_ns", Some(Put), Part(&mut self.commit_byte_ns)),
            ("commit_sync_ns", None, CostField::Spread(&mut self.commit_sync)),
            ("scan_revision_ns", None, Whole(&mut self.scan_revision_ns)),
            ("notify_ns", None, Whole(&mut self.notify_ns)),
            ("remove_revision_ns", None, Whole(&mut self.remove_revision_ns)),
            ("permission_ns", None, Whole(&mut self.permission_ns)),
        ]
    }
}

pub(crate) fn times(count: u64, each_ns: f64) -> u64 {
    (count as f64 * each_ns) as u64
}
