//! A net thread's [queue of requests](RequestQueue), and the task that empties it.
//!
//! Requests that are read from sockets in one turn of the runtime are submitted one after the other, and behind
//! them runs the desk's task and sends them to the raft loop. Outcomes come back the same way: the raft loop and
//! the apply loop wake a net thread once for all that they have, and the task wakes those that wait.
//!
//! ```text
//!   one turn     read a, submit │ read b, submit │ read c, submit │ task: send [a b c]
//!   a later one  task: take [a b c], wake them │ a answers │ b answers │ c answers
//! ```
//!
//! The lock around the queue is taken by tasks of one thread only.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use clearlane_locks::now_ns;
use clearlane_proto::etcdserverpb::InternalRaftRequest;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, sleep};

use super::Shared;
use super::completions::CompletionQueue;
use crate::core::{Input, NEVER, Outcome, ROUND, RequestId, RequestQueue};
use crate::membership::Change;

/// The requests of one net thread.
#[derive(Clone)]
pub struct Desk {
    shared: Arc<Shared>,
    table: Arc<Table>,
    /// The deadline of what is submitted here.
    until_ns: u64,
}

struct Table {
    requests: Mutex<RequestQueue>,
    completions: Arc<CompletionQueue>,
}

impl Desk {
    pub(super) fn new(shared: &Arc<Shared>) -> Desk {
        let (number, completions) = shared.add_queue();
        let requests = Mutex::new(RequestQueue::new(number));
        let table = Arc::new(Table { requests, completions });
        Desk { shared: Arc::clone(shared), table, until_ns: NEVER }
    }

    /// The same for a client that waits until then only, on the clock of the [locks](now_ns). What is
    /// submitted here has its outcome a hundredth of a second later at the latest.
    pub fn until(&self, until_ns: u64) -> Desk {
        Desk { shared: Arc::clone(&self.shared), table: Arc::clone(&self.table), until_ns }
    }

    /// The deadline of what is submitted here, if there is one.
    pub fn until_ns(&self) -> Option<u64> {
        (self.until_ns != NEVER).then_some(self.until_ns)
    }

    /// Proposes a request that was [checked](crate::requests::check()).
    pub fn propose(&self, request: impl Into<Box<InternalRaftRequest>>) -> Asked {
        self.submit(|id| Input::Propose(request.into(), id))
    }

    /// Proposes a change of members.
    pub fn change_members(&self, change: Change) -> Asked {
        self.submit(|id| Input::ChangeMembers(change, id))
    }

    /// Waits until this member has applied all that was acknowledged until now.
    pub fn read(&self) -> Asked {
        self.submit(Input::Read)
    }

    fn submit(&self, input: impl FnOnce(RequestId) -> Input) -> Asked {
        let (id, is_first) = self.table.requests.lock().submit(self.until_ns, input);
        if is_first {
            self.table.completions.arrived.notify_one();
        }
        Asked { table: Arc::clone(&self.table), id }
    }

    /// The desk's task. It ends when it is dropped.
    pub async fn run(self) {
        let mut rounds = tokio::time::interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Table { requests, completions } = &*self.table;
        loop {
            let look = requests.lock().next_look_ns();
            let wait = look.map(|at| Duration::from_nanos(at.saturating_sub(now_ns())));
            tokio::select! {
                () = completions.arrived.notified() => {}
                _ = rounds.tick() => requests.lock().next_round(now_ns()),
                () = sleep(wait.unwrap_or(ROUND)), if wait.is_some() => requests.lock().look(now_ns()),
            }
            let inputs = requests.lock().take_inputs();
            if !inputs.is_empty() {
                self.shared.inbox.push(inputs);
            }
            let outcomes = completions.take();
            if !outcomes.is_empty() {
                requests.lock().complete(outcomes);
            }
        }
    }
}

/// Waits for the outcome of a request. Dropping it gives up.
#[must_use = "a request without a waiting task is given up"]
pub struct Asked {
    table: Arc<Table>,
    id: RequestId,
}

impl Future for Asked {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.table.requests.lock().poll(self.id, context)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let is_first = self.table.requests.lock().release(self.id);
        if is_first {
            self.table.completions.arrived.notify_one();
        }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("id", &self.id).finish_non_exhaustive()
    }
}
