//! Raft snapshots in flight from one member to another.
//!
//! The sender's stream is split into chunks of random sizes, which arrive in order. Between two
//! chunks the link may be cut, a member may crash, or the stream may break. At the end, the sender
//! receives a report of success or failure. The report may be wrong: the snapshot may have arrived
//! although the sender receives a report of failure.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_raft::Message;
use clearlane_replica::ReplicaInput as RaftInput;
use clearlane_replica::raft_snapshot::{Error, SnapshotReceiver, SnapshotSender};

use super::{Cluster, member_failed};
use crate::checkers::CheckResult;
use crate::event_queue::Micros;
use crate::machine::RunningMember;
use crate::network::Link;

#[derive(Debug)]
pub(super) struct SnapshotTransfer {
    pub(super) link: Link,
    /// The incarnations of sender and receiver at the start of the transfer.
    incarnations: (u64, u64),
    sender: SnapshotSender,
    /// Bytes that have been read from the sender's stream, but have not been sent yet.
    unsent: Bytes,
    receiver: Option<SnapshotReceiver>,
}

impl Cluster {
    pub(super) fn begin_snapshot_transfer(&mut self, id: u64, message: Message) -> CheckResult {
        let to = message.to();
        self.trace_line(format_args!("copies {message}"));
        let Some(RunningMember { applier, .. }) = self.running(id) else { return Ok(()) };
        let exporter = applier.store.snapshot().map_err(member_failed(id))?;
        let sender = SnapshotSender::new(exporter, message).map_err(member_failed(id))?;
        // Opening the store's snapshot has committed the store.
        self.plan_store_committed(id)?;
        let receiver = self.machines.get(&to);
        let receiver = receiver.map(|it| SnapshotReceiver::new(Arc::clone(&it.store_dir)));
        let number = self.snapshot_transfers.last_key_value().map_or(1, |(number, _)| number + 1);
        let transfer = SnapshotTransfer {
            link: (id, to),
            incarnations: (self.incarnation(id), self.incarnation(to)),
            sender,
            unsent: Bytes::new(),
            receiver,
        };
        self.snapshot_transfers.insert(number, transfer);
        let wait = self.network.delay();
        self.plan_chunk(number, to, wait);
        Ok(())
    }

    fn plan_chunk(&mut self, number: u64, to: u64, wait: Micros) {
        self.events.plan_at(Some(to), wait, move |cluster| cluster.on_snapshot_chunk(number));
    }

    fn incarnation(&self, id: u64) -> u64 {
        self.machines.get(&id).map_or(0, |machine| machine.incarnation)
    }

    pub(super) fn on_snapshot_chunk(&mut self, number: u64) -> CheckResult {
        let Some(transfer) = self.snapshot_transfers.get(&number) else { return Ok(()) };
        let link @ (_, to) = transfer.link;
        let alive = (self.incarnation(link.0), self.incarnation(to)) == transfer.incarnations
            && self.running(to).is_some();
        let breaks = self.quiet.since.is_none() && self.rng.permille(20);
        if !alive || breaks || self.network.is_cut(link) {
            self.trace_line(format_args!("copy {number} from {} to {to} breaks", link.0));
            self.end_snapshot_transfer(number, false);
            return Ok(());
        }
        let length = self.rng.log_uniform(1, 64 << 10) as usize;
        let Some(transfer) = self.snapshot_transfers.get_mut(&number) else { return Ok(()) };
        match transfer.next_chunk(length) {
            Ok(Some(piece)) => {
                if let Some(receiver) = &mut transfer.receiver {
                    receiver.feed(&piece).map_err(member_failed(to))?;
                }
                let wait = self.rng.between(10, 1000);
                self.plan_chunk(number, to, wait);
                Ok(())
            }
            Ok(None) => self.on_snapshot_received(number),
            Err(error) => Err(member_failed(link.0)(error)),
        }
    }

    fn on_snapshot_received(&mut self, number: u64) -> CheckResult {
        let Some(transfer) = self.snapshot_transfers.get_mut(&number) else { return Ok(()) };
        let (_, to) = transfer.link;
        let Some(receiver) = transfer.receiver.take() else { return Ok(()) };
        let copy = receiver.finish().map_err(member_failed(to))?;
        self.trace
            .record(self.events.now(), format_args!("copy {number} has arrived: {}", copy.message));
        self.enqueue_raft_event(to, RaftInput::RaftSnapshot(Box::new(copy)));
        let arrived = self.quiet.since.is_some() || !self.rng.permille(50);
        self.end_snapshot_transfer(number, arrived);
        Ok(())
    }

    /// Ends the transfer. Reports the result to the sender, if the sender has not crashed since the
    /// start.
    fn end_snapshot_transfer(&mut self, number: u64, arrived: bool) {
        let Some(transfer) = self.snapshot_transfers.remove(&number) else { return };
        let ((id, to), (incarnation, _)) = (transfer.link, transfer.incarnations);
        let wait = self.network.delay();
        let words = match arrived {
            true => "hears that a copy has arrived",
            false => "hears that a copy has not arrived",
        };
        if self.incarnation(id) == incarnation {
            let input = RaftInput::RaftSnapshotSent { to, is_delivered: arrived };
            self.plan_raft_input(id, wait, words, input);
        }
    }
}

impl SnapshotTransfer {
    fn next_chunk(&mut self, length: usize) -> Result<Option<Bytes>, Error> {
        if self.unsent.is_empty() {
            let Some(chunk) = self.sender.next_chunk()? else { return Ok(None) };
            self.unsent = chunk;
        }
        Ok(Some(self.unsent.split_to(length.min(self.unsent.len()))))
    }
}
