//! Leases, the keys that are attached to them, and when they end.
//!
//! # The problem
//!
//! A client puts a key that says "I am here", and then its machine fails. The key must be deleted then,
//! and only then. So the client first asks for a *lease*, which ends by itself unless it is
//! renewed, and hangs its keys on it. When the lease ends they are deleted.
//!
//! What makes it hard is that members have clocks, and clocks differ, but what members do must not.
//! "The lease ends now" cannot be decided by each member for itself, or one has the key and another
//! has not, at the same revision.
//!
//! # The idea
//!
//! A lease is two things, and they are kept apart:
//!
//! ```text
//!   agreed on, the same at all members       the leader's alone, in memory only
//!   ───────────────────────────────────      ──────────────────────────────────
//!   id, granted seconds, checkpoint          the moment at which it ends
//!   the keys that hang on it                 what is on its way out
//!
//!   grant, revoke: through the log           renew: nobody else is told
//! ```
//!
//! Only the leader has moments. It *proposes* that a lease that has run out be revoked, like any
//! client could, and all members delete the same keys at the same place in the log. A renewal moves
//! the moment, and costs no entry in the log: that is what makes leases cheap.
//!
//! A new leader knows no moments. It gives every lease its whole time again, and an election time-out
//! more, because the old leader may have answered a renewal in the meantime. So after a change of
//! leader a lease may live longer than it should, and never shorter:
//!
//! ```text
//!   granted 10 s   │ renewed    leader dies     elected: 10 s + 1 s from here
//!   ───────────────┼───┼────────────╳ · · · · ·┼──────────────────────────────▶ ends
//! ```
//!
//! # A checkpoint
//!
//! An hour's lease in a cluster whose leader changes every half hour would thus never end. If that is
//! switched on, the leader proposes every five minutes how much is left of each long lease, and a new
//! one begins from there. A renewal must then first say that this does not count any more: the one
//! case in which it needs the log.
//!
//! # The parts, in reading order
//!
//! | module | its question |
//! |---|---|
//! | [`lease_map`] | which leases are there, and which keys hang on them? |
//! | [`schedule`] | which leases have expired, and how fast are they revoked? |
//! | [`lessor`] | both under one lock, with the store's transactions: what a member has |
//!
//! # What holds
//!
//! * A key hangs on one lease at most. The store tells at the end of each transaction on which
//!   ([`KeyLeases`](clearlane_mvcc::KeyLeases)).
//! * What is in bucket `lease` and on which lease the records say their keys hang is all that is
//!   needed to have the agreed part again, and it is changed only in transactions of the store.
//! * A lease that has run out is never renewed: its revocation may be on its way.
//! * No call takes longer because many leases end at once, but the one by which a leader begins.
//! * Nothing here reads a clock: the caller passes the time.
//!
//! # What etcd does that is left out
//!
//! It lets a renewal of a lease that has run out wait until the lease is gone. Here it is told at once
//! that there is none: for the client that comes to the same.

pub mod lease_map;
pub mod schedule;
pub mod lessor;
mod error;

pub use error::{Error, LeaseRejection, Result};
pub use lease_map::{Checkpoint, LeaseState};
pub use lessor::{Config, LeaseTtl, Lessor, Renewal};
pub use schedule::Due;

/// The most seconds that a lease may be granted with: etcd's.
pub const TTL_MAX: i64 = 9_000_000_000;
