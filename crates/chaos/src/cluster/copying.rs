//! Copies of stores on their way from one member to another.
//!
//! The sender's stream is cut into pieces of any size, which arrive in order. Between two pieces
//! anything can happen: the link is cut, one of the two crashes, the stream breaks for no reason. The
//! sender hears what has become of it, and may be told that it broke although it arrived.

use bytes::Bytes;
use clearlane_member::copies::{Error, Receiver, Sender};
use clearlane_member::core::Input as RaftInput;
use clearlane_raft_log::driver::Message;

use super::{Cluster, Event, Input, broken};
use crate::judge::Verdict;
use crate::network::Link;

/// A copy on its way.
#[derive(Debug)]
pub(super) struct Transfer {
    link: Link,
    pub(super) to: u64,
    /// The lives of the two in which it began.
    lives: (u64, u64),
    sender: Sender,
    /// What was read and not sent.
    waiting: Bytes,
    receiver: Option<Receiver>,
}

impl Cluster {
    /// A member sends its store along with a message.
    pub(super) fn begin_copy(&mut self, id: u64, message: Message) -> Verdict {
        let to = message.to();
        self.line(format_args!("copies {message}"));
        let Some(applier) = self.machines.get(&id).and_then(|machine| machine.applier()) else {
            return Ok(());
        };
        let exporter = applier.store().copy().map_err(|error| broken(id, &error))?;
        let sender = Sender::new(exporter, message).map_err(|error| broken(id, &error))?;
        // To take a copy commits.
        self.plan_store_committed(id)?;
        let receiver = self.machines.get(&to).map(|machine| Receiver::new(machine.vault()));
        let lives = (self.life(id), self.life(to));
        let (link, waiting) = ((id, to), Bytes::new());
        let number = self.transfers.last_key_value().map_or(1, |(number, _)| number + 1);
        let transfer = Transfer { link, to, lives, sender, waiting, receiver };
        self.transfers.insert(number, transfer);
        let wait = self.network.delay();
        self.world.after(wait, Event::Piece(number));
        Ok(())
    }

    fn life(&self, id: u64) -> u64 {
        self.machines.get(&id).map_or(0, |machine| machine.life)
    }

    fn is_up(&self, id: u64) -> bool {
        self.machines.get(&id).is_some_and(|machine| machine.running.is_some())
    }

    pub(super) fn piece_arrives(&mut self, number: u64) -> Verdict {
        let Some(transfer) = self.transfers.get(&number) else { return Ok(()) };
        let (link, to) = (transfer.link, transfer.to);
        let alive = (self.life(link.0), self.life(to)) == transfer.lives && self.is_up(to);
        let breaks = self.quiet.since.is_none() && self.chance.permille(20);
        if !alive || breaks || self.network.is_cut(link) {
            self.line(format_args!("copy {number} from {} to {to} breaks", link.0));
            self.end_copy(number, false);
            return Ok(());
        }
        let length = self.chance.of_any_size(1, 64 << 10) as usize;
        let Some(transfer) = self.transfers.get_mut(&number) else { return Ok(()) };
        match transfer.next_piece(length) {
            Ok(Some(piece)) => {
                if let Some(receiver) = &mut transfer.receiver {
                    receiver.chunk(&piece).map_err(|error| broken(to, &error))?;
                }
                let wait = self.chance.between(10, 1000);
                self.world.after(wait, Event::Piece(number));
                Ok(())
            }
            Ok(None) => self.copy_arrives(number),
            Err(error) => Err(broken(link.0, &error)),
        }
    }

    fn copy_arrives(&mut self, number: u64) -> Verdict {
        let Some(transfer) = self.transfers.get_mut(&number) else { return Ok(()) };
        let to = transfer.to;
        let Some(receiver) = transfer.receiver.take() else { return Ok(()) };
        let copy = receiver.finish().map_err(|error| broken(to, &error))?;
        self.trace
            .line(self.world.now(), format_args!("copy {number} has arrived: {}", copy.message));
        self.give(to, RaftInput::Copy(Box::new(copy)));
        let arrived = self.quiet.since.is_some() || !self.chance.permille(50);
        self.end_copy(number, arrived);
        Ok(())
    }

    /// The sender hears of it, if it is still there.
    fn end_copy(&mut self, number: u64, arrived: bool) {
        let Some(transfer) = self.transfers.remove(&number) else { return };
        let (id, life) = (transfer.link.0, transfer.lives.0);
        let wait = self.network.delay();
        let what = Input::CopySent(transfer.to, arrived);
        self.world.after(wait, Event::Member { id, life, what });
    }
}

impl Transfer {
    fn next_piece(&mut self, length: usize) -> Result<Option<Bytes>, Error> {
        if self.waiting.is_empty() {
            let Some(chunk) = self.sender.next_chunk()? else { return Ok(None) };
            self.waiting = chunk;
        }
        Ok(Some(self.waiting.split_to(length.min(self.waiting.len()))))
    }
}
