//! The life of a Range, function by function. There is no code here: each name is a link that is
//! checked when the documentation is built, so this page cannot speak of what is not there.
//!
//! ```text
//!   thread      net                                      raft                        net
//!   time  ──────────────────────────────────────────────────────────────────────────────────▶
//!               head, message ─▶ wait for a fresh view ─▶ one round for all ─▶ view ─▶ answer
//! ```
//!
//! # From the socket to a request (network thread)
//!
//! 1. [`serve`](crate::serve) has a few threads with a runtime each. A connection belongs to one of
//!    them for good, and its bytes come through [`CoalescingWriter`](crate::coalescing_writer::CoalescingWriter).
//! 2. hyper takes frames apart. Each request is handed to [`Router::handle`](crate::front::Router::handle),
//!    which looks at the path: Range is one of five calls that go past tonic.
//! 3. [`kv::handle`](crate::front::kv) asks whether this member may answer this caller
//!    ([`interceptors`](crate::interceptors)), and [reads](crate::front::unary::read_message) the message. It is
//!    decoded where it lies; its key is a slice of what was read from the socket.
//! 4. [`RequestContext::range`](crate::kv::RequestContext::range) turns away what a learner cannot answer.
//!
//! # Waiting to be fresh (network thread, raft loop)
//!
//! 5. [`range::range`](clearlane_member::range::range) has the rest of the path on one screen. It
//!    [checks](clearlane_member::requests::check::range) the request. A serializable one goes on with 9.
//! 6. [`Server::linearizable_read_notify`](clearlane_member::Server::linearizable_read_notify_untraced): who is
//!    [alone](clearlane_member::node::ServerThreads::is_sole_voter_caught_up) goes on with 9. All others leave a question at the
//!    thread's [`RequestChannel`](clearlane_member::node::RequestChannel). All questions of one turn of the runtime go to the
//!    raft loop together.
//! 7. There [`Replica::handle_input`](clearlane_member::core::Replica::handle_input) adds the reader to the barrier, and
//!    [`Replica::poll`](clearlane_member::core::Replica::poll) sends one
//!    [round](clearlane_read_index) for all who wait: raft asks a quorum whether this leader still
//!    leads.
//! 8. When the apply loop has come as far as the round says, the readers come out in
//!    [`ReplicaReady::completions`](clearlane_member::core::ReplicaReady::completions). The raft loop hands them to the
//!    net threads, wakes each once, and the desk wakes its tasks.
//!
//! # Reading (network thread)
//!
//! 9. [`Store::begin_snapshot_read`](clearlane_mvcc::Store::begin_snapshot_read) loads one pointer: revision, index, pending records
//!    and the engine's snapshot of one moment. No lock is taken, and nobody waits for this reader from
//!    here on. The stores of the old eras have no view;
//!    [their reads](clearlane_mvcc::Store::begin_read) hold locks and are made in the
//!    [read pool](clearlane_member::node::ReadPool).
//! 10. [`ReadTxn::visit_records`](clearlane_mvcc::ReadTxn::visit_records) walks the tree index over the range. It
//!     names the revisions, and counts without walking what the limit has cut off.
//! 11. [`ReadTx::get`](clearlane_backend::ReadTx::get) finds the record of each: among what is pending,
//!     or on a page of the engine. Those that were written side by side come by one
//!     [`ReadTx::range`](clearlane_backend::ReadTx::range).
//!     The thread reads [what is in memory](clearlane_engine::try_read_cached); if that is not all, it begins again in
//!     the [cold pool](clearlane_member::node::ServerThreads::uncached_pool).
//! 12. A range that finds more than it may at once begins again in the read pool.
//!     [`ReadTxn::visit_record_lengths`](clearlane_mvcc::ReadTxn::visit_record_lengths) says how long it will be, from the index
//!     alone, and then it is a [`StreamedRange`](clearlane_member::streamed_range::StreamedRange): read while it is sent.
//!
//! # From records to the socket (network thread)
//!
//! 13. [`range_body`](crate::front::range_body) writes prefix, header and records into one frame.
//!     A record is stored in the form in which it is sent, so nothing is decoded or encoded on the way.
//! 14. A long answer is [`StreamedRangeBody`](crate::front::range_body::StreamedRangeBody): each is read and encoded in the read pool
//!     while the one before it is sent, and after each it is somebody else's turn.
//! 15. The [card](clearlane_member::request_trace::RequestTrace) that went along has a stamp for each stage. If all of
//!     it took too long, [a line of the log](clearlane_member::request_trace::SlowRequestReport::log_slow_request) says where the time
//!     went.
