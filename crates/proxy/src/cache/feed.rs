//! The feed of one scope: a list, then a watch, for as long as the scope exists.
//!
//! ```text
//!   list ─▶ watch from the revision after it ─┬─ events, progress ─▶ scope
//!    ▲                                        ├─ connection lost ─▶ watch from the next revision,
//!    │                                        │                     at another member
//!    └── the next revision was compacted ◀────┘
//! ```
//!
//! * The stream has one watcher, because etcd answers a request for progress only if all watchers
//!   of a stream are synced. Progress at revision R shows that all events up to R were sent.
//! * The header of an event response does not show that: it may be newer than the last event, while
//!   a member still catches up.
//! * The stream requires a leader, so it ends on a member that is cut off.
//! * Older versions of etcd send progress that overtakes events. From such a member, nothing is
//!   cached.
//! * The feed is anonymous. If the cluster has auth enabled, nothing is cached.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    RangeRequest, RangeResponse, ResponseHeader, WatchCreateRequest, WatchProgressRequest,
    WatchRequest, WatchResponse,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::Cache;
use super::budget::Refusal;
use super::contents::{BrokenFeed, bytes_of};
use super::scope::Scope;
use super::version;
use crate::status;

/// The first page of a list has this number of keys. Later pages are sized by the bytes of the
/// earlier ones.
const FIRST_PAGE_KEYS: i64 = 100;
const PAGE_KEYS_MAX: i64 = 10_000;
const PAGE_BYTES: usize = 1 << 20;
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_DELAY_MIN: Duration = Duration::from_millis(20);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// A request for progress is repeated after this time if there was no answer: etcd drops it while
/// the watcher is not synced.
const PROGRESS_REPEAT: Duration = Duration::from_millis(50);
/// A response of a healthy member takes much less. The watch is then opened at another member.
const CREATE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why the feed has stopped for now.
#[derive(Debug)]
pub enum Interruption {
    /// Another member can continue from the next revision.
    Lost(String),
    /// The next revision is compacted, or the copy is not trusted any more.
    Gap(String),
    /// The cluster is another one, or was restored from a backup.
    Replaced(String),
    /// The scope must not be cached.
    Refused(Refusal, String),
}

impl From<Status> for Interruption {
    fn from(status: Status) -> Interruption {
        let message = status.message().to_owned();
        match status.code() {
            Code::OutOfRange => Interruption::Gap(message),
            Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument => {
                Interruption::Refused(Refusal::NotPermitted, message)
            }
            _ => Interruption::Lost(message),
        }
    }
}

impl From<BrokenFeed> for Interruption {
    fn from(broken: BrokenFeed) -> Interruption {
        Interruption::Gap(broken.to_string())
    }
}

/// Feeds the scope until it may not be cached. Returns the reason.
pub(super) async fn run(scope: &Arc<Scope>, cache: &Arc<Cache>) -> (Refusal, String) {
    let mut delay = RETRY_DELAY_MIN;
    loop {
        let started = Instant::now();
        let epoch = cache.epoch();
        let interruption = feed(scope, cache, epoch).await;
        if scope.revision() == 0 {
            // The part of a list that has arrived was dropped.
            scope.set_listed_bytes(0);
        }
        match interruption {
            Interruption::Lost(why) => {
                tracing::debug!(scope = %scope.span, why, "the watch of a cached range was lost");
            }
            Interruption::Gap(why) => {
                tracing::warn!(scope = %scope.span, why, "a cached range is listed again");
                scope.reset();
            }
            Interruption::Replaced(why) => {
                tracing::error!(scope = %scope.span, why, "the cluster behind the proxy was replaced");
                // This aborts the feed at its next wait. A new one starts.
                cache.forget_cluster(epoch);
            }
            Interruption::Refused(refusal, why) => return (refusal, why),
        }
        if started.elapsed() > RETRY_DELAY_MAX {
            delay = RETRY_DELAY_MIN;
        }
        sleep(delay).await;
        delay = (delay * 2).min(RETRY_DELAY_MAX);
    }
}

async fn feed(scope: &Arc<Scope>, cache: &Cache, epoch: u64) -> Interruption {
    let Some((member, channel, generation)) =
        cache.upstream.wait_and_pick().await.and_then(|member| {
            let (channel, generation) = member.connection()?;
            Some((member, channel, generation))
        })
    else {
        return Interruption::Lost("no member is connected".to_owned());
    };
    let fed = async {
        if let Some(version) = version::too_old(channel.clone()).await? {
            let why = format!(
                "{} has version {version:?}, whose progress may overtake events; update it to \
                 3.4.31, 3.5.13, 3.6 or later",
                member.url()
            );
            return Err(Interruption::Refused(Refusal::OldMember, why));
        }
        if scope.revision() == 0 {
            tokio::select! {
                listed = timeout(LIST_TIMEOUT, list(scope, cache, channel.clone(), epoch)) => {
                    listed.map_err(|_| Interruption::Lost("the list took too long".to_owned()))??;
                }
                () = cache.upstream.lost(&member, generation) => {
                    return Err(Interruption::Lost("the member does not answer".to_owned()));
                }
            }
        }
        let lost = cache.upstream.lost(&member, generation);
        follow(scope, cache, lost, channel).await
    };
    match fed.await {
        Err(interruption) => interruption,
        Ok(never) => match never {},
    }
}

/// Reads all keys of the scope at one revision.
async fn list(
    scope: &Arc<Scope>,
    cache: &Cache,
    channel: Channel,
    epoch: u64,
) -> Result<(), Interruption> {
    let (mut key, range_end) = scope.span.to_request();
    let mut client = KvClient::new(channel).max_decoding_message_size(usize::MAX);
    let (mut keys, mut bytes, mut page_keys) = (Vec::new(), 0, FIRST_PAGE_KEYS);
    let mut revision = 0;
    loop {
        let request = RangeRequest {
            key,
            range_end: range_end.clone(),
            limit: page_keys,
            revision,
            // The member has this revision after the first page.
            serializable: revision != 0,
            ..RangeRequest::default()
        };
        let RangeResponse { header, kvs, more, .. } = client.range(request).await?.into_inner();
        let header = header.unwrap_or_default();
        if revision == 0 {
            revision = header.revision;
        }
        let page_bytes: usize = kvs.iter().map(|kv| kv.encoded_len()).sum();
        bytes += kvs.iter().map(bytes_of).sum::<usize>();
        scope.set_listed_bytes(bytes);
        make_room(scope, cache)?;
        let average = page_bytes / kvs.len().max(1);
        page_keys = i64::try_from(PAGE_BYTES / average.max(1)).unwrap_or(PAGE_KEYS_MAX);
        page_keys = page_keys.clamp(1, PAGE_KEYS_MAX);
        if kvs.iter().any(|kv| !(1..=revision).contains(&kv.mod_revision)) {
            return Err(Interruption::Gap("a key has a revision that does not exist".to_owned()));
        }
        let last = kvs.last().map(|kv| kv.key.clone());
        keys.extend(kvs);
        match last {
            Some(last) if more => key = after(&last),
            _ => {
                scope.load(scope.new_contents(keys, revision), &header, epoch);
                return Ok(());
            }
        }
    }
}

fn make_room(scope: &Arc<Scope>, cache: &Cache) -> Result<(), Interruption> {
    if cache.make_room(scope) {
        return Ok(());
    }
    let why = format!(
        "it has {} bytes, and all cached ranges together may have {}",
        scope.bytes(),
        cache.config.bytes_max
    );
    Err(Interruption::Refused(Refusal::TooLarge, why))
}

fn after(key: &Bytes) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

enum Never {}

/// Applies the events from the scope's next revision on.
async fn follow(
    scope: &Arc<Scope>,
    cache: &Cache,
    lost: impl Future<Output = ()>,
    channel: Channel,
) -> Result<Never, Interruption> {
    let (requests, receiver) = mpsc::channel(4);
    let create = RequestUnion::CreateRequest(watch_request(scope));
    let create = WatchRequest { request_union: Some(create) };
    // The receiver exists, and the channel is empty.
    let _ = requests.send(create).await;
    let mut request = Request::new(ReceiverStream::new(receiver));
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let opened = timeout(CREATE_TIMEOUT, client.watch(request)).await;
    let opened = opened.map_err(|_| Interruption::Lost("the watch was not created".to_owned()))?;
    let mut events = opened.map_err(|status| leader_status(scope, status))?.into_inner();
    scope.set_leaderless(false);
    let mut asked: Option<Instant> = None;
    let mut lost = std::pin::pin!(lost);
    loop {
        let repeat = asked.unwrap_or_else(Instant::now) + PROGRESS_REPEAT;
        tokio::select! {
            response = next(&mut events) => {
                let response = response.map_err(|status| leader_status(scope, status))?;
                if is_progress(&response) {
                    asked = None;
                }
                let traced = cache.trace.start_fan_out(scope);
                handle(scope, response)?;
                cache.trace.end_fan_out(scope, traced);
                make_room(scope, cache)?;
            }
            () = scope.wanted.notified(), if asked.is_none() => {
                if scope.take_wants_progress() {
                    request_progress(&requests);
                    asked = Some(Instant::now());
                }
            }
            () = sleep_until(repeat), if asked.is_some() => {
                request_progress(&requests);
                asked = Some(Instant::now());
            }
            () = lost.as_mut() => {
                return Err(Interruption::Lost("the member does not answer".to_owned()));
            }
        }
    }
}

fn request_progress(requests: &mpsc::Sender<WatchRequest>) {
    let request = RequestUnion::ProgressRequest(WatchProgressRequest::default());
    // If the channel is full, the request is repeated later.
    let _ = requests.try_send(WatchRequest { request_union: Some(request) });
}

async fn next(events: &mut Streaming<WatchResponse>) -> Result<WatchResponse, Status> {
    events.message().await?.ok_or_else(|| Status::unavailable("the member has ended the stream"))
}

fn leader_status(scope: &Scope, status: Status) -> Interruption {
    if status::is_no_leader(&status) {
        scope.set_leaderless(true);
    }
    status.into()
}

fn is_progress(response: &WatchResponse) -> bool {
    response.events.is_empty() && !response.created && !response.canceled
}

/// Returns the request of a watch that continues after the applied events and progress. The header
/// of an event response may be newer than these.
pub fn watch_request(scope: &Scope) -> WatchCreateRequest {
    let (key, range_end) = scope.span.to_request();
    WatchCreateRequest {
        key,
        range_end,
        start_revision: scope.revision() + 1,
        progress_notify: true,
        ..WatchCreateRequest::default()
    }
}

/// Applies a response of the watch.
pub fn handle(scope: &Scope, response: WatchResponse) -> Result<(), Interruption> {
    let header = response.header.unwrap_or_default();
    check_cluster(scope, &header)?;
    if response.canceled {
        let why = response.cancel_reason;
        return Err(match response.compact_revision {
            // The feed has no token, so etcd finds no user when auth is enabled.
            0 if why.contains("permission denied") || status::is_token_rejection(&why) => {
                Interruption::Refused(Refusal::NotPermitted, why)
            }
            0 => Interruption::Lost(why),
            compacted => Interruption::Gap(format!("revision {compacted} is compacted")),
        });
    }
    if is_progress(&response) {
        scope.advance(header.revision, &header);
    } else if !response.events.is_empty() {
        scope.apply(response.events, &header)?;
    }
    Ok(())
}

/// Checks that the scope is still about the same cluster, with the same history.
fn check_cluster(scope: &Scope, header: &ResponseHeader) -> Result<(), Interruption> {
    let Some(known) = scope.published() else { return Ok(()) };
    if header.cluster_id != 0 && header.cluster_id != known.header.cluster_id {
        return Err(Interruption::Replaced(format!(
            "the cluster's ID was {:x} and is {:x}",
            known.header.cluster_id, header.cluster_id
        )));
    }
    Ok(())
}

/// Makes probes while clients use the scope, so that serializable reads can be answered.
pub(super) async fn keep_fresh(scope: &Arc<Scope>, cache: &Arc<Cache>) {
    loop {
        sleep(cache.config.probe_interval).await;
        if scope.idle_time() > cache.config.probe_idle_max || scope.published().is_none() {
            continue;
        }
        let Ok(probe) = cache.probe().await else { continue };
        let deadline = Instant::now() + cache.config.lag_max;
        if scope.wait_for(probe.header.revision, deadline).await.is_some() {
            scope.mark_fresh(probe.started);
        }
    }
}
