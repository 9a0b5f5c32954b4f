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
//!    them for good, and its bytes come through [`OnePiece`](crate::one_piece::OnePiece).
//! 2. hyper takes frames apart. Each request is handed to [`Front::answer`](crate::front::Front::answer),
//!    which looks at the path: Range is one of five calls that go past tonic.
//! 3. [`hot::answer`](crate::front::hot::answer) asks whether this member may answer this caller
//!    ([`caller::admit`](crate::caller::admit)), and [reads](crate::front::unary::read) the message. It is
//!    decoded where it lies; its key is a slice of what was read from the socket.
//! 4. [`Errand::range`](crate::kv::Errand::range) turns away what a learner cannot answer.
//!
//! # Waiting to be fresh (network thread, raft loop)
//!
//! 5. [`range::range`](clearlane_member::range::range) has the rest of the path on one screen. It
//!    [checks](clearlane_member::requests::check::range) the request. A serializable one goes on with 9.
//! 6. [`Handle::fresh`](clearlane_member::Handle::fresh): who is
//!    [alone](clearlane_member::node::Node::is_alone) goes on with 9. All others leave a question at the
//!    thread's [`Desk`](clearlane_member::node::Desk). All questions of one turn of the runtime go to the
//!    raft loop together.
//! 7. There [`Core::take`](clearlane_member::core::Core::take) adds the reader to the barrier, and
//!    [`Core::poll`](clearlane_member::core::Core::poll) sends one
//!    [round](clearlane_read_index) for all who wait: raft asks a quorum whether this leader still
//!    leads.
//! 8. When the apply loop has come as far as the round says, the readers come out in
//!    [`Outputs::completions`](clearlane_member::core::Outputs::completions). The raft loop hands them to the
//!    net threads, wakes each once, and the desk wakes its tasks.
//!
//! # Reading (network thread)
//!
//! 9. [`Store::view`](clearlane_mvcc::Store::view) loads one pointer: revision, index, pending records
//!    and the engine's snapshot of one moment. No lock is taken, and nobody waits for this reader from
//!    here on. The stores of the old eras have no view;
//!    [their reads](clearlane_mvcc::Store::read) hold locks and are made in the
//!    [read pool](clearlane_member::node::ReadPool).
//! 10. [`ReadTxn::records`](clearlane_mvcc::ReadTxn::records) walks the tree index over the range. It
//!     names the revisions, and counts without walking what the limit has cut off.
//! 11. [`ReadTx::get`](clearlane_backend::ReadTx::get) finds the record of each: among what is pending,
//!     or on a page of the engine. Those that were written side by side come by one
//!     [`ReadTx::range`](clearlane_backend::ReadTx::range).
//!     The thread reads [what is in memory](clearlane_engine::without_waiting); if that is not all, it begins again in
//!     the [cold pool](clearlane_member::node::Node::cold_pool).
//! 12. A range that finds more than it may at once begins again in the read pool.
//!     [`ReadTxn::lengths`](clearlane_mvcc::ReadTxn::lengths) says how long it will be, from the index
//!     alone, and then it is a [`Long`](clearlane_member::long::Long): read while it is sent.
//!
//! # From records to the socket (network thread)
//!
//! 13. [`range::answer`](crate::front::range::answer) writes prefix, header and records into one frame.
//!     A record is stored in the form in which it is sent, so nothing is decoded or encoded on the way.
//! 14. A long answer is [`Pieces`](crate::front::range::Pieces): each is read and encoded in the read pool
//!     while the one before it is sent, and after each it is somebody else's turn.
//! 15. The [card](clearlane_member::stages::Card) that went along has a stamp for each stage. If all of
//!     it took too long, [a line of the log](clearlane_member::stages::Story::tell) says where the time
//!     went.
