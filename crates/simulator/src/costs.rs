//! What things cost, in nanoseconds: all that the model knows of a machine and of the real code's
//! speed.
//!
//! Most of it is time on a core. The rest is waiting that no request is to blame for: for a disk,
//! and for threads that sleep and must be woken, which on a virtual machine takes longer than many
//! a request computes.
//!
//! Where they come from: a [file](crate::cost_file) of measured costs.

use crate::spread::Spread;

/// What things cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// So long a core works for one before it makes way for another.
    pub quantum_ns: u64,
    /// Which share of the threads that wake goes before a thread that has run for long:
    /// [`crate::cores`].
    pub impatience: f64,
    /// The server, for a request: its frames, its handling, its answer.
    pub request_ns: u64,
    /// The client, for a request, if it runs on the same machine; else 0.
    pub client_ns: u64,
    /// Threads that hand a request to each other, from when it is due until its answer is counted,
    /// all together: on a machine that is awake.
    pub awake: Spread,
    /// How much longer it takes on a machine that sleeps.
    pub wakeups_ns: u64,
    /// How long it takes until a machine that has nothing to do sleeps; most of the way, as with
    /// all that fades.
    pub doze_ns: u64,
    /// The threads that a write has beside them, if the machine is awake.
    pub write_awake_ns: u64,
    /// And how much longer they take if it sleeps.
    pub write_wakeups_ns: u64,
    /// The threads of a read that must be fresh; these it has woken already.
    pub round_wakeups_ns: u64,
    /// The server, for a read that it hands to a thread of its pool.
    pub pool_ns: u64,
    /// And the threads that are woken for it, likewise.
    pub pool_wakeups_ns: u64,
    /// The server, for a record that goes into an answer.
    pub sent_record_ns: u64,
    /// The server, for a byte of an answer that goes to the socket.
    pub sent_byte_ns: f64,
    /// For each MiB of a long answer: threads of server and client that wait for each other while
    /// it goes through the socket, and for memory.
    pub sent_waits: Spread,
    /// The client, for a byte of an answer.
    pub received_byte_ns: f64,
    /// A round of the thread that speaks to raft.
    pub raft_turn_ns: u64,
    /// The log: an entry.
    pub log_entry_ns: u64,
    /// The log: a byte of it.
    pub log_byte_ns: f64,
    /// The log: how long a sync waits for the disk, beside what it computes.
    pub log_sync: Spread,
    /// The index: to come to a key, and to go on to the next one.
    pub index_seek_ns: u64,
    /// The index: one key of a walk.
    pub index_key_ns: u64,
    /// The backend: one record that is looked up.
    pub record_ns: u64,
    /// The backend: a byte of it, read or written.
    pub record_byte_ns: f64,
    /// A key that is written, when that is applied.
    pub apply_ns: u64,
    /// What is pending is merged into the read buffer, or copied out of it: one operation.
    pub buffer_op_ns: u64,
    /// A commit, however little there is to commit: what it computes.
    pub commit_ns: u64,
    /// A commit: one operation.
    pub commit_op_ns: u64,
    /// A commit: a byte of what is written.
    pub commit_byte_ns: f64,
    /// A commit: its syncs.
    pub commit_sync: Spread,
    /// One revision of a scan in the order of revisions, for watchers that are behind or a
    /// compaction.
    pub scan_revision_ns: u64,
    /// A watcher is notified of a write.
    pub notify_ns: u64,
    /// A revision is removed.
    pub remove_revision_ns: u64,
    /// May this user see that key?
    pub permission_ns: u64,
}

impl Costs {
    /// Round numbers, about right for one core of a server of these years: for examples that are
    /// reckoned by hand. To run a scenario, use those of a [file](crate::cost_file).
    pub const BY_HAND: Costs = Costs {
        quantum_ns: 3_000_000,
        impatience: 0.0,
        request_ns: 20_000,
        client_ns: 25_000,
        awake: Spread::constant(0),
        wakeups_ns: 0,
        doze_ns: 0,
        write_awake_ns: 0,
        write_wakeups_ns: 0,
        round_wakeups_ns: 0,
        pool_ns: 0,
        pool_wakeups_ns: 0,
        sent_record_ns: 0,
        sent_byte_ns: 1.0,
        sent_waits: Spread::constant(0),
        received_byte_ns: 0.8,
        raft_turn_ns: 5_000,
        log_entry_ns: 3_000,
        log_byte_ns: 0.5,
        log_sync: Spread::constant(900_000),
        index_seek_ns: 1_000,
        index_key_ns: 60,
        record_ns: 1_500,
        record_byte_ns: 0.3,
        apply_ns: 8_000,
        buffer_op_ns: 150,
        commit_ns: 0,
        commit_op_ns: 4_000,
        commit_byte_ns: 0.0,
        commit_sync: Spread::constant(1_200_000),
        // 210,001 revisions were read in 165 ms, etcd #22265.
        scan_revision_ns: 800,
        notify_ns: 1_500,
        remove_revision_ns: 3_000,
        permission_ns: 1_000,
    };

    /// The same where a group of them is so many times as much.
    #[must_use]
    pub fn scaled(&self, group: CostGroup, times: f64) -> Costs {
        let mut costs = self.clone();
        for (name, place) in costs.fields() {
            if group.names().contains(&name) {
                match place {
                    CostField::Whole(ns) => *ns = (*ns as f64 * times) as u64,
                    CostField::Part(ns) => *ns *= times,
                    CostField::Spread(spread) => *spread = spread.times(times),
                }
            }
        }
        costs
    }
}

/// Costs that are measured together, since one plain load shows their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostGroup {
    /// What server and client compute for any request.
    Request,
    /// Threads that wake for any request.
    RequestWaits,
    /// What is computed for each record of an answer.
    Record,
    /// What a long answer waits for.
    RecordWaits,
    /// What a put computes beyond a request.
    Put,
    /// What a put waits for beyond that: its threads, and the disk of the log.
    PutWaits,
}

impl CostGroup {
    fn names(self) -> &'static [&'static str] {
        match self {
            CostGroup::Request => &["request_ns", "client_ns", "raft_turn_ns", "index_seek_ns"],
            CostGroup::RequestWaits => &["awake_ns", "wakeups_ns"],
            CostGroup::Record => &[
                "index_key_ns",
                "record_ns",
                "record_byte_ns",
                "sent_record_ns",
                "sent_byte_ns",
                "received_byte_ns",
            ],
            CostGroup::RecordWaits => &["sent_waits_ns"],
            CostGroup::Put => &[
                "log_entry_ns",
                "log_byte_ns",
                "apply_ns",
                "buffer_op_ns",
                "commit_ns",
                "commit_op_ns",
                "commit_byte_ns",
            ],
            CostGroup::PutWaits => &["write_awake_ns", "write_wakeups_ns", "log_sync_ns"],
        }
    }
}

/// Where a cost is, by its kind.
#[derive(Debug)]
pub(crate) enum CostField<'c> {
    Whole(&'c mut u64),
    Part(&'c mut f64),
    Spread(&'c mut Spread),
}

impl Costs {
    /// All of them, by their names in files. That of a [`Spread`] has its unit there.
    pub(crate) fn fields(&mut self) -> [(&'static str, CostField<'_>); 34] {
        use CostField::{Part, Whole};
        [
            ("quantum_ns", Whole(&mut self.quantum_ns)),
            ("impatience", Part(&mut self.impatience)),
            ("request_ns", Whole(&mut self.request_ns)),
            ("client_ns", Whole(&mut self.client_ns)),
            ("awake_ns", CostField::Spread(&mut self.awake)),
            ("wakeups_ns", Whole(&mut self.wakeups_ns)),
            ("doze_ns", Whole(&mut self.doze_ns)),
            ("write_awake_ns", Whole(&mut self.write_awake_ns)),
            ("write_wakeups_ns", Whole(&mut self.write_wakeups_ns)),
            ("round_wakeups_ns", Whole(&mut self.round_wakeups_ns)),
            ("pool_ns", Whole(&mut self.pool_ns)),
            ("pool_wakeups_ns", Whole(&mut self.pool_wakeups_ns)),
            ("sent_record_ns", Whole(&mut self.sent_record_ns)),
            ("sent_byte_ns", Part(&mut self.sent_byte_ns)),
            ("sent_waits_ns", CostField::Spread(&mut self.sent_waits)),
            ("received_byte_ns", Part(&mut self.received_byte_ns)),
            ("raft_turn_ns", Whole(&mut self.raft_turn_ns)),
            ("log_entry_ns", Whole(&mut self.log_entry_ns)),
            ("log_byte_ns", Part(&mut self.log_byte_ns)),
            ("log_sync_ns", CostField::Spread(&mut self.log_sync)),
            ("index_seek_ns", Whole(&mut self.index_seek_ns)),
            ("index_key_ns", Whole(&mut self.index_key_ns)),
            ("record_ns", Whole(&mut self.record_ns)),
            ("record_byte_ns", Part(&mut self.record_byte_ns)),
            ("apply_ns", Whole(&mut self.apply_ns)),
            ("buffer_op_ns", Whole(&mut self.buffer_op_ns)),
            ("commit_ns", Whole(&mut self.commit_ns)),
            ("commit_op_ns", Whole(&mut self.commit_op_ns)),
            ("commit_byte_ns", Part(&mut self.commit_byte_ns)),
            ("commit_sync_ns", CostField::Spread(&mut self.commit_sync)),
            ("scan_revision_ns", Whole(&mut self.scan_revision_ns)),
            ("notify_ns", Whole(&mut self.notify_ns)),
            ("remove_revision_ns", Whole(&mut self.remove_revision_ns)),
            ("permission_ns", Whole(&mut self.permission_ns)),
        ]
    }
}

/// So many of something that costs so much each.
pub(crate) fn times(count: u64, each_ns: f64) -> u64 {
    (count as f64 * each_ns) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_scaled_and_the_others_stay() {
        let costs = Costs { write_awake_ns: 80, ..Costs::BY_HAND };
        let expected =
            Costs { write_awake_ns: 40, log_sync: Spread::constant(450_000), ..costs.clone() };
        assert_eq!(costs.scaled(CostGroup::PutWaits, 0.5), expected);
        let slower = costs.scaled(CostGroup::Record, 2.0);
        assert_eq!((slower.record_ns, slower.record_byte_ns), (3_000, 0.6));
        assert_eq!((slower.request_ns, slower.log_sync), (costs.request_ns, costs.log_sync));
    }

    /// A name that is misspelt would scale nothing.
    #[test]
    fn every_name_of_a_group_is_a_cost() {
        let mut costs = Costs::BY_HAND;
        let known = costs.fields().map(|(name, _)| name);
        use CostGroup::{Put, PutWaits, Record, RecordWaits, Request, RequestWaits};
        for group in [Request, RequestWaits, Record, RecordWaits, Put, PutWaits] {
            assert!(group.names().iter().all(|name| known.contains(name)), "{group:?}");
        }
    }
}
