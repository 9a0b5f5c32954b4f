//! A network thread's [queue of requests](RequestQueue), and the task that empties it.
//!
//! Requests that are read from sockets in one turn of the runtime are submitted one after the
//! other. After that the channel's task sends them all to the raft loop. Outcomes return in the
//! same way.
//!
//! ```text
//!   one turn       read a, submit │ read b, submit │ read c, submit │ task: send [a b c]
//!   a later turn   task: take [a b c], wake them │ a responds │ b responds │ c responds
//! ```
//!
//! On a network thread, only tasks of this thread take the lock around the queue, so no task waits
//! for it. The channel for calls of other members is an exception: blocking threads that read the
//! TTL of a lease also take its lock, for a short time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use clearlane_contention::now_ns;
use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::apply::{EvaluatedCompares, PartialResponse};
use clearlane_replica::membership::{Member, MemberChange};
use clearlane_replica::{
    NO_DEADLINE, ROUND_LENGTH, ReplicaInput, RequestError, RequestId, RequestOutcome, RequestQueue,
};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, sleep};

use super::ServerState;
use super::completions::CompletionQueue;

#[derive(Clone)]
pub struct RequestChannel {
    state: Arc<ServerState>,
    queue: Arc<ChannelQueue>,
    deadline_ns: u64,
}

struct ChannelQueue {
    requests: Mutex<RequestQueue>,
    completions: Arc<CompletionQueue>,
}

impl RequestChannel {
    pub(super) fn new(shared: &Arc<ServerState>) -> RequestChannel {
        let completions = Arc::new(CompletionQueue::default());
        let mut queues = shared.completion_queues.lock();
        let number = u8::try_from(queues.len()).expect("a thread each, and no more");
        queues.push(Arc::clone(&completions));
        drop(queues);
        let requests = Mutex::new(RequestQueue::new(number));
        let queue = Arc::new(ChannelQueue { requests, completions });
        RequestChannel { state: Arc::clone(shared), queue, deadline_ns: NO_DEADLINE }
    }

    /// Returns a channel with a deadline for its requests, on the clock of [`now_ns`].
    /// Outcomes arrive at most 10 ms after the deadline.
    pub fn with_deadline(&self, until_ns: u64) -> RequestChannel {
        RequestChannel { deadline_ns: until_ns, ..self.clone() }
    }

    pub fn deadline_ns(&self) -> Option<u64> {
        (self.deadline_ns != NO_DEADLINE).then_some(self.deadline_ns)
    }

    /// Proposes a request that has passed [`check`](clearlane_replica::apply::check()). `compares`
    /// is the result for a transaction's compares, if they were evaluated.
    pub async fn send_proposal(
        &self,
        request: Box<InternalRaftRequest>,
        compares: Option<Box<EvaluatedCompares>>,
    ) -> Result<PartialResponse, RequestError> {
        match self.submit(|of| ReplicaInput::Propose { request, compares, of }).await {
            RequestOutcome::Applied(result) => Ok(result?.into()),
            RequestOutcome::AppliedInPart(response) => Ok(*response),
            outcome => Err(error_of(outcome)),
        }
    }

    /// Proposes a request that changes data about members, but not the set of members.
    pub async fn update_members(&self, request: InternalRaftRequest) -> Result<(), RequestError> {
        let (request, compares) = (Box::new(request), None);
        match self.submit(|of| ReplicaInput::Propose { request, compares, of }).await {
            RequestOutcome::MembersChanged(result) => Ok(result.map(drop)?),
            outcome => Err(error_of(outcome)),
        }
    }

    pub async fn change_members(&self, change: MemberChange) -> Result<Vec<Member>, RequestError> {
        match self.submit(|id| ReplicaInput::ChangeMembers(change, id)).await {
            RequestOutcome::MembersChanged(result) => Ok(result?),
            outcome => Err(error_of(outcome)),
        }
    }

    /// Waits until this member has applied everything that was acknowledged before the call. With
    /// [`ReadNeed::Confirmed`] it waits only until a quorum has confirmed the read index. Returns
    /// the time that applying took after the read index was known.
    pub async fn read_index(&self, need: ReadNeed) -> Result<Duration, RequestError> {
        match self.submit(|of| ReplicaInput::ReadIndex(of, need)).await {
            RequestOutcome::ReadReady(applying) => Ok(applying),
            outcome => Err(error_of(outcome)),
        }
    }

    fn submit(&self, input: impl FnOnce(RequestId) -> ReplicaInput) -> PendingRequest {
        let (id, is_first) = self.queue.requests.lock().submit(self.deadline_ns, input);
        if is_first {
            self.queue.completions.arrived.notify_one();
        }
        PendingRequest { queue: Arc::clone(&self.queue), id }
    }

    /// Runs the channel's task until this future is dropped.
    pub async fn run(self) {
        let mut rounds = tokio::time::interval(ROUND_LENGTH);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ChannelQueue { requests, completions } = &*self.queue;
        let _probe = completions.probe.start();
        loop {
            let look = requests.lock().next_check_ns();
            let wait = look.map(|at| Duration::from_nanos(at.saturating_sub(now_ns())));
            tokio::select! {
                () = completions.arrived.notified() => {}
                _ = rounds.tick() => requests.lock().next_round(now_ns()),
                () = sleep(wait.unwrap_or(ROUND_LENGTH)), if wait.is_some() => requests.lock().check_deadlines(now_ns()),
            }
            completions.probe.answer();
            let inputs = requests.lock().drain_inputs();
            if !inputs.is_empty() {
                self.state.raft_queue.push(inputs);
            }
            let outcomes = completions.drain();
            if !outcomes.is_empty() {
                requests.lock().complete(outcomes);
            }
        }
    }
}

/// A waiting request. Dropping this future gives the request up. A proposal that was already sent
/// may still be applied.
#[must_use = "a request without a waiting task is given up"]
struct PendingRequest {
    queue: Arc<ChannelQueue>,
    id: RequestId,
}

impl Future for PendingRequest {
    type Output = RequestOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RequestOutcome> {
        self.queue.requests.lock().poll(self.id, context)
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let is_first = self.queue.requests.lock().release(self.id);
        if is_first {
            self.queue.completions.arrived.notify_one();
        }
    }
}

impl fmt::Debug for RequestChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestChannel").finish_non_exhaustive()
    }
}

/// Returns why a request was not carried out. A proposal that has timed out, or whose deadline has
/// passed, may still be applied.
fn error_of(outcome: RequestOutcome) -> RequestError {
    match outcome {
        RequestOutcome::NotProposed(error) => error.into(),
        RequestOutcome::ChangeRejected(error) => error.into(),
        RequestOutcome::ReadFailed(error) => error.into(),
        RequestOutcome::TimedOut => RequestError::TimedOut,
        RequestOutcome::DeadlineExceeded => RequestError::DeadlineExceeded,
        RequestOutcome::Applied(_)
        | RequestOutcome::AppliedInPart(_)
        | RequestOutcome::MembersChanged(_)
        | RequestOutcome::ReadReady(_) => unreachable!("{outcome:?} answers another request"),
    }
}
