//! Wiped disks: a member loses all its data, and starts again with the same flags.
//!
//! Half of the wipes create the worst case: a wiped voter and members that lag start before the
//! others. With three members:
//!
//! ```text
//!   1 leads, 2 is stopped     1 and 3 acknowledge writes     1 and 3 lose power, 3 is wiped
//!   2 and 3 start: without a check they could elect a leader     1 starts
//! ```
//!
//! Before a wiped member starts, it queries the other members, with the same code as the server. If
//! they do not admit it, it stays down, and an operator removes it.
//!
//! At most a minority is wiped, and only after the log of each member has more than its first
//! entries. A wiped member stays down until its old messages have arrived, because a real
//! connection ends with its process.

use clearlane_raft::Role;
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::membership::{FirstStart, Member, MemberChange, NewMember, is_published};

use super::Cluster;
use super::client_pool::RequestWaiter;
use crate::bugs::Bug;
use crate::checkers::CheckResult;
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::machine::{CLUSTER_ID, Machine, member_description, peer_url};
use crate::proposals::{Proposal, encode};
use crate::rng::Rng;

/// Shortest time that a wiped member is down. The messages that it sent before the wipe, and their
/// duplicates, arrive within this time.
const DOWN_MIN: Micros = 7 * SECOND;

#[derive(Debug)]
pub(super) struct WipedDisks {
    rng: Rng,
    first_members: u64,
    wiped: u64,
}

impl WipedDisks {
    pub(super) fn new(rng: Rng, first_members: u64) -> WipedDisks {
        WipedDisks { rng, first_members, wiped: 0 }
    }
}

impl Cluster {
    pub(super) fn plan_wiped_disks(&mut self) {
        let Some(disks) = &mut self.wiped_disks else { return };
        let wait = disks.rng.between(3 * SECOND, 8 * SECOND);
        self.events.plan(wait, Cluster::choose_wipe);
        self.events.plan(SECOND, Cluster::publish_members);
    }

    /// Chooses a random follower, and wipes its disk at once or in the worst case that the module
    /// head describes. Wipes nothing if a minority was wiped already, if there is no leader, if a
    /// member is not running, or if the log of a member has only its first entries. Plans the next
    /// call until the quiet phase.
    fn choose_wipe(&mut self) {
        let view = self.view();
        let has_begun = |machine: &Machine| {
            machine.replica().is_some_and(|core| !core.raft().has_only_first_entries())
        };
        let all_have_begun = self.present().all(has_begun);
        let Some(disks) = &mut self.wiped_disks else { return };
        if self.quiet.since.is_some() {
            return;
        }
        let wait = disks.rng.between(500 * MILLISECOND, 4 * SECOND);
        let first_minority = (disks.first_members - 1) / 2;
        let minority = first_minority.min((view.voters.len() as u64).saturating_sub(1) / 2);
        let followers: Vec<u64> =
            view.voters.iter().copied().filter(|id| Some(*id) != view.leader).collect();
        let member = disks.rng.choose(&followers).copied();
        let among_stale = disks.rng.permille(500);
        self.events.plan(wait, Cluster::choose_wipe);
        let Some(member) = member.filter(|_| all_have_begun && view.leader.is_some()) else {
            return;
        };
        let Some(disks) = self.wiped_disks.as_mut().filter(|disks| disks.wiped < minority) else {
            return;
        };
        disks.wiped += 1;
        if among_stale && self.config.bug != Some(Bug::LostLogAccepted) {
            let stale = followers.into_iter().filter(|id| *id != member);
            let stale: Vec<u64> = stale.take(view.voters.len().saturating_sub(1) / 2).collect();
            self.trace_line(format_args!("{stale:?} are to lag, and {member} is to be wiped"));
            stale.iter().for_each(|id| self.crash(*id, true));
            let wipe = move |cluster: &mut Cluster| cluster.wipe_among_stale(member, &stale);
            self.events.plan(2 * SECOND, wipe);
        } else {
            self.wipe(member);
        }
    }

    /// Crashes all members, and wipes the disk of `member`. This member and the members in `stale`
    /// start again before all others.
    fn wipe_among_stale(&mut self, member: u64, stale: &[u64]) {
        if self.quiet.since.is_some() {
            return;
        }
        for id in self.present().map(|machine| machine.id).collect::<Vec<_>>() {
            self.crash(id, true);
            let more = self.wiped_disks.as_mut().map_or(0, |disks| disks.rng.between(1, 4));
            let wait = if stale.contains(&id) { DOWN_MIN } else { DOWN_MIN + more * SECOND };
            self.plan_start(id, wait);
        }
        self.wipe(member);
    }

    fn wipe(&mut self, id: u64) {
        self.crash(id, true);
        let start_at = self.events.now() + DOWN_MIN;
        let Some(machine) = self.machines.get_mut(&id).filter(|machine| !machine.is_removed) else {
            return;
        };
        machine.wipe(start_at);
        self.metrics.wiped_disks += 1;
        self.trace_line(format_args!("the disk of {id} is wiped"));
        self.plan_start(id, DOWN_MIN);
    }

    /// Handles the start of a member with a wiped disk. Plans its first query of the other members
    /// at `start_at`, unless the queries are already planned.
    pub(super) fn begin_to_ask(&mut self, id: u64) {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let Some(wiped) = &mut machine.wiped else { return };
        if !std::mem::replace(&mut wiped.is_asking, true) {
            let wait = wiped.start_at.saturating_sub(now);
            self.events.plan(wait, move |cluster| cluster.decide_first_start(id));
        }
    }

    fn new_member(&self, id: u64) -> (NewMember, Vec<Member>) {
        let first_members = self.wiped_disks.as_ref().map_or(0, |disks| disks.first_members);
        let first: Vec<Member> = match id <= first_members {
            true => (1..=first_members).map(member_description).collect(),
            false => Vec::new(),
        };
        let (peer_urls, ids) = (vec![peer_url(id)], first.iter().map(|member| member.id).collect());
        (NewMember { id, cluster_id: CLUSTER_ID, peer_urls, first: ids }, first)
    }

    /// Decides from the replies whether a member with a wiped disk may start. If the replies are
    /// not sufficient for a decision, the member queries the other members again.
    fn decide_first_start(&mut self, id: u64) -> CheckResult {
        let (member, first) = self.new_member(id);
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let Some(wiped) = machine.wiped.as_mut().filter(|_| !machine.is_removed) else {
            return Ok(());
        };
        let replies: Vec<_> = std::mem::take(&mut wiped.replies).into_values().collect();
        let decision = match self.config.bug {
            Some(Bug::NoIdentityCheck | Bug::LostLogAccepted) => FirstStart::Admitted(None),
            _ => member.decide(&replies),
        };
        self.trace_line(format_args!("{id}, wiped: {decision:?}"));
        match decision {
            FirstStart::Admitted(leader) => {
                let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
                machine.wiped = None;
                let created = machine.create_log(&first, &self.config, leader);
                created.expect("an empty disk takes a log");
                self.metrics.admitted_members += 1;
                self.start(id)
            }
            FirstStart::Bootstrapped(_)
            | FirstStart::AddedAs(_)
            | FirstStart::NotAdded
            | FirstStart::Removed => {
                self.metrics.refused_members += 1;
                self.give_up_member(id);
                Ok(())
            }
            FirstStart::Undecided => {
                self.ask_others(id);
                Ok(())
            }
        }
    }

    fn ask_others(&mut self, id: u64) {
        let now = self.events.now();
        let reachable = |machine: &&Machine| {
            let is_cut = [(id, machine.id), (machine.id, id)];
            machine.paused_until <= now && !is_cut.iter().any(|link| self.network.is_cut(*link))
        };
        let others: Vec<(u64, bool, u64)> = self
            .machines
            .values()
            .filter(|machine| machine.running.is_some())
            .filter(reachable)
            .map(|machine| {
                let leadership = machine.leadership();
                (machine.id, leadership.role == Role::Leader, leadership.term)
            })
            .collect();
        for (other, is_leader, term) in others {
            if is_leader {
                self.after_read_index(other, ReadNeed::Applied, None, move |cluster, leader| {
                    cluster.report_to_wiped(leader, id, Some(term));
                });
            } else {
                self.report_to_wiped(other, id, None);
            }
        }
        let Some(disks) = &mut self.wiped_disks else { return };
        let wait = disks.rng.between(200 * MILLISECOND, SECOND);
        self.events.plan(wait, move |cluster| cluster.decide_first_start(id));
    }

    /// Sends the reply of member `id` to the member `asking`. `term` is the term in which a quorum
    /// has confirmed that `id` leads, or `None`. If the reply has a different leader term, this
    /// term is set to 0, because it is not confirmed.
    fn report_to_wiped(&mut self, id: u64, asking: u64, term: Option<u64>) {
        let (member, _) = self.new_member(asking);
        let Some(running) = self.running(id) else { return };
        let mut reply = running.replica.report_to(&member.request());
        if Some(reply.leader_term) != term {
            reply.leader_term = 0;
        }
        let machine = self.machines.get_mut(&asking);
        if let Some(wiped) = machine.and_then(|machine| machine.wiped.as_mut()) {
            wiped.replies.insert(id, reply);
        }
    }

    /// Stops the member for good. The operator then removes it from the cluster.
    pub(super) fn give_up_member(&mut self, id: u64) {
        self.remove_machine(id);
        self.events.plan(SECOND, move |cluster| cluster.remove_given_up(id));
    }

    /// The operator removes a member that cannot start, if the cluster still lists the member.
    /// Called every second.
    fn remove_given_up(&mut self, id: u64) {
        let view = self.view();
        if view.voters.contains(&id) || view.learners.contains(&id) {
            self.propose_member_change(MemberChange::Remove { id });
        }
        // The proposal of the removal may be lost, so it is repeated.
        self.events.plan(SECOND, move |cluster| cluster.remove_given_up(id));
    }

    /// Each member that has not yet published its client URL publishes it. Called every 500 ms.
    fn publish_members(&mut self) {
        self.events.plan(500 * MILLISECOND, Cluster::publish_members);
        if !self.config.publishes_members {
            return;
        }
        let is_due = |machine: &&Machine| {
            machine.applier().is_some_and(|applier| {
                applier.members.get(machine.id).is_some_and(|member| !is_published(member))
            })
        };
        let due: Vec<u64> =
            self.machines.values().filter(is_due).map(|machine| machine.id).collect();
        for id in due {
            let request = encode(&Proposal::Publish { member: id, url: peer_url(id) });
            self.propose(id, RequestWaiter::Ignored, request);
        }
    }

    /// Returns whether disks are wiped in this run, and the voters with an intact disk are no
    /// majority. A wiped disk is considered intact again once its member was admitted.
    pub(super) fn lacks_intact_quorum(&self) -> bool {
        let voters = self.view().voters;
        let is_intact = |id: &&u64| {
            let machine = self.machines.get(id);
            machine.is_some_and(|machine| !machine.is_removed && machine.wiped.is_none())
        };
        self.wiped_disks.is_some() && 2 * voters.iter().filter(is_intact).count() <= voters.len()
    }
}
