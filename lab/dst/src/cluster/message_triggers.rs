//! Faults that wait for a certain message. They start when the message is sent or just after it
//! arrives. Faults at random times would rarely start at exactly this time.
//!
//! * **Leader transfer**: the old leader is cut off from all others before it learns of the new
//!   leader. Its later responses must still be correct.
//! * **Vote**: the voter loses its power, and the candidate is cut off from all members except the
//!   voter. After its restart the voter must not vote for another candidate in the same term.

use clearlane_raft::Message;
use raft::eraftpb::MessageType;

use super::Cluster;
use crate::bugs;
use crate::event_queue::Micros;
use crate::network::Partition;

#[derive(Debug, Default)]
pub(super) struct MessageTriggers {
    /// The leader, and how long it is cut off after its `MsgTimeoutNow` has arrived. `None` if no
    /// fault waits for a leader transfer.
    pub(super) on_leader_transfer: Option<(u64, Micros)>,
    /// The fault that starts with the next vote for a candidate: how long the voter is down, and
    /// how long the candidate is cut off. `None` if no fault waits for a vote.
    pub(super) on_vote: Option<(Micros, Micros)>,
}

impl Cluster {
    /// Starts the faults that wait for this message. `wait` is the delay until the message arrives.
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
                    self.plan_partition(partition, wait + 1, duration);
                }
            }
            MessageType::MsgRequestVoteResponse if !message.reject => {
                if let Some((down, duration)) = self.message_triggers.on_vote.take() {
                    self.events.plan(wait + 1, move |it| it.begin_power_cut(from, down));
                    let partition = Partition::Pair(to, from);
                    self.plan_partition(partition, 0, duration);
                }
            }
            _ => {}
        }
    }

    fn plan_partition(&mut self, cut: Partition, wait: Micros, duration: Micros) {
        self.events.plan(wait, move |cluster| cluster.begin_partition(&cut, duration));
    }

    fn begin_partition(&mut self, cut: &Partition, duration: Micros) {
        if self.quiet.since.is_none() {
            self.trace_line(format_args!("cut: {cut:?}"));
            self.partition(cut, duration);
        }
    }

    fn begin_power_cut(&mut self, id: u64, down: Micros) {
        if self.quiet.since.is_none() && self.running(id).is_some() {
            self.crash(id, true);
            self.plan_start(id, down);
        }
    }
}
