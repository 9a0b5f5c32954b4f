//! Where the raft thread leaves what it has to say.

use std::sync::Arc;

use clearlane_member::Progress;
use clearlane_member::node::Network;
use clearlane_mvcc::Store;
use clearlane_raft_log::driver::Message;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::links::Table;

/// A message that goes with a copy of the store.
pub(super) type CopyOrder = (Message, Arc<dyn Store<Progress>>);

/// The raft thread's end.
#[derive(Debug)]
pub struct Post {
    table: Arc<Table>,
    copies: UnboundedSender<CopyOrder>,
}

/// The other end: for [`Peers::start`](super::Peers::start).
#[derive(Debug)]
pub struct Ends {
    pub(super) table: Arc<Table>,
    /// Not bounded here: raft has one under way for each member.
    pub(super) copies: UnboundedReceiver<CopyOrder>,
}

/// A network for a member that is about to start.
pub fn network() -> (Post, Ends) {
    let table = Arc::new(Table::default());
    let (sender, copies) = unbounded_channel();
    (Post { table: Arc::clone(&table), copies: sender }, Ends { table, copies })
}

impl Network for Post {
    fn send(&mut self, message: Message) -> Result<(), Box<Message>> {
        match self.table.get(message.to()) {
            Some(link) => link.send(message),
            None => Err(Box::new(message)),
        }
    }

    fn send_copy(&mut self, message: Message, store: Arc<dyn Store<Progress>>) {
        // If nobody is there, the member is about to end.
        let _ = self.copies.send((message, store));
    }
}
