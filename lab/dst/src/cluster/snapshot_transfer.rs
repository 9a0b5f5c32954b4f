//! Snapshots on their way from one member to another.
//!
//! The sender's stream is cut into chunks of any size, which arrive in order. Between two chunks
//! the link may be cut, a member may crash, or the stream breaks. The sender is notified of the
//! result, and may be notified of a break although the snapshot arrived.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_raft::Message;
use clearlane_server::raft_snapshot::{Error, SnapshotReceiver, SnapshotSender};
use clearlane_server::replica::ReplicaInput as RaftInput;

use super::{Cluster, Event, MemberEvent, member_failed};
use crate::checkers::CheckResult;
use crate::machine::RunningMember;
use crate::network::Link;

#[derive(Debug)]
pub(super) struct SnapshotTransfer {
    pub(super) link: Link,
    /// Incarnations of sender and receiver at the beginning.
    incarnations: (u64, u64),
    sender: SnapshotSender,
    /// Read from the sender's stream.
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
        // Taking the snapshot has committed the store.
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
        self.events.schedule(wait, Event::SnapshotChunk(number));
        Ok(())
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
                self.events.schedule(wait, Event::SnapshotChunk(number));
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

    /// Reports the end to the sender, if its incarnation is still the same.
    fn end_snapshot_transfer(&mut self, number: u64, arrived: bool) {
        let Some(transfer) = self.snapshot_transfers.remove(&number) else { return };
        let ((id, to), (incarnation, _)) = (transfer.link, transfer.incarnations);
        let wait = self.network.delay();
        let what = MemberEvent::SnapshotSent(to, arrived);
        self.events.schedule(wait, Event::Member { id, incarnation, event: what });
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
