//! Who waits for which proposal, and which of them wait in vain.
//!
//! A leader who dies takes along what it had in its hands: what others had forwarded to it, and what its
//! own log had alone. Nobody says so to those who wait. But a new leader begins its term with an entry of
//! its own, and all that survived of older terms stands before it. So when a member has applied an entry of
//! the new term, and a proposal of an older one has no answer, it is lost; but for one case: the old leader
//! is alive, has handed leadership over, and passes on to the new one what still arrives. That takes time,
//! and so some time is waited for: little if the way to the old leader broke, and more if it did not.
//!
//! Then who waits is told that the leader may have failed: not that his proposal was lost, for a message
//! that is on its way can be late by any time. etcd's member says the same, after seven seconds.

use std::collections::HashMap;
use std::time::Duration;

use clearlane_raft_log::driver::Leadership;

use super::inbox::Place;

/// So many ticks are waited for if the way to the old leader broke: half an election time-out with the default
/// settings.
const BROKEN_TICKS: u32 = 5;
/// And so many if it may be alive.
const PASSING_TICKS: u32 = 20;

/// Proposals without an answer.
#[derive(Default)]
pub(super) struct Pending {
    /// Where an answer goes, and in which term the proposal was made.
    proposals: HashMap<u64, (Place, u64)>,
    /// The reverse, for those who give up.
    ids: HashMap<Place, u64>,
    /// The last leader's term, and until when proposals of older ones may still come through. `None` once
    /// that is settled.
    succession: Option<(u64, Duration)>,
    /// The last leader, and its term.
    leader: u64,
    term: u64,
    /// Whether messages to it got lost.
    is_unreachable: bool,
}

impl Pending {
    pub(super) fn wait(&mut self, id: u64, place: Place, term: u64) {
        self.proposals.insert(id, (place, term));
        self.ids.insert(place, id);
    }

    /// The answer is there: who gets it?
    pub(super) fn take(&mut self, id: u64) -> Option<Place> {
        let (place, _) = self.proposals.remove(&id)?;
        self.ids.remove(&place);
        Some(place)
    }

    /// Nobody waits at this place any more: for what did he wait?
    pub(super) fn give_up(&mut self, place: Place) -> Option<u64> {
        let id = self.ids.remove(&place)?;
        self.proposals.remove(&id);
        Some(id)
    }

    pub(super) fn len(&self) -> usize {
        self.proposals.len()
    }

    /// Somebody leads, or nobody does.
    pub(super) fn leads(&mut self, leadership: Leadership, now: Duration, tick: Duration) {
        if leadership.leader != 0 && leadership.term > self.term {
            let ticks = if self.is_unreachable { BROKEN_TICKS } else { PASSING_TICKS };
            self.succession = Some((leadership.term, now + ticks * tick));
            (self.leader, self.term) = (leadership.leader, leadership.term);
            self.is_unreachable = false;
        }
    }

    /// Messages to this member got lost.
    pub(super) fn unreachable(&mut self, id: u64) {
        self.is_unreachable |= id == self.leader;
    }

    /// Whether somebody waits for it.
    pub(super) fn waits(&self, id: u64) -> bool {
        self.proposals.contains_key(&id)
    }

    /// It is proposed anew, in this term.
    pub(super) fn renew(&mut self, id: u64, term: u64) {
        if let Some((_, of)) = self.proposals.get_mut(&id) {
            *of = term;
        }
    }

    /// Those who wait for what is lost, once it is. `applied` is the term of the last applied entry.
    pub(super) fn take_lost(&mut self, applied: u64, now: Duration) -> Vec<(u64, Place)> {
        let Some((term, until)) = self.succession else { return Vec::new() };
        if applied < term || now < until {
            return Vec::new();
        }
        self.succession = None;
        let lost: Vec<_> = self.proposals.extract_if(|_, (_, of)| *of < term).collect();
        for (_, (place, _)) in &lost {
            self.ids.remove(place);
        }
        lost.into_iter().map(|(id, (place, _))| (id, place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use clearlane_raft_log::driver::Role;

    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    fn place(slot: u32) -> Place {
        Place { desk: 0, slot, question: 1 }
    }

    fn led_by(leader: u64, term: u64) -> Leadership {
        Leadership { leader, term, role: Role::Follower }
    }

    #[test]
    fn what_the_old_leader_had_is_lost_a_moment_after_the_new_one_has_begun() {
        let mut pending = Pending::default();
        pending.leads(led_by(1, 2), Duration::ZERO, TICK);
        assert!(pending.take_lost(2, 9 * TICK).is_empty());
        pending.wait(7, place(0), 2);
        pending.unreachable(1);
        pending.leads(led_by(0, 3), 10 * TICK, TICK);
        assert!(pending.take_lost(2, 20 * TICK).is_empty());
        pending.leads(led_by(2, 3), 20 * TICK, TICK);
        pending.wait(8, place(1), 3);
        // The new leader has not begun.
        assert!(pending.take_lost(2, 30 * TICK).is_empty());
        // It has, and the old one may have passed something on.
        assert!(pending.take_lost(3, 24 * TICK).is_empty());
        assert_eq!(pending.take_lost(3, 25 * TICK), [(7, place(0))]);
        assert!(pending.take_lost(3, 26 * TICK).is_empty());
        assert_eq!(pending.give_up(place(0)), None);
        assert_eq!(pending.take(8), Some(place(1)));
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn an_old_leader_that_may_be_alive_has_time_to_pass_on() {
        let mut pending = Pending::default();
        pending.leads(led_by(1, 2), Duration::ZERO, TICK);
        pending.wait(7, place(0), 2);
        pending.wait(8, place(1), 2);
        pending.unreachable(3);
        pending.leads(led_by(2, 3), 10 * TICK, TICK);
        // Its message came back, and goes to the new leader.
        pending.renew(8, 3);
        assert!(pending.take_lost(3, 29 * TICK).is_empty());
        assert_eq!(pending.take_lost(3, 30 * TICK), [(7, place(0))]);
        assert!(pending.waits(8) && !pending.waits(7));
    }

    #[test]
    fn what_is_answered_or_given_up_is_not_lost() {
        let mut pending = Pending::default();
        pending.wait(7, place(0), 2);
        pending.wait(8, place(1), 2);
        assert_eq!(pending.take(7), Some(place(0)));
        assert_eq!(pending.give_up(place(1)), Some(8));
        pending.leads(led_by(2, 3), Duration::ZERO, TICK);
        assert!(pending.take_lost(3, 10 * TICK).is_empty());
    }
}
