//! The members of the cluster, where they are recorded, and how that changes.
//!
//! # The problem
//!
//! Raft knows members by number: which vote, which only listen. The cluster must know more of them:
//! where their peers and clients reach them, what they are called, and which were removed and must not
//! come back under its old number. All members must agree on that, at each point of the log.
//!
//! # The idea
//!
//! What is known of members is part of the store: buckets `members` and `members_removed`, changed
//! by entries of the log like everything else. An entry of kind `ConfChange` says what raft is to
//! learn, and carries beside it, in JSON, what the table is to learn ([`MemberChange`]).
//!
//! ```text
//!   member add http://d:2380
//!      │ Change::add      the id: a hash of addresses and time
//!      │ Members::check   at the proposer: why take it through the log if it will be refused?
//!      ▼
//!   ConfChange{AddNode, d, {"id":d,"peerURLs":["http://d:2380"],"isPromote":false}}
//!      │ raft: committed
//!      ▼
//!   Members::apply        at every member: the same check again, against what is applied by now
//!      ├─ taken    bucket members: d → {"id":d,"peerURLs":["http://d:2380"]};   raft is told
//!      └─ refused  nothing is written;   raft is told that nothing has changed
//! ```
//!
//! The second check is the one that counts. Between proposal and application another change may have
//! taken the address. All members see the same table there, so all refuse or none does.
//!
//! A promotion is an "add" of a member that is there already, with a word in its context that says
//! that this is meant. What a member says of itself, its name and its clients' addresses, is an
//! ordinary request ([`Members::set_attributes`]): raft need not hear of it.
//!
//! # What holds
//!
//! * The table is what the buckets say: [`Members::load`] after any entry gives what
//!   [`Members::apply`] has made of it.
//! * The table's voters and learners are raft's ([`Members::conf_state`]). A change of which raft and
//!   the table would understand different things is refused, as is one that would leave no voter.
//! * A number that was removed stays removed.
//!
//! # What is left out
//!
//! * Whether enough members are up to survive a change: that depends on which members are connected, is
//!   known to the proposer only, and is for the proposer to check. Of that kind there is
//!   [`check_learner_ready`], and for the rest a word to refuse with, [`MembershipRejection::NotEnoughStarted`].
//! * Where etcd stops the process, because a change and its context name different members, we
//!   refuse the change. All members do, and they live.

mod change;
mod ids;
mod member;
mod proto;
mod members;
mod rejection;
mod urls;

pub use change::MemberChange;
pub use ids::{cluster_id, member_id};
pub use member::Member;
pub use members::{LEARNERS_MAX, Members, check_learner_ready};
pub use proto::{from_proto, to_proto};
pub use rejection::MembershipRejection;
pub use urls::sorted_peer_urls as addresses;

/// The version that members of this program speak, as the cluster writes it down: etcd's.
pub const CLUSTER_VERSION: &str = "3.7.0";
