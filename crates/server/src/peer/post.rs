//! Where the raft loop leaves what it has to say, and what it does while it waits: the connections are its own.
//!
//! A message that goes through a queue to a thread of the network wakes that thread, and its answer wakes the raft
//! thread again; by count, a round of a linearizable read in three members had seventeen wake-ups. So there is one thread
//! for both. The runtime of the connections turns while raft has nothing to
//! do, and for one look at the sockets between two turns of a raft that has:
//!
//! ```text
//!   raft ──── turn ────┐                              ┌──── turn ────┐
//!   connections        └ write │ sleep │ read, decode ┘              └ write │ ...
//! ```
//!
//! What takes long, or asks a disk, is done elsewhere: copies, hashes, the keys of a lease, names of hosts,
//! certificates.
//!
//! The runtime's timers are exact to a millisecond, so raft may sleep for one more than it has asked for.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use clearlane_member::Progress;
use clearlane_member::node::{Arrivals, Network};
use clearlane_mvcc::Store;
use clearlane_raft_log::driver::Message;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::link::Link;
use super::links::Table;
use crate::serve::{TURNS, blocking_begins};

/// A message that goes with a copy of the store.
pub(super) type CopyOrder = (Message, Arc<dyn Store<Progress>>);

/// The raft loop's end.
#[derive(Debug)]
pub struct Post {
    table: Arc<Table>,
    copies: UnboundedSender<CopyOrder>,
    /// What was said in this turn of raft.
    said: Vec<(Arc<Link>, Message)>,
    stopped: watch::Receiver<bool>,
    /// Until somebody wants it to end.
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    runtime: Runtime,
    /// To whom it goes then: to end it may take a while.
    over: mpsc::Sender<Ended>,
}

/// A runtime that nobody turns any more. Dropped anywhere, it waits for nobody.
#[derive(Debug)]
pub(super) struct Ended(Option<Runtime>);

impl Ended {
    /// Waits for what runs in its other threads, but not for longer than this.
    pub(super) fn shut_down(mut self, patience: Duration) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(patience);
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The other end: for [`Peers::start`](super::Peers::start).
#[derive(Debug)]
pub struct Ends {
    pub(super) table: Arc<Table>,
    /// Not bounded here: raft has one under way for each member.
    pub(super) copies: UnboundedReceiver<CopyOrder>,
    pub(super) runtime: Handle,
    pub(super) stop: watch::Sender<bool>,
    pub(super) over: mpsc::Receiver<Ended>,
}

/// A network for a member that is about to start.
pub fn network() -> io::Result<(Post, Ends)> {
    let mut builder = Builder::new_current_thread();
    let runtime =
        builder.on_thread_start(blocking_begins).enable_all().event_interval(TURNS).build()?;
    let table = Arc::new(Table::default());
    let (sender, copies) = unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let (hand_over, over) = mpsc::channel();
    let handle = runtime.handle().clone();
    let ends = Ends { table: Arc::clone(&table), copies, runtime: handle, stop, over };
    let running = Some(Running { runtime, over: hand_over });
    Ok((Post { table, copies: sender, said: Vec::new(), stopped, running }, ends))
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// Raft has something to do, or wants to look.
    Enough,
    /// Nobody wants connections any more.
    Over,
}

impl Post {
    fn end(&mut self) {
        if let Some(Running { runtime, over }) = self.running.take() {
            // If nobody takes it, nobody has begun anything with it.
            let _ = over.send(Ended(Some(runtime)));
        }
    }
}

impl Network for Post {
    fn send(&mut self, message: Message) -> Result<(), Box<Message>> {
        match self.table.get(message.to()) {
            Some(link) if self.running.is_some() && link.takes(&message) => {
                self.said.push((link, message));
                Ok(())
            }
            _ => Err(Box::new(message)),
        }
    }

    fn send_copy(&mut self, message: Message, store: Arc<dyn Store<Progress>>) {
        // If nobody is there, the member is about to end.
        let _ = self.copies.send((message, store));
    }

    fn wait(&mut self, arrivals: Arrivals<'_>, timeout: Duration) {
        let Some(Running { runtime, .. }) = &self.running else { return arrivals.sleep(timeout) };
        let (said, stopped) = (&mut self.said, &mut self.stopped);
        let waited = runtime.block_on(async {
            // From here, where waking a task is no system call.
            for (link, message) in said.drain(..) {
                link.send(message);
            }
            if timeout.is_zero() || arrivals.are_there() {
                // However busy raft is, the connections have their turn, and their sockets are looked at.
                yield_now().await;
                // Who was to say so has gone, if nobody does.
                let is_over = stopped.has_changed().is_err() || *stopped.borrow();
                return if is_over { Waited::Over } else { Waited::Enough };
            }
            tokio::select! {
                biased;
                () = arrivals.any() => Waited::Enough,
                _ = stopped.wait_for(|stopped| *stopped) => Waited::Over,
                () = sleep(timeout) => Waited::Enough,
            }
        });
        if waited == Waited::Over {
            self.end();
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.end();
    }
}
