//! Costs in nanoseconds. They are everything that the model knows about the speed of a machine and
//! of the real code.
//!
//! Most costs are time on a core. The others are waits: for a disk, and for threads that must be
//! woken. On a virtual machine, waking a thread takes longer than the computation of many requests.
//! Measured costs are in a [file](crate::cost_file).

use crate::spread::Spread;

/// The types that a cost can have. The macro `costs` also uses their names as variants of
/// `CostField`.
mod kind {
    pub(super) use crate::spread::Spread;
    pub(super) type Whole = u64;
    pub(super) type Part = f64;
}

/// Defines the costs. Each cost has a kind (its type). It may also have a group (`CostGroup`), and
/// a name in a file that differs from the name of the field.
macro_rules! costs {
    ($($(#[$doc:meta])* $field:ident: $kind:ident $(in $group:ident)? $(as $name:literal)?,)*) => {
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Costs {
            $($(#[$doc])* pub $field: kind::$kind,)*
        }

        impl Costs {
            /// Returns, for each cost, its name in a [`cost_file`](crate::cost_file), its group,
            /// and a mutable reference to its value.
            pub(crate) fn fields(
                &mut self,
            ) -> Vec<(&'static str, Option<CostGroup>, CostField<'_>)> {
                vec![$((
                    [$($name,)? stringify!($field)][0],
                    None$(.or(Some(CostGroup::$group)))?,
                    CostField::$kind(&mut self.$field),
                )),*]
            }
        }
    };
}

costs! {
    /// How long a computation runs before it yields to a queued one.
    quantum_ns: Whole,
    /// Share of waking threads that preempt: see [`Cores`](crate::Cores::with_impatience).
    impatience: Part,
    /// Server CPU for framing, handling and response of a request.
    request_ns: Whole in Request,
    /// Client CPU for a request. It is used only if the client runs on the same machine.
    client_ns: Whole in Request,
    /// Time of the thread hand-overs of a request from client to server and back, on a machine that
    /// is awake.
    awake: Spread in RequestWaits as "awake_ns",
    /// Additional time of a request's hand-overs on a machine that sleeps.
    wakeups_ns: Whole in RequestWaits,
    /// Time constant of falling asleep: an idle machine approaches sleep exponentially.
    doze_ns: Whole,
    /// Time of the additional thread hand-overs of a write, on a machine that is awake.
    write_awake_ns: Whole in PutWaits,
    /// Additional time of a write's hand-overs on a machine that sleeps.
    write_wakeups_ns: Whole in PutWaits,
    /// Time of the thread hand-overs of a ReadIndex request. It does not depend on whether the
    /// machine is awake.
    round_wakeups_ns: Whole,
    /// Server CPU to hand a read to the thread pool.
    pool_ns: Whole,
    /// Time of the thread hand-overs of a read to and from the thread pool.
    pool_wakeups_ns: Whole,
    /// Server CPU for each record of a response.
    sent_record_ns: Whole in Record,
    /// Server CPU for each byte of a response.
    sent_byte_ns: Part in Record,
    /// Per MiB of a long response: waits of server and client for each other and for memory.
    sent_waits: Spread in RecordWaits as "sent_waits_ns",
    /// Client CPU for each byte of a response.
    received_byte_ns: Part in Record,
    /// CPU of a turn of the raft loop.
    raft_turn_ns: Whole in Request,
    /// Log: CPU per entry.
    log_entry_ns: Whole in Put,
    /// Log: CPU per byte.
    log_byte_ns: Part in Put,
    /// Log: how long a sync waits for the disk.
    log_sync: Spread in PutWaits as "log_sync_ns",
    /// Index: CPU per lookup of a key, such as the first key of a walk.
    index_seek_ns: Whole in Request,
    /// Index: CPU per key of a walk.
    index_key_ns: Whole in Record,
    /// Backend: CPU per record read.
    record_ns: Whole in Record,
    /// Backend: CPU per byte read or written.
    record_byte_ns: Part in Record,
    /// Backend: CPU per key written.
    apply_ns: Whole in Put,
    /// Read buffer: CPU per operation that is merged into it or copied.
    buffer_op_ns: Whole in Put,
    /// Commit: fixed CPU.
    commit_ns: Whole in Put,
    /// Commit: CPU per operation.
    commit_op_ns: Whole in Put,
    /// Commit: CPU per byte.
    commit_byte_ns: Part in Put,
    /// Commit: how long its syncs wait for the disk.
    commit_sync: Spread as "commit_sync_ns",
    /// CPU per revision of a scan in order of revisions, as for unsynced watchers and compactions.
    scan_revision_ns: Whole,
    /// CPU to notify one synced watcher of one key written.
    notify_ns: Whole,
    /// Compaction: CPU per revision removed.
    remove_revision_ns: Whole,
    /// CPU per permission check.
    permission_ns: Whole,
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

/// Costs that are measured together, because a simple load shows only their sum.
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
    /// CPU of a put, without the CPU of a request.
    Put,
    /// Waits of a put, without the waits of a request: thread hand-overs, and the log's disk.
    PutWaits,
}

#[derive(Debug)]
pub(crate) enum CostField<'c> {
    Whole(&'c mut u64),
    Part(&'c mut f64),
    Spread(&'c mut Spread),
}

pub(crate) fn times(count: u64, each_ns: f64) -> u64 {
    (count as f64 * each_ns) as u64
}
