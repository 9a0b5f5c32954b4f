//! Answers to Range from the cache.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clearlane_engine::KeyRange;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::Cache;
use super::range::Span;
use super::scope::Published;
use crate::identity::Caller;

/// Longest time that a linearizable read waits for the cache. It is then forwarded.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// Longest time that a serializable read waits until the cache has what the connection has seen.
const SEEN_WAIT_MAX: Duration = Duration::from_millis(50);
/// Number of keys after which a large read lets others run.
const KEYS_PER_TURN: u64 = 500;

impl Cache {
    /// Answers a read, or returns `None` if it must be forwarded. `seen` is the newest revision that
    /// the caller's connection has seen.
    pub(crate) async fn read(
        self: &Arc<Self>,
        request: &RangeRequest,
        caller: &Caller,
        seen: i64,
    ) -> Option<RangeResponse> {
        // A member checks a token, and whether it has a leader. A linearizable probe shows the latter.
        let needs_member = request.serializable && caller.requires_leader();
        if !caller.is_anonymous() || needs_member || !is_supported(request) {
            return None;
        }
        let span = Span::of_request(&request.key, &request.range_end);
        let Some(scope) = self.covering(&span) else {
            self.count_forwarded(&span);
            return None;
        };
        let (state, oldest) = if request.serializable {
            if !scope.is_fresh(self.config.lag_max) {
                self.metrics.misses.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            (scope.wait_for(seen, Instant::now() + SEEN_WAIT_MAX).await?, i64::MAX)
        } else {
            let deadline = Instant::now() + WAIT_MAX;
            let probe = self.prober.probe().await.ok()?;
            let state = scope.wait_for(probe.header.revision, deadline).await?;
            scope.mark_fresh(probe.started);
            (state, probe.header.revision)
        };
        // The proxy does not know whether an older revision was compacted, which is an error. But
        // the newest revision at the time of the probe cannot have been compacted before it.
        let at = match request.revision {
            0 => state.snapshot.revision,
            asked if (oldest..=state.snapshot.revision).contains(&asked) => asked,
            _ => return None,
        };
        self.metrics.hits.fetch_add(1, Ordering::Relaxed);
        Some(answer(&state, request, &span, at).await)
    }
}

/// Returns true for the requests that the cache answers exactly as a member does. It has the keys
/// in ascending order.
fn is_supported(request: &RangeRequest) -> bool {
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

async fn answer(state: &Published, request: &RangeRequest, span: &Span, at: i64) -> RangeResponse {
    let mut response = RangeResponse { header: Some(state.header), ..RangeResponse::default() };
    let snapshot = &state.snapshot;
    if request.count_only {
        response.count = snapshot.count(span.as_range(), at) as i64;
        return response;
    }
    if request.range_end.is_empty() {
        let found = snapshot.get(&request.key, at);
        response.kvs = found.map(|record| to_response(record, request)).into_iter().collect();
        response.count = response.kvs.len() as i64;
        return response;
    }
    let limit = if request.limit > 0 { request.limit as u64 } else { u64::MAX };
    let mut from = span.from.clone();
    let mut is_first = true;
    loop {
        let range = KeyRange { from: &from, to: span.to.as_deref() };
        let left = (limit - response.kvs.len() as u64).min(KEYS_PER_TURN);
        let before = response.kvs.len();
        let count = snapshot.visit(range, at, left, &mut |record| {
            response.kvs.push(to_response(record, request));
            ControlFlow::Continue(())
        });
        if std::mem::take(&mut is_first) {
            response.count = count as i64;
        }
        let read = (response.kvs.len() - before) as u64;
        if read < KEYS_PER_TURN || response.kvs.len() as u64 >= limit {
            break;
        }
        let Some(last) = response.kvs.last() else { break };
        let mut next = last.key.to_vec();
        next.push(0);
        from = next.into();
        yield_now().await;
    }
    response.more = response.count > response.kvs.len() as i64;
    response
}

fn to_response(record: &KeyValue, request: &RangeRequest) -> KeyValue {
    let mut record = record.clone();
    if request.keys_only {
        record.value.clear();
    }
    record
}
