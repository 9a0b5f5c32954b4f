//! The life of a Put, function by function. There is no code here: each name is a link that is
//! checked when the documentation is built.
//!
//! ```text
//!   net      message ─ ask ─┐                                                 ┌─ answer
//!   raft                    └▶ propose ─ append ─┐    ┌ committed ─ apply ─ publish ─ wake
//!   wal                                          └▶ write, sync ┘                  │
//!   watch                                                                          └▶ events
//!   commit                                                     every 100 ms: engine, sync
//! ```
//!
//! # From the socket to the log
//!
//! 1. The way in is that of [a Range](crate::life_of_a_range), down to
//!    [`RequestContext::put`](crate::kv::RequestContext::put).
//! 2. [`Server::propose`](clearlane_member::Server::propose) checks what can be told without the store
//!    ([`check`](clearlane_member::requests::check::check)) and whether there is room
//!    ([`quota`](clearlane_member::quota)), and leaves the request at the thread's
//!    [`RequestChannel`](clearlane_member::node::RequestChannel).
//! 3. On the raft loop [`Replica::handle_input`](clearlane_member::core::Replica::handle_input) gives it an id and
//!    encodes it: from here on it is bytes, and what was read from the socket is let go. Without a leader it waits
//!    there for one.
//! 4. [`RaftNode::propose`](clearlane_raft_log::driver::RaftNode::propose) hands it to raft. The leader
//!    appends it, and sends it to the others in the same turn: nobody waits for the leader's disk
//!    first.
//!
//! # To the disk
//!
//! 5. All that was appended in a turn leaves in one
//!    [batch](clearlane_member::core::ReplicaReady::wal_batch). The wal thread
//!    [writes it](clearlane_raft_log::wal::group_commit::Batch::write) with one sync. Meanwhile the next batch
//!    gathers.
//! 6. The raft loop tells raft what is on disk. Once a quorum has it, the entry is committed, and goes to the apply
//!    loop.
//!
//! # Into the store
//!
//! 7. [`Applier::step`](clearlane_member::core::Applier::step) applies what is committed, in order, on the apply
//!    loop: no other thread writes the store.
//! 8. It runs in a [write transaction](clearlane_mvcc::WriteTxn), which ends with the entry's place in the log: data
//!    and [consistent index](clearlane_member::applied_position) are never apart. Any other request has
//!    [one to itself](clearlane_member::requests::apply); puts in a row that were committed together share one, and
//!    [`WriteTxn::begin_next_revision`](clearlane_mvcc::WriteTxn::begin_next_revision) begins the next revision in it.
//! 9. [`WriteTxn::end`](clearlane_mvcc::WriteTxn::end) publishes: index, pending records and revision
//!    become visible with one pointer. Readers that open a view now see the put; those that have one
//!    do not notice.
//! 10. In the order of [`ApplyOutputs::carry_out`](clearlane_member::core::ApplyReady::dispatch): the raft loop
//!     hears of it, then the writer is answered, then watchers hear of it.
//!
//! # Afterwards
//!
//! 11. The answer comes to the desk, and the frame of a few bytes goes out.
//! 12. The [watchable store](clearlane_mvcc::watch::WatchableStore) finds who watches the key; its threads hand out events.
//! 13. The commit thread calls [`Store::commit_if_due`](clearlane_mvcc::Store::commit_if_due): what is pending goes to the
//!     engine in one transaction, is synced, and leaves memory. Until then a crash is no loss: the log
//!     has it, and the consistent index says from where it is applied again.
//! 14. When the engine has come far enough, the raft loop
//!     [notes that](clearlane_member::core::ReplicaInput::StoreCommitted) in the log, and the log is cut off behind it.
