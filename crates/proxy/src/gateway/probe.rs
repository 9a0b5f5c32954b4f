//! The probes of one endpoint: a connection that is opened and closed at once.
//!
//! A probe finds a dead endpoint before a client meets it, and finds out when it is back. Its
//! result counts like the result of a client's dial.

use std::sync::Arc;
use std::time::Duration;

use super::endpoints::Endpoint;
use super::is_local;

pub(super) struct Probe {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) interval: Duration,
    /// The interval while the endpoint is down. It starts when the endpoint goes down.
    pub(super) interval_if_down: Duration,
    pub(super) timeout: Duration,
}

impl Probe {
    /// Probes the endpoint until the task is dropped.
    pub(super) async fn run(self) {
        let mut changes = self.endpoint.changes();
        loop {
            let is_up = *changes.borrow_and_update();
            let interval = if is_up { self.interval } else { self.interval_if_down };
            tokio::select! {
                () = tokio::time::sleep(interval) => self.probe().await,
                // A client's dial has changed the state, and the interval with it.
                _ = changes.changed() => {}
            }
        }
    }

    async fn probe(&self) {
        match self.endpoint.connect(self.timeout).await {
            Ok(_) => self.endpoint.note_up(),
            Err(error) if is_local(&error) => {}
            Err(error) => self.endpoint.note_down(&error),
        }
    }
}
