//! Faults that wait for a certain message, and strike when it is on its way.
//!
//! Some mistakes show only if two things happen within milliseconds, and to hit them by chance
//! takes thousands of seeds. What is known to be delicate is therefore lain in wait for:
//!
//! * **A leader hands over** and is cut off from all others right then. It does not hear that there
//!   is another leader; what it still answers must be true.
//! * **A member votes** and loses its power right then, and the candidate it has voted for does not
//!   get through to the others. When it comes back it must not vote again in that term.

use clearlane_raft::Message;

use super::{Cluster, Event};
use crate::event_queue::Micros;
use crate::network::Partition;

/// What waits for its moment.
#[derive(Debug, Default)]
pub(super) struct MessageTriggers {
    /// For a leader that hands over: for how long it will be cut off.
    pub(super) on_leader_transfer: Option<(u64, Micros)>,
    /// For any member's vote: for how long the voter is down, and the candidate that gets it is cut
    /// off.
    pub(super) on_vote: Option<(Micros, Micros)>,
}

impl Cluster {
    /// A message is on its way, and arrives after `wait`. Is it the one?
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

    /// Links are cut that were to be cut now.
    pub(super) fn begin_partition(&mut self, cut: &Partition, lasts: Micros) {
        if self.quiet.since.is_none() {
            self.trace_line(format_args!("cut: {cut:?}"));
            self.partition(cut, lasts);
        }
    }

    /// The power fails that was to fail now.
    pub(super) fn begin_power_cut(&mut self, id: u64, down: Micros) {
        let runs = self.machines.get(&id).is_some_and(|machine| machine.running.is_some());
        if self.quiet.since.is_none() && runs {
            self.crash(id, true);
            self.events.schedule(down, Event::Start(id));
        }
    }
}
