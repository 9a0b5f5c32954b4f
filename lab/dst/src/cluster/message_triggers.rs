//! Faults that wait for a certain message, and strike while it is on its way: two events within
//! milliseconds are hit too rarely by chance.
//!
//! * **Leader transfer**: the old leader is cut off from all others before it learns of the new
//!   one; what it still answers must be true.
//! * **Vote**: the voter loses its power, and the candidate does not get through to the others.
//!   After its restart the voter must not vote again in that term.

use clearlane_raft::Message;
use raft::eraftpb::MessageType;

use super::{Cluster, Event};
use crate::bugs;
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
    pub(super) fn trigger_faults(&mut self, message: &Message, wait: Micros) {
        let MessageTriggers { on_leader_transfer, on_vote } = &self.message_triggers;
        if on_leader_transfer.is_none() && on_vote.is_none() {
            return;
        }
        let (from, to) = (message.from(), message.to());
        let Some(message) = bugs::to_raft(message) else { return };
        match message.get_msg_type() {
            MessageType::MsgTimeoutNow => {
                let trigger = &mut self.message_triggers.on_leader_transfer;
                if let Some((_, duration)) = trigger.take_if(|(leader, _)| *leader == from) {
                    let partition = Partition::Split(vec![from]);
                    self.events.schedule(wait + 1, Event::Partition(partition, duration));
                }
            }
            MessageType::MsgRequestVoteResponse if !message.reject => {
                if let Some((down, duration)) = self.message_triggers.on_vote.take() {
                    self.events.schedule(wait + 1, Event::PowerCut(from, down));
                    let partition = Partition::Pair(to, from);
                    self.events.schedule(0, Event::Partition(partition, duration));
                }
            }
            _ => {}
        }
    }

    pub(super) fn begin_partition(&mut self, cut: &Partition, duration: Micros) {
        if self.quiet.since.is_none() {
            self.trace_line(format_args!("cut: {cut:?}"));
            self.partition(cut, duration);
        }
    }

    pub(super) fn begin_power_cut(&mut self, id: u64, down: Micros) {
        if self.quiet.since.is_none() && self.running(id).is_some() {
            self.crash(id, true);
            self.events.schedule(down, Event::Start(id));
        }
    }
}
