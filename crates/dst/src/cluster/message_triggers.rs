//! Faults that wait for a certain message, and strike while it is on its way: two events within
//! milliseconds are hit too rarely by chance.
//!
//! * **Leader transfer**: the old leader is cut off from all others before it learns of the new
//!   one; what it still answers must be true.
//! * **Vote**: the voter loses its power, and the candidate does not get through to the others.
//!   After its restart the voter must not vote again in that term.

use clearlane_raft::Message;

use super::{Cluster, Event};
use crate::event_queue::Micros;
use crate::network::Partition;

#[derive(Debug, Default)]
pub(super) struct MessageTriggers {
    /// How long the leader is cut off when it sends `MsgTimeoutNow`.
    pub(super) on_leader_transfer: Option<(u64, Micros)>,
    /// Set off by any vote: how long the voter is down, and how long the candidate is cut off.
    pub(super) on_vote: Option<(Micros, Micros)>,
}

impl Cluster {
    /// `wait` is the delay until the message arrives.
    pub(super) fn trigger_faults(&mut self, message: &Message, text: &str, wait: Micros) {
        let (from, to) = (message.from(), message.to());
        if let Some((_, lasts)) =
            self.message_triggers.on_leader_transfer.filter(|(leader, _)| *leader == from)
            && text.contains(" TimeoutNow ")
        {
            self.message_triggers.on_leader_transfer = None;
            self.events.schedule(wait + 1, Event::Partition(Partition::Split(vec![from]), lasts));
        }
        if let Some((down, lasts)) = self.message_triggers.on_vote
            && text.contains(" RequestVoteResponse ")
            && !text.contains(" reject")
        {
            self.message_triggers.on_vote = None;
            self.events.schedule(wait + 1, Event::PowerCut(from, down));
            self.events.schedule(0, Event::Partition(Partition::Pair(to, from), lasts));
        }
    }

    pub(super) fn begin_partition(&mut self, cut: &Partition, lasts: Micros) {
        if self.quiet.since.is_none() {
            self.trace_line(format_args!("cut: {cut:?}"));
            self.partition(cut, lasts);
        }
    }

    pub(super) fn begin_power_cut(&mut self, id: u64, down: Micros) {
        let runs = self.machines.get(&id).is_some_and(|machine| machine.running.is_some());
        if self.quiet.since.is_none() && runs {
            self.crash(id, true);
            self.events.schedule(down, Event::Start(id));
        }
    }
}
