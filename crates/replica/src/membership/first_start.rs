//! Decides whether a member with an empty directory may take the identity that its flags name.
//!
//! If the member's disk was wiped, the member has lost entries and votes. So it is rejected if any
//! other member replies that this member has started before. The other member knows this if its
//! store or log has client URLs of this member, or if it leads and this member has acknowledged an
//! entry. The member is also rejected if it was removed, or if it wants to start as a first member
//! of a cluster that has added it later or not at all. Otherwise it starts if one of the following
//! holds, and waits if none does. See `docs/peers.md`.
//!
//! * A quorum without this member has confirmed a leader to which this member has acknowledged
//!   nothing. The leader has every committed entry. The member starts in the leader's term, with a
//!   vote for the leader.
//! * The member starts a new cluster, and a majority of the listed members, including itself, is
//!   new. A member of an unrelated cluster that answers at a listed address is also considered new:
//!   a new cluster may replace an old one at the same addresses, one member after the other.
//! * The member is one of two or four voters, and half of the voters have answered. Two quorums of
//!   an even number of voters share at least two voters. So another voter knows everything that
//!   this member may have acknowledged. The member must not wait for a leader in this case, because
//!   the other voters may need it for a quorum.
//!
//! Limit: a wiped member looks new if all other members that know of its start are down.

use clearlane_proto::peerpb::{MembersReply, MembersRequest};

use super::Member;

/// The leader that has admitted a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittingLeader {
    pub id: u64,
    pub term: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstStart {
    /// The member may start. `None` means that it needed no confirmation by a leader.
    Admitted(Option<AdmittingLeader>),
    /// This member has started before, under this id.
    Bootstrapped(u64),
    /// The cluster exists, and this member was added to it under another id.
    AddedAs(u64),
    /// The cluster exists, and this member is not part of it.
    NotAdded,
    Removed,
    /// Too few members have answered.
    Undecided,
}

/// A member without data.
#[derive(Clone, Debug)]
pub struct NewMember {
    pub id: u64,
    pub cluster_id: u64,
    /// The member's peer URLs, sorted.
    pub peer_urls: Vec<String>,
    /// The ids of the first members, including this one; empty if the member joins an existing
    /// cluster. The ids depend on the cluster's token.
    pub first: Vec<u64>,
}

impl NewMember {
    pub fn request(&self) -> MembersRequest {
        let new_cluster = if self.first.is_empty() { 0 } else { self.cluster_id };
        MembersRequest { member: self.id, peer_urls: self.peer_urls.clone(), new_cluster }
    }

    /// Makes the decision. `replies` contains at most one reply from each of the other members.
    pub fn decide(&self, replies: &[MembersReply]) -> FirstStart {
        if let Some(started) = replies.iter().find_map(|reply| self.started_in(reply)) {
            return FirstStart::Bootstrapped(started);
        }
        if let Some(mistaken) = replies.iter().find_map(|reply| self.mistaken_for_first(reply)) {
            return mistaken;
        }
        let in_cluster = || replies.iter().filter(|reply| reply.cluster_id == self.cluster_id);
        if in_cluster().any(|reply| reply.is_removed) {
            return FirstStart::Removed;
        }
        let has_this = |reply: &&MembersReply| is_listed(&reply.members, self.id);
        if let Some(reply) = in_cluster().filter(has_this).find(|reply| reply.leader_term != 0) {
            let (id, term) = (reply.from, reply.leader_term);
            return FirstStart::Admitted(Some(AdmittingLeader { id, term }));
        }
        let is_new = |reply: &&MembersReply| match reply.cluster_id == self.cluster_id {
            true => reply.is_new && reply.from != self.id,
            false => self.is_unrelated(reply),
        };
        let new = replies.iter().filter(is_new).count() + 1;
        let old = || in_cluster().filter(|reply| !reply.is_new).filter(has_this);
        let newest = old().max_by_key(|reply| reply.applied);
        let voters = newest.map(|reply| voters_with(&reply.members, self.id)).unwrap_or_default();
        let answered = old().filter(|reply| voters.contains(&reply.from)).count();
        let has_majority = new > self.first.len() / 2 && !self.first.is_empty();
        let has_half = [2, 4].contains(&voters.len()) && 2 * answered >= voters.len();
        if has_majority || has_half {
            return FirstStart::Admitted(None);
        }
        FirstStart::Undecided
    }

    /// Detects a member that starts as a first member by mistake: the cluster of the reply has
    /// added the member later under another id, or has not added it. Otherwise, returns `None`.
    fn mistaken_for_first(&self, reply: &MembersReply) -> Option<FirstStart> {
        if self.first.is_empty() || self.is_unrelated(reply) || is_listed(&reply.members, self.id) {
            return None;
        }
        match find_member(&reply.members, self.id, &self.peer_urls) {
            Some(found) => Some(FirstStart::AddedAs(found.id)),
            None => {
                let is_other = reply.leader_term != 0 && reply.cluster_id != self.cluster_id;
                is_other.then_some(FirstStart::NotAdded)
            }
        }
    }

    /// Returns whether the reply is from a cluster with another token: the reply lists members, but
    /// none of the first members.
    fn is_unrelated(&self, reply: &MembersReply) -> bool {
        !reply.members.is_empty() && !self.first.iter().any(|id| is_listed(&reply.members, *id))
    }

    /// Returns the id under which this member has started, if the reply shows that it has started.
    /// Otherwise returns `None`. A first member is also found by its addresses, because its flags
    /// may list other members than its cluster has.
    fn started_in(&self, reply: &MembersReply) -> Option<u64> {
        if reply.cluster_id == self.cluster_id && reply.is_started {
            return Some(self.id);
        }
        let found = find_member(&reply.members, self.id, &self.peer_urls)?;
        let is_same = found.id == self.id || !self.first.is_empty() && !self.is_unrelated(reply);
        (is_same && is_published(found)).then_some(found.id)
    }
}

/// Finds the requesting member by its id, or else by its peer URLs. Returns `None` if `members`
/// contains neither.
pub fn find_member<'m>(
    members: &'m [Member],
    id: u64,
    sorted_peer_urls: &[String],
) -> Option<&'m Member> {
    let has_urls = |member: &&Member| {
        let mut urls = member.peer_urls.clone();
        urls.sort_unstable();
        !urls.is_empty() && urls == sorted_peer_urls
    };
    let by_id = members.iter().find(|member| member.id == id);
    by_id.or_else(|| members.iter().find(has_urls))
}

/// Returns whether a member has published its client URLs. A member does that at its first start.
pub fn is_published(member: &Member) -> bool {
    !member.client_urls.is_empty()
}

fn is_listed(members: &[Member], id: u64) -> bool {
    members.iter().any(|member| member.id == id)
}

/// Returns the ids of the voters. The list is empty if member `id` is not a voter, because then no
/// quorum needs this member.
fn voters_with(members: &[Member], id: u64) -> Vec<u64> {
    let voters: Vec<u64> =
        members.iter().filter(|member| !member.is_learner).map(|member| member.id).collect();
    if voters.contains(&id) { voters } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: u64 = 9;

    fn urls(id: u64) -> Vec<String> {
        vec![format!("http://m{id}:2380")]
    }

    fn asking(id: u64, listed: u64) -> NewMember {
        let first = (1..=listed).collect();
        NewMember { id, cluster_id: CLUSTER, peer_urls: urls(id), first }
    }

    /// Returns the reply of a member with data. Its cluster has the members 1 to `members`. The
    /// members in `published` have started.
    fn old(from: u64, members: u64, published: &[u64]) -> MembersReply {
        let member = |id| Member {
            id,
            peer_urls: urls(id),
            client_urls: published.iter().filter(|at| **at == id).flat_map(|_| urls(id)).collect(),
            ..Member::default()
        };
        let members = (1..=members).map(member).collect();
        MembersReply { cluster_id: CLUSTER, from, members, ..MembersReply::default() }
    }

    fn leader(from: u64, members: u64, published: &[u64]) -> MembersReply {
        MembersReply { leader_term: 7, ..old(from, members, published) }
    }

    fn new(from: u64) -> MembersReply {
        MembersReply { is_new: true, ..old(from, 0, &[]) }
    }

    #[test]
    fn a_new_cluster_starts_with_a_majority() {
        let admitted = FirstStart::Admitted(None);
        assert_eq!(asking(1, 1).decide(&[]), admitted);
        assert_eq!(asking(1, 3).decide(&[]), FirstStart::Undecided);
        assert_eq!(asking(1, 3).decide(&[new(2)]), admitted);
        assert_eq!(asking(1, 2).decide(&[]), FirstStart::Undecided);
        assert_eq!(asking(1, 5).decide(&[new(2)]), FirstStart::Undecided);
        assert_eq!(asking(1, 5).decide(&[new(2), new(4)]), admitted);
        let other = MembersReply { cluster_id: 8, ..new(2) };
        assert_eq!(asking(1, 3).decide(&[other]), FirstStart::Undecided);
    }

    #[test]
    fn a_member_that_has_started_is_refused() {
        let refused = FirstStart::Bootstrapped(1);
        // Member 2 has published nothing about itself, and the leader is down.
        assert_eq!(asking(1, 3).decide(&[old(2, 3, &[1])]), refused);
        assert_eq!(asking(1, 3).decide(&[new(2), old(3, 3, &[1])]), refused);
        assert_eq!(asking(1, 3).decide(&[leader(2, 3, &[1, 2])]), refused);
        let acknowledged = MembersReply { is_started: true, ..leader(2, 3, &[2]) };
        assert_eq!(asking(1, 3).decide(&[acknowledged]), refused);
        assert_eq!(asking(1, 0).decide(&[leader(2, 3, &[1])]), refused);
        // The flags of member 1 name three members, but the cluster has four by now.
        let mistaken = NewMember { cluster_id: 8, id: 77, ..asking(1, 3) };
        assert_eq!(mistaken.decide(&[old(2, 4, &[1])]), refused);
        let removed = MembersReply { is_removed: true, ..old(2, 3, &[]) };
        assert_eq!(asking(4, 3).decide(&[removed]), FirstStart::Removed);
    }

    #[test]
    fn a_member_that_starts_as_a_first_one_by_mistake_is_refused() {
        let mut again = leader(2, 3, &[2, 3]);
        again.members[0].id = 77;
        assert_eq!(asking(1, 3).decide(std::slice::from_ref(&again)), FirstStart::AddedAs(77));
        again.is_removed = true;
        assert_eq!(asking(1, 3).decide(&[new(3), again]), FirstStart::AddedAs(77));
        let others = MembersReply { cluster_id: 8, ..leader(2, 3, &[1, 2, 3]) };
        assert_eq!(asking(4, 4).decide(std::slice::from_ref(&others)), FirstStart::NotAdded);
        let without_leader = MembersReply { leader_term: 0, ..others };
        assert_eq!(asking(4, 4).decide(&[without_leader]), FirstStart::Undecided);
    }

    #[test]
    fn a_cluster_with_another_token_is_replaced_member_by_member() {
        let admitted = FirstStart::Admitted(None);
        // The old cluster knows the addresses of all members.
        let unrelated = |from: u64| {
            let mut reply = MembersReply { cluster_id: 8, ..leader(from + 20, 3, &[1, 2, 3]) };
            reply.members.iter_mut().for_each(|member| member.id += 20);
            reply
        };
        assert_eq!(asking(1, 3).decide(&[unrelated(2), unrelated(3)]), admitted);
        assert_eq!(asking(1, 3).decide(&[unrelated(2)]), admitted);
        assert_eq!(asking(1, 5).decide(&[unrelated(2)]), FirstStart::Undecided);
        assert_eq!(asking(2, 3).decide(&[old(1, 3, &[]), unrelated(3)]), admitted);
        assert_eq!(
            asking(2, 3).decide(&[old(1, 3, &[2]), unrelated(3)]),
            FirstStart::Bootstrapped(2)
        );
        // A joining member knows no first members, so it cannot detect an unrelated cluster.
        assert_eq!(asking(1, 0).decide(&[unrelated(2), unrelated(3)]), FirstStart::Undecided);
    }

    #[test]
    fn a_late_member_needs_a_leader() {
        let led = FirstStart::Admitted(Some(AdmittingLeader { id: 2, term: 7 }));
        assert_eq!(asking(1, 3).decide(&[leader(2, 3, &[2, 3])]), led);
        assert_eq!(asking(1, 0).decide(&[leader(2, 3, &[2, 3])]), led);
        // Each of the other members may have acknowledged entries together with this member.
        assert_eq!(asking(1, 3).decide(&[old(2, 3, &[2])]), FirstStart::Undecided);
        let both = [old(2, 3, &[2, 3]), old(3, 3, &[2, 3])];
        assert_eq!(asking(1, 3).decide(&both), FirstStart::Undecided);
    }

    #[test]
    fn a_voter_that_makes_their_number_even_needs_half_of_them() {
        let admitted = FirstStart::Admitted(None);
        assert_eq!(asking(2, 0).decide(&[old(1, 2, &[1])]), admitted);
        assert_eq!(asking(4, 0).decide(&[old(1, 4, &[1])]), FirstStart::Undecided);
        assert_eq!(asking(4, 0).decide(&[old(1, 4, &[1]), old(2, 4, &[1])]), admitted);
        let mut learns = old(1, 4, &[1]);
        learns.members[3].is_learner = true;
        assert_eq!(asking(4, 0).decide(&[learns.clone(), learns]), FirstStart::Undecided);
    }
}
