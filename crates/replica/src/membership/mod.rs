//! The members of the cluster: a table in the store, changed by entries of the log. In etcd:
//! `api/membership`. `docs/raft-and-apply.md` shows how a change goes through the log.
//!
//! The proposer calls [`Members::check`]. [`Members::apply`] checks the change again at every
//! member, against the table as of that entry: either all members reject a change, or none does.
//!
//! * The table always equals the buckets: [`Members::load`] after an entry gives the same table as
//!   [`Members::apply`].
//! * The table's voters and learners equal raft's ([`Members::conf_state`]). A change that the two
//!   would interpret differently is rejected, where etcd stops the process. A change that leaves no
//!   voter is also rejected.
//! * A removed id stays removed.
//!
//! Two checks need knowledge that is not in the table, so only the proposer makes them: whether a
//! learner is ready ([`check_learner_ready`]), and whether enough members are up for a quorum after
//! the change ([`MembershipRejection::NotEnoughStarted`]).

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

/// The version of etcd that this program implements.
pub const CLUSTER_VERSION: &str = "3.7.0";
