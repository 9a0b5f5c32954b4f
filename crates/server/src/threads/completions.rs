//! Delivers outcomes from the raft loop and the apply loop to the network threads. Waking a thread
//! costs more than answering a small request. So a loop collects the outcomes for each network
//! thread, and wakes it once.

use clearlane_replica::Completions;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ServerState;
use super::stalls::ThreadProbe;

/// Outcomes for one network thread, from the raft loop and the apply loop.
#[derive(Debug, Default)]
pub(super) struct CompletionQueue {
    completions: Mutex<Completions>,
    pub(super) arrived: Notify,
    pub(super) probe: ThreadProbe,
}

impl CompletionQueue {
    pub(super) fn drain(&self) -> Completions {
        std::mem::take(&mut *self.completions.lock())
    }
}

/// Outcomes, by network thread.
#[derive(Debug, Default)]
pub(super) struct CompletionBatches(Vec<Completions>);

impl CompletionBatches {
    pub(super) fn deliver(&mut self, completions: Completions, shared: &ServerState) {
        for completion in completions {
            let queue = usize::from(completion.0.queue);
            if self.0.len() <= queue {
                self.0.resize_with(queue + 1, Vec::new);
            }
            self.0[queue].push(completion);
        }
        let queues = shared.completion_queues.lock();
        for (queue, completions) in queues.iter().zip(&mut self.0) {
            if !completions.is_empty() {
                queue.completions.lock().append(completions);
                queue.arrived.notify_one();
            }
        }
    }
}
