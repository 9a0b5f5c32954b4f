//! One client's stream of watchers: what the thread that serves the client calls.
//!
//! Its responses wait in a [`WatchChannel`]. In etcd: `watchStream`.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::Result;
use crate::watch::channel::{WakeSet, WatchChannel};
use crate::watch::current_store::CurrentWatchableStore;
use crate::watch::response::{Response, WatchId, WatchRequest};

/// Dropping it ends all its watchers.
#[derive(Debug)]
pub struct WatchStream {
    store: Arc<CurrentWatchableStore>,
    channel: Arc<WatchChannel>,
}

impl WatchStream {
    /// `wake_set` is that of the thread that takes the responses.
    pub fn open(store: Arc<CurrentWatchableStore>, wake_set: Arc<WakeSet>) -> WatchStream {
        let channel = store.read().open_stream(wake_set);
        WatchStream { store, channel }
    }

    /// Makes a watcher. After this the channel has the answer: created or rejected.
    pub fn watch(&self, request: WatchRequest) {
        self.store.read().watch(&self.channel, request);
    }

    /// Ends a watcher; an unknown id is ignored, as in etcd.
    pub fn cancel(&self, id: WatchId) {
        self.store.read().cancel(&self.channel, id);
    }

    /// Requests the progress of the stream. It is answered if all its watchers are synced.
    pub fn request_progress(&self) {
        self.store.read().request_progress(&self.channel);
    }

    /// The interval of progress notices has passed: each watcher that wants them, is synced and had
    /// no event since the last call gets one.
    pub fn notify_progress(&self) {
        self.store.read().notify_progress(&self.channel);
    }

    /// Takes the next responses, up to about `bytes_max` bytes but at least one; pending until
    /// there is one. Those of an old era may lack the records before: see
    /// [`lacks_previous_records`](WatchStream::lacks_previous_records).
    pub fn poll_responses(
        &self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Vec<Response>> {
        let mut responses = self.take(bytes_max);
        if responses.is_empty() {
            self.channel.set_task(context.waker());
            // What came before the task was set has woken nothing.
            responses = self.take(bytes_max);
        }
        if responses.is_empty() { Poll::Pending } else { Poll::Ready(responses) }
    }

    /// Takes the next responses, perhaps none, with the records before. After an error they are
    /// lost, and the stream should be: the store cannot be read.
    pub fn take_responses(&self, bytes_max: usize) -> Result<Vec<Response>> {
        let mut responses = self.take(bytes_max);
        self.add_previous_records(&mut responses)?;
        Ok(responses)
    }

    fn take(&self, bytes_max: usize) -> Vec<Response> {
        let (responses, drained) = self.channel.take(bytes_max);
        if drained {
            self.store.read().resume_stream(&self.channel);
        }
        responses
    }

    /// Whether the records before are wanted and have to be read from the store of an old era.
    pub fn lacks_previous_records(&self, responses: &[Response]) -> bool {
        responses.iter().any(|response| self.channel.needs_previous(response.id))
    }

    /// Reads the records before, where they are wanted and missing.
    pub fn add_previous_records(&self, responses: &mut [Response]) -> Result<()> {
        self.store.get().add_previous_records(&self.channel, responses)
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.store.read().close_stream(&self.channel);
    }
}
