//! Progress that a client has requested, and progress notices.

use std::sync::Arc;

use clearlane_mvcc::watch::INVALID_WATCH_ID;
use clearlane_proto::etcdserverpb::WatchResponse;
use tokio::time::Instant;

use super::{SCOPE_PATIENCE, Session, Step, message};
use crate::watch::watcher::Source;

impl Session {
    pub(super) fn request_progress(&mut self) {
        if self.scopes_reached.is_some() {
            return;
        }
        self.refresh_scopes();
        let scopes = self.scopes.clone();
        if !self.upstream_ids.is_empty() {
            self.progress.request_upstream();
            if let Some(direct) = &mut self.direct {
                direct.request_progress();
            }
            if scopes.is_empty() {
                return;
            }
        }
        self.progress.request_scopes();
        let cache = Arc::clone(&self.cache);
        self.scopes_reached = Some(Box::pin(async move {
            let probe = cache.probe().await.ok()?;
            let deadline = Instant::now() + SCOPE_PATIENCE;
            let mut reached = probe.header.revision;
            for scope in scopes {
                let state = scope.wait_for(probe.header.revision, deadline).await?;
                reached = reached.min(state.snapshot.revision);
            }
            Some(reached)
        }));
    }

    /// Sends progress if all events up to its revision were sent. The queue must be drained.
    pub(super) async fn send_progress(&mut self) -> Step {
        if self.progress.is_upstream_pending() && self.upstream_ids.is_empty() {
            // The direct watches have joined scopes, or were canceled.
            self.progress.clear();
            self.request_progress();
        }
        let Some(revision) = self.progress.revision() else { return Ok(()) };
        let mut created = self.watchers.values().filter(|watcher| watcher.is_created);
        // A scope may be ahead of the report, so that later events were sent already.
        if revision < self.last_event || !created.all(|watcher| watcher.has_sent(revision)) {
            self.progress.clear();
            self.request_progress();
            return Ok(());
        }
        if !self.queue.is_empty() || !self.lagging.is_empty() {
            // The session drains it and calls again.
            return Ok(());
        }
        self.progress.clear();
        let mut header = match self.last_header.revision {
            0 => self.current_header().await,
            _ => self.last_header,
        };
        header.revision = revision;
        self.send(WatchResponse { watch_id: INVALID_WATCH_ID, ..message(header) }).await
    }

    /// Sends a progress notice for each idle watch that wants them.
    pub(super) async fn send_notices(&mut self) -> Step {
        let mut idle = Vec::new();
        for (number, watcher) in &mut self.watchers {
            let Source::Scope { scope, is_lagging: false, .. } = &watcher.source else { continue };
            if watcher.create.progress_notify && !std::mem::take(&mut watcher.is_active) {
                idle.extend(scope.published().map(|state| (*number, state.header)));
            }
        }
        // Every event up to these revisions must be sent first.
        self.drain_deliveries().await?;
        for (number, header) in idle {
            if let Some(watcher) = self.watchers.get(&number)
                && watcher.has_sent(header.revision)
            {
                let watch_id = watcher.id;
                self.send(WatchResponse { watch_id, ..message(header) }).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn drain_deliveries(&mut self) -> Step {
        while Box::pin(self.drain_queue()).await? {}
        Ok(())
    }
}
