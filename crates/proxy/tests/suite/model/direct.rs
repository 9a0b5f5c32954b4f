//! The direct watches of sessions, which the cache cannot serve.

use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchCancelRequest, WatchResponse};
use clearlane_proxy::cache::range::Span;
use clearlane_proxy::watch::watcher::{Source, Watcher};

use super::bugs::Bug;
use super::sessions::{CATCH_UP_BYTES, Input, message};
use super::streams::Owner;
use super::world::header;
use super::{Action, EPOCH, Simulation};

impl Simulation {
    /// Returns the session's stream, which is opened if necessary.
    pub(super) fn direct_stream(&mut self, number: usize) -> Option<u64> {
        if let Some(stream) = self.sessions[number].stream {
            return Some(stream);
        }
        let user = self.connections[self.sessions[number].connection].user;
        self.sessions[number].unanswered.clear();
        self.sessions[number].next_id = 1;
        let stream = self.open_stream(Owner::Session(number), user);
        self.sessions[number].stream = stream;
        if stream.is_none() {
            self.sessions[number].is_reopening = true;
            self.after(5..60, Action::Input(number, Box::new(Input::Reopen)));
        }
        stream
    }

    /// Continues a watch upstream.
    pub(super) fn detach(&mut self, number: usize, watch: u64) {
        let watcher = &self.sessions[number].watchers[&watch];
        if watcher.is_direct() {
            return;
        }
        self.checker.counts.detached += 1;
        let create = watcher.continuation();
        let upstream_id = self.create_upstream(number, watch, create);
        let watcher = self.sessions[number].watchers.get_mut(&watch).unwrap();
        watcher.source = Source::direct(upstream_id);
    }

    pub(super) fn cancel(&mut self, number: usize, watch: u64) {
        let session = &mut self.sessions[number];
        let stream = session.stream.filter(|_| !session.is_reopening);
        let Some(watcher) = session.watchers.get_mut(&watch) else { return };
        self.checker.cancel(number, watcher.id);
        if let (Source::Direct { upstream_id, .. }, Some(stream)) = (&watcher.source, stream) {
            watcher.is_canceled = true;
            let cancel = WatchCancelRequest { watch_id: *upstream_id };
            return self.send_upstream(stream, RequestUnion::CancelRequest(cancel));
        }
        self.end_canceled(number, watch);
    }

    fn end_canceled(&mut self, number: usize, watch: u64) {
        let watcher = self.sessions[number].watchers.remove(&watch).unwrap();
        if let Source::Scope { scope, handle, .. } = &watcher.source {
            scope.remove(handle);
        }
        let (watch_id, header) = (watcher.id, header(0, self.seen));
        self.send(number, &WatchResponse { watch_id, canceled: true, ..message(header) });
    }

    pub(super) fn direct_lost(&mut self, number: usize) {
        let session = &mut self.sessions[number];
        session.stream = None;
        session.is_reopening = true;
        if self.bug != Some(Bug::OldIds) {
            session.watchers.values_mut().for_each(Watcher::set_lost);
        }
        let canceled = session.watchers.iter().filter(|(_, watcher)| watcher.is_canceled);
        let canceled: Vec<u64> = canceled.map(|(watch, _)| *watch).collect();
        if self.bug != Some(Bug::LostCancel) {
            canceled.into_iter().for_each(|watch| self.end_canceled(number, watch));
        }
        self.after(5..60, Action::Input(number, Box::new(Input::Reopen)));
    }

    /// Creates the direct watches again after their connection was lost.
    pub(super) fn reopen(&mut self, number: usize) {
        self.sessions[number].is_reopening = false;
        if let Some(stream) = self.sessions[number].stream.take() {
            self.streams.remove(&stream);
        }
        let watchers = self.sessions[number].watchers.iter();
        let lost: Vec<u64> =
            watchers.filter(|(_, it)| it.is_direct()).map(|(watch, _)| *watch).collect();
        for watch in lost {
            let create = self.sessions[number].watchers[&watch].continuation();
            let upstream_id = self.create_upstream(number, watch, create);
            let watcher = self.sessions[number].watchers.get_mut(&watch).unwrap();
            watcher.source = Source::direct(upstream_id);
        }
        if self.sessions[number].progress.is_upstream_pending()
            && let Some(stream) = self.direct_stream(number)
        {
            self.send_upstream(stream, RequestUnion::ProgressRequest(Default::default()));
        }
    }

    pub(super) fn direct_response(
        &mut self,
        number: usize,
        stream: u64,
        mut response: WatchResponse,
    ) {
        if self.sessions[number].stream != Some(stream) {
            return;
        }
        if response.created {
            return self.direct_created(number, response);
        }
        if response.watch_id == -1 && !response.canceled {
            return self.direct_progress(number, response.header.unwrap().revision);
        }
        let upstream = response.watch_id;
        let of_response = |watcher: &Watcher| matches!(watcher.source, Source::Direct { upstream_id, .. } if upstream_id == upstream);
        let mut watchers = self.sessions[number].watchers.iter_mut();
        let Some((watch, watcher)) = watchers.find(|(_, it)| of_response(it)) else { return };
        let watch = *watch;
        response.watch_id = watcher.id;
        watcher.take_upstream(&response);
        if response.canceled {
            self.sessions[number].watchers.remove(&watch);
        }
        self.send(number, &response);
    }

    fn direct_created(&mut self, number: usize, mut response: WatchResponse) {
        let session = &mut self.sessions[number];
        let Some((watch, id)) = session.unanswered.pop_front() else { return };
        let Some(watcher) = session.watchers.get_mut(&watch) else { return };
        if !matches!(watcher.source, Source::Direct { upstream_id, .. } if upstream_id == id) {
            return;
        }
        let is_told = std::mem::replace(&mut watcher.is_created, true);
        watcher.set_answered(response.header.as_ref().unwrap().revision);
        response.watch_id = watcher.id;
        if response.canceled {
            session.watchers.remove(&watch);
        }
        if response.canceled || !is_told {
            self.send(number, &response);
        }
    }

    /// The member has sent all events up to this revision.
    fn direct_progress(&mut self, number: usize, revision: i64) {
        let session = &mut self.sessions[number];
        for watcher in session.watchers.values_mut() {
            // The members of the model answer in order, so progress is about all created watches.
            watcher.upstream_reached(revision, i64::MAX);
            if self.bug == Some(Bug::UnansweredProgress)
                && watcher.is_direct()
                && watcher.is_created
            {
                watcher.next = watcher.next.max(revision + 1);
            }
        }
        session.progress.upstream_reached(revision);
        if self.connections[session.connection].caller.is_anonymous() {
            self.join_scopes(number);
        }
    }

    fn join_scopes(&mut self, number: usize) {
        let is_planted = self.bug == Some(Bug::LostCancel);
        let watchers = self.sessions[number].watchers.iter();
        let direct: Vec<u64> = watchers
            .filter(|(_, it)| it.can_join() || it.is_direct() && it.is_created && is_planted)
            .map(|(watch, _)| *watch)
            .collect();
        for watch in direct {
            let mut watcher = self.sessions[number].watchers.remove(&watch).unwrap();
            let Source::Direct { upstream_id, .. } = watcher.source else { continue };
            let span = Span::of_request(&watcher.create.key, &watcher.create.range_end);
            let feed = self.covering(&span).map(|feed| &self.feeds[feed].scope);
            let attached = feed.filter(|scope| self.is_fresh(scope)).and_then(|scope| {
                let queue = self.sessions[number].queue();
                watcher.attach(watch, scope, queue, EPOCH, self.seen, CATCH_UP_BYTES)
            });
            self.sessions[number].watchers.insert(watch, watcher);
            if let Some((found, _)) = attached {
                self.checker.counts.joined += 1;
                if let Some(stream) = self.sessions[number].stream {
                    let cancel = WatchCancelRequest { watch_id: upstream_id };
                    self.send_upstream(stream, RequestUnion::CancelRequest(cancel));
                }
                self.send_missed(number, watch, found);
            }
        }
    }
}
