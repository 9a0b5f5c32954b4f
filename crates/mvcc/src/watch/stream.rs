//! One client's stream of watchers: what the thread that serves the client calls.
//!
//! Its responses wait in a [`WatchChannel`]. In etcd: `watchStream`.

use std::sync::Arc;

use crate::error::Result;
use crate::watch::channel::{StreamConsumer, WatchChannel};
use crate::watch::current_store::CurrentWatchableStore;
use crate::watch::response::{Response, WatchId, WatchRequest};

/// Dropping it ends all its watchers.
#[derive(Debug)]
pub struct WatchStream {
    store: Arc<CurrentWatchableStore>,
    channel: Arc<WatchChannel>,
}

impl WatchStream {
    /// Opens a stream whose responses are taken by this consumer, which is notified with `name`
    /// when responses have come into its empty channel.
    pub fn open(
        store: Arc<CurrentWatchableStore>,
        consumer: Arc<dyn StreamConsumer>,
        name: u64,
    ) -> WatchStream {
        let channel = store.read().open_stream(consumer, name);
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

    /// Takes the next responses, up to about `bytes_max` bytes but at least one if there is any.
    /// After an error they are lost, and the stream should be: the store cannot be read.
    pub fn poll_responses(&self, bytes_max: usize) -> Result<Vec<Response>> {
        let (mut responses, drained) = self.take_responses(bytes_max);
        if drained {
            self.store.read().resume_stream(&self.channel);
        }
        self.add_previous_records(&mut responses)?;
        Ok(responses)
    }

    /// The first half of [`poll_responses`](WatchStream::poll_responses): takes them as they are.
    /// Says, too, whether there is capacity again for watchers that were refused.
    pub fn take_responses(&self, bytes_max: usize) -> (Vec<Response>, bool) {
        self.channel.poll_responses(bytes_max)
    }

    /// Whether the second half has something to read from the store of an old era.
    pub fn lacks_previous_records(&self, responses: &[Response]) -> bool {
        responses.iter().any(|response| self.channel.needs_previous(response.id))
    }

    /// The second half: reads the records before, where they are wanted and missing.
    pub fn add_previous_records(&self, responses: &mut [Response]) -> Result<()> {
        self.store.get().add_previous_records(&self.channel, responses)
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.store.read().close_stream(&self.channel);
    }
}
