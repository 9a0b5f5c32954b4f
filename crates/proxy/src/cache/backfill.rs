//! Events before the history of a scope, for watches that start there.
//!
//! A scope's history begins with its list. A watch that starts earlier could read the older events
//! from a member, with a watch upstream of its own. Ten thousand such watches would be as many
//! watches upstream. So the scope reads the older events once, and puts them before its history:
//!
//! ```text
//!   events      [ from ........ base ] [ base + 1 ........ revision ]
//!   comes from    one watch upstream     the list's feed
//! ```
//!
//! * The events are complete when the member has sent one after `base`, or progress of at least
//!   `base`.
//! * Concurrent watches share one attempt, which begins at the lowest revision of all that wait.
//! * The cluster may have compacted some of the revisions. A watch that starts at one of them goes
//!   to a member, which cancels it.
//! * The older events have no previous values. A watch that wants previous values goes to a member.
//! * Only watches use these events. Reads at such old revisions go to a member.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchProgressRequest, WatchRequest};
use clearlane_proto::mvccpb::Event;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::Cache;
use super::contents::bytes_of;
use super::scope::Scope;
use super::version;

/// A request for progress is repeated at this interval: a member drops it while the watch is not
/// synced.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// Watches that wait for a longer attempt go to a member.
const ATTEMPT_TIME: Duration = Duration::from_secs(5);

enum Fetched {
    Events(Vec<Event>),
    /// The member has no events before this revision.
    CompactedBefore(i64),
    /// The events up to this revision were more than the history can have.
    TooManyBefore(i64),
}

impl Scope {
    /// Adds the events from revision `from` on to the history. Returns true if it has them.
    pub(crate) async fn backfill(&self, cache: &Cache, from: i64) -> bool {
        if self.backfill.refused_before.load(Ordering::Relaxed) > from {
            return false;
        }
        self.backfill.wanted_from.fetch_min(from, Ordering::AcqRel);
        let _attempt = self.backfill.attempt.lock().await;
        let mut lowest = self.backfill.wanted_from.swap(i64::MAX, Ordering::AcqRel).min(from);
        loop {
            let Some(base) = self.history_base() else { return false };
            if base < from {
                return true;
            }
            let fetched = timeout(ATTEMPT_TIME, fetch(self, cache, lowest, base)).await;
            let Ok(Ok(fetched)) = fetched else { return false };
            let refused = match fetched {
                Fetched::Events(events) => {
                    if self.extend_history(events, lowest - 1, base) {
                        return true;
                    }
                    // The history is full.
                    base
                }
                Fetched::CompactedBefore(first) | Fetched::TooManyBefore(first) => first,
            };
            self.backfill.refused_before.fetch_max(refused, Ordering::Relaxed);
            if refused > from || refused <= lowest {
                return false;
            }
            lowest = refused;
        }
    }
}

/// Reads the events of the scope's range from revision `from` to `base`.
async fn fetch(scope: &Scope, cache: &Cache, from: i64, base: i64) -> Result<Fetched, Status> {
    let member = cache.upstream.wait_and_pick().await;
    let Some((member, channel)) =
        member.and_then(|member| member.channel().map(|channel| (member, channel)))
    else {
        return Err(crate::status::no_member());
    };
    if version::too_old(channel.clone()).await?.is_some() {
        return Err(Status::unavailable("the member is too old"));
    }
    let (requests, receiver) = mpsc::channel(4);
    let (key, range_end) = scope.span.to_request();
    let create = WatchCreateRequest { key, range_end, start_revision: from, ..Default::default() };
    // The receiver exists, and the channel is empty.
    let _ = requests.send(request(RequestUnion::CreateRequest(create))).await;
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let mut stream = client.watch(Request::new(ReceiverStream::new(receiver))).await?.into_inner();
    let (mut events, mut bytes, mut seen) = (Vec::new(), 0, 0);
    let mut progress = interval(PROGRESS_INTERVAL);
    progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let response = tokio::select! {
            response = stream.message() => response?,
            _ = progress.tick() => {
                let progress = RequestUnion::ProgressRequest(WatchProgressRequest::default());
                // If the channel is full, the request is repeated later.
                let _ = requests.try_send(request(progress));
                continue;
            }
            () = cache.upstream.lost(&member) => None,
        };
        let Some(response) = response else {
            return Err(Status::unavailable("the member is lost"));
        };
        if response.canceled {
            return match response.compact_revision {
                0 => Err(Status::unavailable(response.cancel_reason)),
                compacted => Ok(Fetched::CompactedBefore(compacted)),
            };
        }
        let is_progress = response.events.is_empty() && !response.created;
        let reached = response.header.map_or(0, |header| header.revision);
        for event in response.events {
            let Some(record) = &event.kv else { continue };
            if record.mod_revision > base {
                return Ok(Fetched::Events(events));
            }
            seen = record.mod_revision;
            bytes += bytes_of(record);
            events.push(event);
        }
        if is_progress && reached >= base {
            return Ok(Fetched::Events(events));
        }
        let limits = cache.config.history;
        let is_too_much = events.len() > limits.revisions_max || bytes > limits.bytes_max;
        // Older events displace no other range.
        if is_too_much || !cache.has_room_for(bytes) {
            return Ok(Fetched::TooManyBefore(seen + 1));
        }
    }
}

fn request(union: RequestUnion) -> WatchRequest {
    WatchRequest { request_union: Some(union) }
}
