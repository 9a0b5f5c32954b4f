//! Compares what clients get with the true history.

use std::collections::BTreeMap;

use clearlane_proto::etcdserverpb::{
    RangeRequest, RangeResponse, WatchCreateRequest, WatchResponse,
};
use clearlane_proto::mvccpb::{Event, KeyValue};
use clearlane_proxy::cache::range::Span;

use super::readers::Read;
use super::streams::wanted;
use super::world::{Time, World, revision_of};
use super::{ACTIVE, LAG_MAX};

/// Numbers of checked results. They show that the simulation exercises the cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) cached_reads: u64,
    pub(super) serializable_reads: u64,
    pub(super) forwarded_reads: u64,
    pub(super) events: u64,
    pub(super) progress: u64,
    pub(super) lagging: u64,
    pub(super) detached: u64,
    pub(super) joined: u64,
    pub(super) compacted: u64,
}

impl Counts {
    fn fields(&mut self) -> [&mut u64; 9] {
        [
            &mut self.cached_reads,
            &mut self.serializable_reads,
            &mut self.forwarded_reads,
            &mut self.events,
            &mut self.progress,
            &mut self.lagging,
            &mut self.detached,
            &mut self.joined,
            &mut self.compacted,
        ]
    }

    pub(super) fn add(&mut self, mut other: Counts) {
        for (sum, value) in self.fields().into_iter().zip(other.fields()) {
            *sum += *value;
        }
    }

    /// Panics if something happened too rarely to be tested.
    pub(super) fn check_least(&mut self) {
        let rarest = self.fields().into_iter().min().copied();
        assert!(rarest > Some(50), "too rare: {self:?}");
    }
}

#[derive(Debug, Default)]
pub(super) struct Checker {
    pub(super) violation: Option<String>,
    pub(super) counts: Counts,
    /// The revisions that were acknowledged, by time.
    acknowledged: Vec<(Time, i64)>,
    /// When each session has last sent progress for all its watches.
    last_progress: BTreeMap<usize, Time>,
    /// The watches as their clients see them, by session and ID.
    watches: BTreeMap<(usize, i64), ClientWatch>,
}

#[derive(Debug)]
struct ClientWatch {
    create: WatchCreateRequest,
    span: Span,
    /// The client has all events below this revision. 0 before the creation is answered.
    next: i64,
    is_created: bool,
    is_canceled: bool,
}

impl Checker {
    fn check(&mut self, holds: bool, message: impl FnOnce() -> String) {
        if !holds && self.violation.is_none() {
            self.violation = Some(message());
        }
    }

    pub(super) fn acknowledge(&mut self, now: Time, revision: i64) {
        self.acknowledged.push((now, revision));
    }

    fn acknowledged_before(&self, time: Time) -> i64 {
        let earlier = self.acknowledged.partition_point(|(at, _)| *at < time);
        earlier.checked_sub(1).map_or(1, |last| self.acknowledged[last].1)
    }

    /// Checks an answer of the cache.
    pub(super) fn read(
        &mut self,
        world: &World,
        now: Time,
        user: Option<usize>,
        read: &Read,
        response: &RangeResponse,
    ) {
        let Read { request, span, started, .. } = read;
        let revision = response.header.as_ref().unwrap().revision;
        let from = match request.serializable {
            true => started.saturating_sub(LAG_MAX),
            false => *started,
        };
        let least = match request.serializable {
            true => self.acknowledged_before(from),
            false => read.acknowledged,
        };
        self.counts.cached_reads += 1;
        self.counts.serializable_reads += u64::from(request.serializable);
        self.check(revision >= least, || {
            format!("a read has revision {revision}, but {least} was acknowledged: {request:?}")
        });
        self.check(revision >= read.seen, || {
            format!("a read has revision {revision} after {}: {request:?}", read.seen)
        });
        let newest = world.committed_at(now);
        self.check(revision <= newest, || {
            format!("a read has revision {revision}, but {newest} is the newest: {request:?}")
        });
        self.check(world.was_permitted(user, span, from, now), || {
            format!("user {user:?} must not read this: {request:?}")
        });
        let expected = expected_answer(world, request, span, revision);
        let is_equal = response.kvs == expected.kvs
            && (response.count, response.more) == (expected.count, expected.more);
        self.check(is_equal, || {
            format!("the answer to {request:?} is {response:?} instead of {expected:?}")
        });
    }

    // ---- watches ----

    pub(super) fn create_watch(&mut self, session: usize, create: &WatchCreateRequest) {
        let span = Span::of_request(&create.key, &create.range_end);
        let create = create.clone();
        let (id, next) = (create.watch_id, create.start_revision);
        let watch = ClientWatch { create, span, next, is_created: false, is_canceled: false };
        self.watches.insert((session, id), watch);
    }

    /// The client cancels the watch.
    pub(super) fn cancel(&mut self, session: usize, id: i64) {
        if let Some(watch) = self.watches.get_mut(&(session, id)) {
            watch.is_canceled = true;
        }
    }

    /// Checks that an anonymous caller was permitted to watch a range from the cache.
    pub(super) fn attach(&mut self, world: &World, from: Time, now: Time, span: &Span) {
        let is_permitted = world.was_permitted(None, span, from.saturating_sub(LAG_MAX), now);
        self.check(is_permitted, || format!("nobody may watch {span} without a token"));
    }

    pub(super) fn watch_response(
        &mut self,
        world: &World,
        now: Time,
        session: usize,
        response: &WatchResponse,
    ) {
        let revision = response.header.as_ref().unwrap().revision;
        if response.watch_id == -1 && !response.canceled {
            let of_session = (session, i64::MIN)..=(session, i64::MAX);
            let ids: Vec<_> = self.watches.range(of_session).map(|(id, _)| *id).collect();
            self.counts.progress += 1;
            self.last_progress.insert(session, now);
            self.check(revision <= world.revision, || format!("progress {revision} is too new"));
            return ids.into_iter().for_each(|id| self.progress(world, id, revision));
        }
        let id = (session, response.watch_id);
        if response.canceled {
            self.watches.remove(&id);
            self.counts.compacted += u64::from(response.compact_revision > 0);
            let is_compacted = response.compact_revision <= world.compacted;
            return self.check(is_compacted, || format!("this is not compacted: {response:?}"));
        }
        let known = self.watches.contains_key(&id);
        self.check(known, || format!("a response for an unknown watch: {response:?}"));
        let Some(watch) = self.watches.get_mut(&id) else { return };
        if response.created {
            let is_first = !std::mem::replace(&mut watch.is_created, true);
            if watch.next == 0 {
                watch.next = revision + 1;
            }
            self.check(is_first, || format!("watch {id:?} is created twice"));
        } else if response.events.is_empty() {
            self.counts.progress += 1;
            self.progress(world, id, revision);
        } else {
            self.events(world, id, &response.events);
        }
    }

    fn events(&mut self, world: &World, id: (usize, i64), events: &[Event]) {
        let watch = &self.watches[&id];
        let last = revision_of(events.last().unwrap());
        let expected = missing(world, watch, last);
        let (is_created, next) = (watch.is_created, watch.next);
        self.counts.events += events.len() as u64;
        self.check(is_created, || format!("events of watch {id:?} before its creation"));
        self.check(events == expected, || {
            format!("from {next}, watch {id:?} gets {events:?} instead of {expected:?}")
        });
        self.watches.get_mut(&id).unwrap().next = last + 1;
    }

    fn progress(&mut self, world: &World, id: (usize, i64), revision: i64) {
        let watch = &self.watches[&id];
        if !watch.is_created {
            return;
        }
        let missing = missing(world, watch, revision);
        let next = watch.next;
        self.check(missing.is_empty(), || {
            format!("progress {revision} for watch {id:?} at {next}, which misses {missing:?}")
        });
        self.watches.get_mut(&id).unwrap().next = next.max(revision + 1);
    }

    /// Checks that all clients have got all events, and progress in the last second.
    pub(super) fn end(&mut self, world: &World, sessions: usize) {
        for session in 0..sessions {
            let last = self.last_progress.get(&session).copied();
            self.check(last > Some(ACTIVE + 400), || {
                format!("session {session} has sent progress at {last:?} last")
            });
        }
        for id in self.watches.keys().copied().collect::<Vec<_>>() {
            let watch = &self.watches[&id];
            let missing = missing(world, watch, world.revision);
            let (is_created, is_canceled) = (watch.is_created, watch.is_canceled);
            self.check(is_created, || format!("watch {id:?} was not created"));
            self.check(!is_canceled, || format!("watch {id:?} is canceled and has not ended"));
            self.check(missing.is_empty(), || format!("watch {id:?} never got {missing:?}"));
        }
    }
}

fn missing(world: &World, watch: &ClientWatch, to: i64) -> Vec<Event> {
    let events = world.events(&watch.span, watch.next..=to);
    events.filter_map(|event| wanted(&watch.create, event)).collect()
}

/// Returns the answer of a member that has this revision.
fn expected_answer(
    world: &World,
    request: &RangeRequest,
    span: &Span,
    revision: i64,
) -> RangeResponse {
    let at = if request.revision == 0 { revision } else { request.revision };
    let mut kvs: Vec<KeyValue> =
        world.state(span, at).iter().map(|record| (**record).clone()).collect();
    let mut response = RangeResponse { count: kvs.len() as i64, ..RangeResponse::default() };
    if request.count_only {
        return response;
    }
    if request.limit > 0 {
        kvs.truncate(request.limit as usize);
    }
    if request.keys_only {
        kvs.iter_mut().for_each(|record| record.value.clear());
    }
    response.more = response.count > kvs.len() as i64;
    response.kvs = kvs;
    response
}
