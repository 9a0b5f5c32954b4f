//! What things cost, in nanoseconds: all that the model knows of a machine and of the real code's speed.

/// What things cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The server, for a request: its frames, its handling, its answer.
    pub request_ns: u64,
    /// The client, for a request, if it runs on the same machine; else 0.
    pub client_ns: u64,
    /// The server, for a byte of an answer that goes to the socket.
    pub sent_byte_ns: f64,
    /// The client, for a byte of an answer.
    pub received_byte_ns: f64,
    /// A round of the thread that speaks to raft.
    pub raft_turn_ns: u64,
    /// The log: an entry.
    pub log_entry_ns: u64,
    /// The log: a byte of it.
    pub log_byte_ns: f64,
    /// The log: a sync.
    pub log_sync_ns: u64,
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
    /// A commit: one operation.
    pub commit_op_ns: u64,
    /// A commit: its sync.
    pub commit_sync_ns: u64,
    /// One revision of a scan in the order of revisions, for watchers that are behind or a compaction.
    pub scan_revision_ns: u64,
    /// A watcher hears of a write.
    pub notify_ns: u64,
    /// A revision is removed.
    pub remove_revision_ns: u64,
    /// The file is copied: a byte of it.
    pub copy_byte_ns: f64,
    /// May this user see that key?
    pub permission_ns: u64,
}

impl Default for Costs {
    /// About what our code needs on a virtual machine with two cores of an AMD EPYC, by hand: the first
    /// guess of a calibration.
    fn default() -> Costs {
        Costs {
            request_ns: 20_000,
            client_ns: 25_000,
            sent_byte_ns: 1.0,
            received_byte_ns: 0.8,
            raft_turn_ns: 5_000,
            log_entry_ns: 3_000,
            log_byte_ns: 0.5,
            log_sync_ns: 900_000,
            index_seek_ns: 1_000,
            index_key_ns: 60,
            record_ns: 1_500,
            record_byte_ns: 0.3,
            apply_ns: 8_000,
            buffer_op_ns: 150,
            commit_op_ns: 4_000,
            commit_sync_ns: 1_200_000,
            // 210,001 revisions were read in 165 ms, etcd #22265.
            scan_revision_ns: 800,
            notify_ns: 1_500,
            remove_revision_ns: 3_000,
            // 4.1 GB in 15 s, etcd #20952.
            copy_byte_ns: 3.6,
            permission_ns: 1_000,
        }
    }
}

/// So many of something that costs so much each.
pub(crate) fn times(count: u64, each_ns: f64) -> u64 {
    (count as f64 * each_ns) as u64
}
