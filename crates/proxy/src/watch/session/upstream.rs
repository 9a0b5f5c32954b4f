//! The watches of a session that a member serves, and their way into the cache.

use std::sync::Arc;

use clearlane_mvcc::watch::INVALID_WATCH_ID;
use clearlane_proto::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchResponse};
use tokio::time::Instant;

use super::{REOPEN_DELAY_MAX, REOPEN_DELAY_MIN, Session, Step};
use crate::status;
use crate::watch::direct::{DirectEvent, DirectStream};
use crate::watch::watcher::{Source, Watcher};

impl Session {
    pub(super) fn direct(&mut self) -> &mut DirectStream {
        let (cache, caller) = (&self.cache, &self.caller);
        self.direct.get_or_insert_with(|| DirectStream::open(Arc::clone(&cache.upstream), caller))
    }

    /// Creates a watch upstream. While the stream is lost, `reopen` creates it with the others.
    pub(super) fn create_upstream(&mut self, number: u64, create: WatchCreateRequest) {
        let mut upstream_id = 0;
        if self.reopen_at.is_none() {
            upstream_id = self.direct().create(number, create);
            self.upstream_ids.insert(upstream_id, number);
        }
        self.are_scopes_stale = true;
        if let Some(watcher) = self.watchers.get_mut(&number) {
            watcher.source = Source::direct(upstream_id);
        }
    }

    pub(super) async fn handle_direct(&mut self, event: DirectEvent) -> Step {
        match event {
            DirectEvent::Response(response) => {
                self.reopen_delay = REOPEN_DELAY_MIN;
                self.is_token_rejected = false;
                self.handle_direct_response(response).await
            }
            // A token may have expired since the stream was opened. The client opens a new stream
            // with a new token. It also does so if a response was only sent in part.
            DirectEvent::Lost
                if self.caller.names_user()
                    || self.watchers.values().any(|watcher| watcher.is_in_fragments) =>
            {
                self.end(status::connection_lost()).await
            }
            DirectEvent::Lost => self.lose_direct().await,
            // A second token was rejected also, so the cause is not its age.
            DirectEvent::TokenRejected
                if self.is_token_rejected
                    || self.watchers.values().any(|watcher| watcher.is_in_fragments) =>
            {
                self.end(status::token_rejected()).await
            }
            DirectEvent::TokenRejected => {
                self.is_token_rejected = true;
                self.lose_direct().await
            }
            DirectEvent::Ended(status) => self.end(status).await,
        }
    }

    /// The stream upstream has ended. A new one is opened after a delay.
    async fn lose_direct(&mut self) -> Step {
        self.direct = None;
        self.watchers.values_mut().for_each(Watcher::set_lost);
        self.reopen_at = Some(Instant::now() + self.reopen_delay);
        self.reopen_delay = (self.reopen_delay * 2).min(REOPEN_DELAY_MAX);
        let mut canceled: Vec<u64> = self.watchers.keys().copied().collect();
        canceled.retain(|number| self.watchers[number].is_canceled);
        for number in canceled {
            self.end_canceled(number).await?;
        }
        Ok(())
    }

    /// Creates the direct watches again after their connection was lost. The watches of an earlier
    /// epoch have ended.
    pub(super) async fn reopen(&mut self) -> Step {
        self.follow_epoch().await?;
        self.reopen_at = None;
        self.direct = None;
        self.upstream_ids.clear();
        let mut lost: Vec<u64> = self.watchers.keys().copied().collect();
        lost.retain(|number| self.watchers[number].is_direct());
        lost.sort_unstable();
        for number in lost {
            let create = self.watchers[&number].continuation();
            self.create_upstream(number, create);
        }
        if self.progress.is_upstream_pending() {
            self.direct().request_progress();
        }
        Ok(())
    }

    pub(super) async fn handle_direct_response(&mut self, mut response: WatchResponse) -> Step {
        if response.created {
            let Some((number, id)) = self.direct().answered() else { return Ok(()) };
            return self.handle_created(number, id, response).await;
        }
        if response.watch_id == INVALID_WATCH_ID && !response.canceled {
            let header = response.header.unwrap_or_default();
            return self.handle_upstream_progress(header).await;
        }
        let Some(number) = self.upstream_ids.get(&response.watch_id).copied() else {
            return Ok(());
        };
        let Some(watcher) = self.watchers.get_mut(&number) else { return Ok(()) };
        response.watch_id = watcher.id;
        watcher.take_upstream(&response);
        if response.canceled {
            self.forget(number);
        }
        self.send(response).await
    }

    pub(super) async fn handle_created(
        &mut self,
        number: u64,
        id: i64,
        mut response: WatchResponse,
    ) -> Step {
        let Some(watcher) = self.watchers.get_mut(&number) else {
            // The client has canceled it since the request.
            return Ok(());
        };
        if !matches!(watcher.source, Source::Direct { upstream_id, .. } if upstream_id == id) {
            // It has joined a scope since the request.
            return Ok(());
        }
        let is_told = std::mem::replace(&mut watcher.is_created, true);
        watcher.set_answered(response.header.as_ref().map_or(0, |header| header.revision));
        if response.canceled {
            response.created = !is_told;
            response.watch_id = if is_told { watcher.id } else { INVALID_WATCH_ID };
            self.forget(number);
            return self.send(response).await;
        }
        if is_told {
            return Ok(());
        }
        response.watch_id = watcher.id;
        self.send(response).await
    }

    /// Asks the member how far the direct watches are, to let them join scopes.
    pub(super) async fn try_to_join(&mut self) -> Step {
        let Some(direct) = &mut self.direct else { return Ok(()) };
        if self.upstream_ids.is_empty() {
            // All watches have left the stream.
            self.direct = None;
            return Ok(());
        }
        direct.repeat_progress();
        let can_join = |watcher: &Watcher| {
            watcher.can_join() && self.joinable_scope(&watcher.create).is_some()
        };
        if self.caller.is_anonymous() && self.watchers.values().any(can_join) {
            self.direct().request_progress();
        }
        Ok(())
    }

    /// The member has sent all events up to this revision, of the watches that it had created when
    /// progress was requested.
    pub(super) async fn handle_upstream_progress(&mut self, header: ResponseHeader) -> Step {
        let newest_id = self.direct().progress_arrived();
        for watcher in self.watchers.values_mut() {
            watcher.upstream_reached(header.revision, newest_id);
        }
        self.progress.upstream_reached(header.revision);
        self.last_header = header;
        if self.caller.is_anonymous() {
            self.join_scopes().await?;
        }
        Ok(())
    }

    pub(super) async fn join_scopes(&mut self) -> Step {
        let mut direct: Vec<u64> = self.watchers.keys().copied().collect();
        direct.retain(|number| self.watchers[number].can_join());
        for number in direct {
            let Some(mut watcher) = self.watchers.remove(&number) else { continue };
            let Source::Direct { upstream_id, .. } = watcher.source else { continue };
            let scope = self.joinable_scope(&watcher.create);
            let attached = scope.and_then(|scope| self.attach(number, &mut watcher, &scope));
            self.watchers.insert(number, watcher);
            if let Some((found, _)) = attached {
                self.upstream_ids.remove(&upstream_id);
                self.direct().cancel(upstream_id);
                self.send_caught_up(number, found).await?;
            }
        }
        Ok(())
    }
}
