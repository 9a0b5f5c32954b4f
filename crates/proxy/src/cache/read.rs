//! Answers to Range from the cache.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::Cache;
use super::range::Span;
use super::scope::{Published, Scope};
use crate::identity::Caller;
use crate::trace::{RequestTrace, WaitFor};

/// Longest time that a linearizable read waits for the cache. It is then forwarded.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// Longest time that a serializable read waits until the cache has what the connection has seen.
const SEEN_WAIT_MAX: Duration = Duration::from_millis(50);
/// Longest time that a read waits for a scope to be loaded, from the time when its contents were
/// lost.
const LOAD_WAIT_MAX: Duration = Duration::from_millis(500);
/// Maximum number of reads at the members that the cache should have answered.
pub(super) const FALLBACKS_MAX: usize = 16;
/// A large read lets other tasks run after this number of keys.
const KEYS_PER_TURN: u64 = 500;

/// The result of [`Cache::read`].
pub(crate) enum Lookup {
    Answer(RangeResponse),
    /// A member must answer. The read is in progress there while it has the permit.
    Forward(Option<OwnedSemaphorePermit>),
}

/// Why a scope does not answer a read.
enum Miss {
    /// The scope does not have what the read asks for.
    Absent,
    /// The scope was reset, or does not get new revisions in time.
    Late,
}

impl Cache {
    /// Answers a read, or forwards it. `seen` is the newest revision that the caller's connection
    /// has seen.
    ///
    /// When a scope is reset or its feed is blocked, all its reads would go to the members at once,
    /// which may be the cause of the trouble. So they first wait for the scope to be loaded, and
    /// then there are at most [`FALLBACKS_MAX`] of them at the members.
    pub(crate) async fn read(
        self: &Arc<Self>,
        request: &RangeRequest,
        caller: &Caller,
        seen: i64,
        trace: &mut RequestTrace,
    ) -> Lookup {
        // A member checks a token, and whether it has a leader. A linearizable read's probe shows
        // the latter.
        let needs_member = request.serializable && caller.requires_leader();
        if !caller.is_anonymous() || needs_member || !is_supported(request) {
            return Lookup::Forward(None);
        }
        let span = Span::of_request(&request.key, &request.range_end);
        for _ in 0..2 {
            if let Some(scope) = self.covering(&span) {
                match self.read_scope(&scope, request, seen, trace).await {
                    Ok(response) => return Lookup::Answer(response),
                    Err(Miss::Absent) => return Lookup::Forward(None),
                    Err(Miss::Late) if !scope.is_loading() => break,
                    Err(Miss::Late) => {}
                }
            }
            let Some(scope) = self.loading(&span) else {
                self.count_forwarded(&span);
                return Lookup::Forward(None);
            };
            trace.start_wait();
            scope.loaded(LOAD_WAIT_MAX).await;
            trace.end_wait(|| WaitFor::Copy(scope.span.clone()));
        }
        self.metrics.misses.fetch_add(1, Ordering::Relaxed);
        // The semaphore is never closed.
        Lookup::Forward(Arc::clone(&self.fallbacks).acquire_owned().await.ok())
    }

    async fn read_scope(
        self: &Arc<Self>,
        scope: &Scope,
        request: &RangeRequest,
        seen: i64,
        trace: &mut RequestTrace,
    ) -> Result<RangeResponse, Miss> {
        let (state, oldest) =
            match Condition::of(request, scope.is_fresh(self.config.lag_max), seen) {
                Condition::Never => return Err(Miss::Late),
                Condition::Has(revision) => {
                    trace.start_wait();
                    let state = scope.wait_for(revision, Instant::now() + SEEN_WAIT_MAX).await;
                    trace.end_wait(|| WaitFor::Copy(scope.span.clone()));
                    (state.ok_or(Miss::Late)?, i64::MAX)
                }
                Condition::Probe => {
                    let deadline = Instant::now() + WAIT_MAX;
                    trace.start_wait();
                    let probe = self.probe().await.ok();
                    trace.end_wait(|| WaitFor::Probe(probe.as_ref().map_or(0, |it| it.number)));
                    let probe = probe.ok_or(Miss::Late)?;
                    let state = scope.wait_for(probe.header.revision, deadline).await;
                    trace.end_wait(|| WaitFor::Copy(scope.span.clone()));
                    let state = state.ok_or(Miss::Late)?;
                    scope.mark_fresh(probe.started);
                    (state, probe.header.revision)
                }
            };
        let answer = Answer::new(state, request, oldest, KEYS_PER_TURN);
        let mut answer = answer.ok_or(Miss::Absent)?;
        self.metrics.hits.fetch_add(1, Ordering::Relaxed);
        while !answer.step() {
            yield_now().await;
        }
        Ok(answer.into_response())
    }
}

/// The condition under which a scope may answer a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The read must be forwarded.
    Never,
    /// The scope has this revision.
    Has(i64),
    /// The scope has the revision of a probe that starts after the read has arrived.
    Probe,
}

impl Condition {
    /// `seen` is the newest revision that the caller's connection has seen. If `is_fresh` is false,
    /// the scope may be too old for serializable reads.
    pub fn of(request: &RangeRequest, is_fresh: bool, seen: i64) -> Condition {
        match (request.serializable, is_fresh) {
            (false, _) => Condition::Probe,
            (true, true) => Condition::Has(seen),
            (true, false) => Condition::Never,
        }
    }
}

/// Returns true for the requests that the cache answers exactly as a member does. It has the keys
/// in ascending order.
pub fn is_supported(request: &RangeRequest) -> bool {
    // Without an order, any other target than the key is sorted in ascending order.
    let orders = [SortOrder::None as i32, SortOrder::Ascend as i32];
    let is_by_key = request.sort_target == SortTarget::Key as i32;
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    is_by_key
        && orders.contains(&request.sort_order)
        && filters == [0; 4]
        && request.limit >= 0
        && request.revision >= 0
        && !request.key.is_empty()
}

/// A response that is made in steps, all from one state.
#[derive(Debug)]
pub struct Answer {
    state: Arc<Published>,
    request: RangeRequest,
    /// The range that later steps read.
    rest: Span,
    at: i64,
    keys_per_step: u64,
    is_started: bool,
    response: RangeResponse,
}

impl Answer {
    /// Returns `None` if the request has a revision that the state does not have, or that is below
    /// `oldest`, the revision of the read's probe. The proxy does not know whether an older
    /// revision was compacted, which is an error. But the probe's revision was the newest, so it
    /// cannot have been compacted before the probe.
    pub fn new(
        state: Arc<Published>,
        request: &RangeRequest,
        oldest: i64,
        keys_per_step: u64,
    ) -> Option<Answer> {
        let oldest = oldest.max(state.snapshot.base);
        let at = match request.revision {
            0 => state.snapshot.revision,
            asked if (oldest..=state.snapshot.revision).contains(&asked) => asked,
            _ => return None,
        };
        let response = RangeResponse { header: Some(state.header), ..RangeResponse::default() };
        let rest = Span::of_request(&request.key, &request.range_end);
        let request = request.clone();
        Some(Answer { state, request, rest, at, keys_per_step, is_started: false, response })
    }

    /// Reads up to `keys_per_step` keys. Returns true if the response is complete.
    pub fn step(&mut self) -> bool {
        let (request, response) = (&self.request, &mut self.response);
        let snapshot = &self.state.snapshot;
        if request.count_only {
            response.count = snapshot.count(self.rest.as_range(), self.at) as i64;
            return true;
        }
        if request.range_end.is_empty() {
            let found = snapshot.get(&request.key, self.at);
            response.kvs = found.map(|record| to_response(record, request)).into_iter().collect();
            response.count = response.kvs.len() as i64;
            return true;
        }
        let limit = if request.limit > 0 { request.limit as u64 } else { u64::MAX };
        let before = response.kvs.len() as u64;
        let wanted = (limit - before).min(self.keys_per_step);
        let count = snapshot.visit(self.rest.as_range(), self.at, wanted, &mut |record| {
            response.kvs.push(to_response(record, request));
            ControlFlow::Continue(())
        });
        if !std::mem::replace(&mut self.is_started, true) {
            response.count = count as i64;
        }
        let read = response.kvs.len() as u64 - before;
        if read == self.keys_per_step
            && before + read < limit
            && let Some(last) = response.kvs.last()
        {
            let mut next = last.key.to_vec();
            next.push(0);
            self.rest.from = next.into();
            return false;
        }
        response.more = response.count > response.kvs.len() as i64;
        true
    }

    pub fn into_response(self) -> RangeResponse {
        self.response
    }
}

fn to_response(record: &KeyValue, request: &RangeRequest) -> KeyValue {
    let mut record = record.clone();
    if request.keys_only {
        record.value.clear();
    }
    record
}
