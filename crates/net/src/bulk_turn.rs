//! Turns for the bulk work of a network thread, so that small requests do not wait for all of it.
//!
//! Bulk work is a chunk of a large response, a new connection, or a batch of new streams. Each
//! takes up to a few tenths of a millisecond, and thousands of such pieces may be waiting at the
//! same time. Tasks with bulk work wait in one queue per network thread. Between two turns the
//! thread checks its sockets and runs the ready tasks, so each step of a small request waits for
//! one turn of bulk work, not for all of it:
//!
//! ```text
//!   sockets │ ready tasks │ one turn │ sockets │ ready tasks │ one turn │ ...
//! ```
//!
//! It would not be enough if each task yielded after a piece of work. The task would immediately be
//! ready again, and the runtime checks the sockets only when no task is ready, or after
//! [`EVENT_INTERVAL`](crate::sched::EVENT_INTERVAL) tasks. `docs/decisions/net-long-reads-yield.md`
//! explains why turns are needed.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;

/// The queue of one network thread. A clone refers to the same queue.
#[derive(Clone, Debug)]
pub struct BulkTurns(Arc<TurnQueue>);

#[derive(Debug, Default)]
struct TurnQueue {
    waiting: Mutex<VecDeque<Arc<Ticket>>>,
    arrived: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Ticket(Mutex<TicketState>);

#[derive(Debug, Default)]
struct TicketState {
    is_granted: bool,
    waker: Option<Waker>,
}

/// A future that completes when the task has its turn. Dropping the future gives up the turn.
#[derive(Debug)]
pub struct BulkTurn(Arc<Ticket>);

impl BulkTurns {
    /// Creates a queue, and spawns the task that grants the queue's turns until the last clone of
    /// the queue is dropped. Call this on the network thread's runtime.
    pub fn start() -> BulkTurns {
        let queue = Arc::new(TurnQueue::default());
        tokio::spawn(grant_turns(Arc::downgrade(&queue), Arc::clone(&queue.arrived)));
        BulkTurns(queue)
    }

    pub fn request(&self) -> BulkTurn {
        let ticket = Arc::new(Ticket::default());
        self.0.waiting.lock().push_back(Arc::clone(&ticket));
        self.0.arrived.notify_one();
        BulkTurn(ticket)
    }
}

impl Drop for TurnQueue {
    fn drop(&mut self) {
        self.arrived.notify_one();
    }
}

async fn grant_turns(queue: Weak<TurnQueue>, arrived: Arc<Notify>) {
    loop {
        arrived.notified().await;
        let Some(queue) = queue.upgrade() else { return };
        while let Some(ticket) = queue.next() {
            ticket.grant();
            drop(ticket);
            // The runtime wakes this task again after its next check of the sockets.
            yield_now().await;
        }
    }
}

impl TurnQueue {
    /// Returns the next ticket whose turn was not given up, or `None` if no task waits. A turn was
    /// given up if the queue holds the only reference to its ticket.
    fn next(&self) -> Option<Arc<Ticket>> {
        let mut waiting = self.waiting.lock();
        loop {
            let ticket = waiting.pop_front()?;
            if Arc::strong_count(&ticket) > 1 {
                return Some(ticket);
            }
        }
    }
}

impl Ticket {
    fn grant(&self) {
        let mut state = self.0.lock();
        state.is_granted = true;
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

impl Future for BulkTurn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.0.lock();
        if state.is_granted {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::LocalSet;

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn turns_come_in_their_order_and_what_was_given_up_is_passed_over() {
        run(async {
            let turns = BulkTurns::start();
            let granted = Rc::new(RefCell::new(Vec::new()));
            let mut tasks = Vec::new();
            for number in 0..10 {
                let (turn, granted) = (turns.request(), Rc::clone(&granted));
                if number % 3 == 0 {
                    continue;
                }
                tasks.push(tokio::task::spawn_local(async move {
                    turn.await;
                    granted.borrow_mut().push(number);
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*granted.borrow(), [1, 2, 4, 5, 7, 8]);
        });
    }

    /// However many tasks have bulk work, a byte that has arrived is read after at most three
    /// turns.
    #[test]
    fn a_socket_is_seen_between_two_pieces_of_a_hundred_tasks() {
        run(async {
            let turns = BulkTurns::start();
            let (mut arrives, mut sends) = tokio::net::UnixStream::pair().unwrap();
            let pieces = Rc::new(RefCell::new(0));
            for _ in 0..100 {
                let (turns, pieces) = (turns.clone(), Rc::clone(&pieces));
                tokio::task::spawn_local(async move {
                    loop {
                        turns.request().await;
                        *pieces.borrow_mut() += 1;
                    }
                });
            }
            for _ in 0..20 {
                sends.write_all(b"!").await.unwrap();
                let before = *pieces.borrow();
                arrives.read_u8().await.unwrap();
                let between = *pieces.borrow() - before;
                assert!(between <= 3, "{between} pieces");
            }
        });
    }

    #[test]
    fn the_task_ends_with_the_last_clone() {
        run(async {
            let turns = BulkTurns::start();
            let queue = Arc::downgrade(&turns.0);
            turns.clone().request().await;
            drop(turns);
            while queue.strong_count() > 0 {
                yield_now().await;
            }
        });
    }
}
