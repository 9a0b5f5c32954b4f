//! One client's stream of watchers. The network thread that serves the client calls it. In an old
//! era, calls that may wait for locks run on other threads.
//!
//! The responses of the stream wait in a [`WatchChannel`]. In etcd: `watchStream`.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::Result;
use crate::watch::channel::{WakeSet, WatchChannel};
use crate::watch::current_store::CurrentWatchableStore;
use crate::watch::response::{Response, WatchId, WatchRequest};

/// A stream of watchers. Dropping the stream ends all its watchers.
#[derive(Debug)]
pub struct WatchStream {
    store: Arc<CurrentWatchableStore>,
    channel: Arc<WatchChannel>,
}

impl WatchStream {
    /// Opens a stream. `wake_set` belongs to the thread that takes the responses.
    pub fn open(store: Arc<CurrentWatchableStore>, wake_set: Arc<WakeSet>) -> WatchStream {
        let channel = store.read().open_stream(wake_set);
        WatchStream { store, channel }
    }

    /// Creates a watcher. After this call the channel has the response: created or rejected.
    pub fn watch(&self, request: WatchRequest) {
        self.store.read().watch(&self.channel, request);
    }

    /// Ends a watcher. As in etcd, an unknown ID is ignored.
    pub fn cancel(&self, id: WatchId) {
        self.store.read().cancel(&self.channel, id);
    }

    /// Requests the progress of the stream. The stream gets a response only if it has watchers and
    /// all of them are synced and have reached their start revision.
    pub fn request_progress(&self) {
        self.store.read().request_progress(&self.channel);
    }

    /// Must be called once per interval of progress notices. Each synced watcher that requested
    /// notices and has had no event since the last call gets a notice, unless the channel is full.
    pub fn notify_progress(&self) {
        self.store.read().notify_progress(&self.channel);
    }

    /// Takes the next responses, up to about `bytes_max` bytes but at least one response. Returns
    /// `Pending` while there is no response. In an old era the responses may lack previous records:
    /// see [`lacks_previous_records`](WatchStream::lacks_previous_records).
    pub fn poll_responses(
        &self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Vec<Response>> {
        let mut responses = self.take(bytes_max);
        if responses.is_empty() {
            self.channel.set_task(context.waker());
            // A response that was added before the task was set did not wake any task.
            responses = self.take(bytes_max);
        }
        if responses.is_empty() { Poll::Pending } else { Poll::Ready(responses) }
    }

    /// Takes the next responses, possibly none, with their previous records. After an error the
    /// responses are lost, and the caller should close the stream, because the store cannot be
    /// read.
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

    /// Returns true if previous records are requested and must be read from the store of an old
    /// era.
    pub fn lacks_previous_records(&self, responses: &[Response]) -> bool {
        responses.iter().any(|response| self.channel.needs_previous(response.id))
    }

    /// Reads the previous records that are requested and missing.
    pub fn add_previous_records(&self, responses: &mut [Response]) -> Result<()> {
        self.store.get().add_previous_records(&self.channel, responses)
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.store.read().close_stream(&self.channel);
    }
}
