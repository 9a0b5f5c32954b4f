//! One client's stream of watchers: what the thread that serves the client calls.
//!
//! Its responses wait in a [`WatchChannel`]. In etcd: `watchStream`.

use std::sync::Arc;

use crate::error::Result;
use crate::watch::channel::{StreamConsumer, WatchChannel};
use crate::watch::interface::WatchableStore;
use crate::watch::response::{Response, WatchId, WatchRequest};

/// A stream of watchers, for the thread that serves a client. Dropping it ends all its watchers.
#[derive(Debug)]
pub struct WatchStream {
    store: Arc<dyn WatchableStore>,
    channel: Arc<WatchChannel>,
}

impl WatchStream {
    /// Opens a stream whose responses are taken by these. `name` is what they are told when
    /// responses have come into its empty outbox.
    pub fn open(
        hub: Arc<dyn WatchableStore>,
        takers: Arc<dyn StreamConsumer>,
        name: u64,
    ) -> WatchStream {
        let outbox = hub.open_stream(takers, name);
        WatchStream { store: hub, channel: outbox }
    }

    /// Makes a watcher. The outbox has the answer behind this: created or refused.
    pub fn watch(&self, request: WatchRequest) {
        self.store.watch(&self.channel, request);
    }

    /// Ends a watcher; an unknown one is passed over in silence, as etcd does.
    pub fn cancel(&self, id: WatchId) {
        self.store.cancel(&self.channel, id);
    }

    /// Asks how far the stream is. It is answered if all its watchers are up to date.
    pub fn request_progress(&self) {
        self.store.request_progress(&self.channel);
    }

    /// Says that the interval of progress notices has passed: each watcher that wants them, is up
    /// to date and had nothing to tell since the last call gets one.
    pub fn notify_progress(&self) {
        self.store.notify_progress(&self.channel);
    }

    /// Takes the next responses, up to about so many bytes but at least one if there is any. After an
    /// error they are lost, and the stream should be: the store cannot be read.
    pub fn poll_responses(&self, bytes_max: usize) -> Result<Vec<Response>> {
        let (mut responses, drained) = self.channel.poll_responses(bytes_max);
        if drained {
            self.store.resume_stream(&self.channel);
        }
        self.store.add_previous_records(&self.channel, &mut responses)?;
        Ok(responses)
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.store.close_stream(&self.channel);
    }
}
