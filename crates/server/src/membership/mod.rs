//! The members of the cluster: a table in the store, changed by entries of the log. etcd's
//! counterpart is `api/membership`; how a change goes through the log: `docs/raft-and-apply.md`.
//!
//! [`Members::check`] is made by the proposer. [`Members::apply`] checks again at every member,
//! against the table at that entry: all members refuse a change, or none does.
//!
//! * The table is what the buckets say: [`Members::load`] after an entry gives what
//!   [`Members::apply`] has made.
//! * Its voters and learners are raft's ([`Members::conf_state`]). A change that the two would
//!   understand differently is refused, where etcd stops the process; so is one that leaves no
//!   voter.
//! * A removed id stays removed.
//!
//! Whether enough members are up to survive a change is for the proposer to check
//! ([`check_learner_ready`], [`MembershipRejection::NotEnoughStarted`]).

mod change;
mod first_start;
mod ids;
mod member;
mod members;
mod rejection;
mod urls;

pub use change::MemberChange;
pub use clearlane_proto::etcdserverpb::Member;
pub use first_start::{AdmittingLeader, FirstStart, NewMember, find_member, is_published};
pub use ids::{cluster_id, member_id};
pub(crate) use members::CLUSTER_VERSION_KEY;
pub use members::{LEARNERS_MAX, Members, check_learner_ready};
pub use rejection::MembershipRejection;
pub use urls::sorted_peer_urls as addresses;

/// etcd's version that this program implements.
pub const CLUSTER_VERSION: &str = "3.7.0";
