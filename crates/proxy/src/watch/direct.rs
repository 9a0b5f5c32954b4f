//! The watches of one client that the cache cannot serve: one stream upstream, with the client's
//! own token.
//!
//! A watch goes upstream if the client has a token, if its range is not cached, or if it starts
//! before the history of the cache. A task holds the stream and passes its responses to the
//! session. When the connection is lost, the session opens a new stream, and creates its watches
//! again from their next revisions.
//!
//! The channel of requests needs no limit. The session takes no request of the client while the
//! unanswered creations have [`UNANSWERED_BYTES_MAX`], so that HTTP/2 slows the client down. It
//! cancels each watch once, and has one request for progress at a time, which it repeats once a
//! second.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Status};

use crate::identity::Caller;
use crate::status;
use crate::upstream::{Upstream, is_transport_error};

/// The client's requests are not read while the creations that the member has not answered have
/// this number of bytes.
const UNANSWERED_BYTES_MAX: usize = 1 << 20;
/// Estimated memory of a creation in addition to its message.
const CREATION_OVERHEAD_BYTES: usize = 256;
/// Number of responses that the session has not yet taken. Then the task does not read, and the
/// member holds further events back.
const UNREAD_RESPONSES_MAX: usize = 4;
/// The member has dropped a request for progress if it was not answered for this time and no
/// response waits. A slower member is suspect long before.
const PROGRESS_DROPPED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) enum DirectEvent {
    Response(WatchResponse),
    /// The connection was lost. Another member can continue.
    Lost,
    /// The member has rejected the token of the proxy's login. A stream with a new token can
    /// continue.
    TokenRejected,
    /// The member has ended the stream. The client gets the same status.
    Ended(Status),
}

#[derive(Debug)]
pub(super) struct DirectStream {
    requests: mpsc::UnboundedSender<WatchRequest>,
    events: mpsc::Receiver<DirectEvent>,
    /// The watches whose creation was not answered, in the order of the requests. A rejection has
    /// no ID, so only the order shows which watch it is about.
    unanswered: VecDeque<Unanswered>,
    unanswered_bytes: usize,
    next_id: i64,
    /// The newest ID of a watch whose creation was answered.
    answered_max: i64,
    progress: ProgressRequests,
}

/// The requests for progress that the member may not have answered. Its answers are in the order of
/// the requests, but it drops a request while a watch is not synced. So an answer may be about any
/// of them, and counts as an answer to the oldest one.
#[derive(Debug, Default)]
struct ProgressRequests {
    /// The time of each request, and the newest answered ID at this time. Oldest first.
    sent: VecDeque<(Instant, i64)>,
    /// True until a request is answered.
    is_waiting: bool,
}

/// A watch whose creation was not answered.
#[derive(Debug)]
struct Unanswered {
    number: u64,
    upstream_id: i64,
    /// Estimated memory of the request.
    bytes: usize,
}

impl ProgressRequests {
    /// Returns true if a request must be sent. `answered_max` is the newest answered ID.
    fn request(&mut self, now: Instant, answered_max: i64) -> bool {
        let is_sent = !std::mem::replace(&mut self.is_waiting, true);
        if is_sent {
            self.sent.push_back((now, answered_max));
        }
        is_sent
    }

    /// Forgets the requests that the member has dropped. No response may wait.
    fn forget_dropped(&mut self, now: Instant) {
        while self.sent.pop_front_if(|(sent, _)| now - *sent > PROGRESS_DROPPED).is_some() {}
    }

    /// Returns true if the outstanding request must be sent again.
    fn repeat(&mut self, now: Instant, answered_max: i64) -> bool {
        if self.is_waiting {
            self.sent.push_back((now, answered_max));
        }
        self.is_waiting
    }

    /// An answer has arrived. Returns the newest ID of the watches that it is about.
    fn answered(&mut self) -> i64 {
        self.is_waiting = false;
        self.sent.pop_front().map_or(0, |(_, answered_max)| answered_max)
    }
}

impl DirectStream {
    pub(super) fn open(upstream: Arc<Upstream>, caller: &Caller) -> DirectStream {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (sender, events) = mpsc::channel(UNREAD_RESPONSES_MAX);
        let request = Request::new(UnboundedReceiverStream::new(receiver));
        let caller = caller.clone();
        tokio::spawn(async move {
            let end = tokio::select! {
                end = run(&upstream, &caller, request, &sender) => end,
                () = sender.closed() => return,
            };
            let _ = sender.send(end).await;
        });
        DirectStream {
            requests,
            events,
            unanswered: VecDeque::new(),
            unanswered_bytes: 0,
            next_id: 1,
            answered_max: 0,
            progress: ProgressRequests::default(),
        }
    }

    /// Creates a watch upstream, and returns its ID there.
    pub(super) fn create(&mut self, watch: u64, create: WatchCreateRequest) -> i64 {
        let watch_id = self.next_id;
        self.next_id += 1;
        let create = WatchCreateRequest { watch_id, ..create };
        let bytes = create.encoded_len() + CREATION_OVERHEAD_BYTES;
        self.unanswered_bytes += bytes;
        self.unanswered.push_back(Unanswered { number: watch, upstream_id: watch_id, bytes });
        self.send(RequestUnion::CreateRequest(create));
        watch_id
    }

    /// Returns false while the member has not answered many creations. Then the client's requests
    /// must wait.
    pub(super) fn has_room(&self) -> bool {
        self.unanswered_bytes < UNANSWERED_BYTES_MAX
    }

    pub(super) fn cancel(&self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    /// Requests progress, unless a request is outstanding. A watch that is created after the
    /// request is not part of the answer: a member may send its creation before an answer that it
    /// has made earlier.
    pub(super) fn request_progress(&mut self) {
        let now = Instant::now();
        if self.events.is_empty() {
            self.progress.forget_dropped(now);
        }
        if self.progress.request(now, self.answered_max) {
            self.send(RequestUnion::ProgressRequest(WatchProgressRequest::default()));
        }
    }

    /// Sends an outstanding request again: a member drops it while a watch is not synced. Does
    /// nothing if responses wait, because one of them may be the answer.
    pub(super) fn repeat_progress(&mut self) {
        let now = Instant::now();
        if !self.events.is_empty() {
            return;
        }
        self.progress.forget_dropped(now);
        if self.progress.repeat(now, self.answered_max) {
            self.send(RequestUnion::ProgressRequest(WatchProgressRequest::default()));
        }
    }

    /// Progress has arrived. Returns the newest ID of the watches that it is about.
    pub(super) fn progress_arrived(&mut self) -> i64 {
        self.progress.answered()
    }

    /// A creation was answered. Returns the number of its watch, and the ID upstream.
    pub(super) fn answered(&mut self) -> Option<(u64, i64)> {
        let Unanswered { number, upstream_id, bytes } = self.unanswered.pop_front()?;
        self.unanswered_bytes -= bytes;
        self.answered_max = self.answered_max.max(upstream_id);
        Some((number, upstream_id))
    }

    fn send(&self, request: RequestUnion) {
        // This fails only if the stream has ended, which the next event reports.
        let _ = self.requests.send(WatchRequest { request_union: Some(request) });
    }

    pub(super) async fn next(&mut self) -> DirectEvent {
        self.events.recv().await.unwrap_or(DirectEvent::Lost)
    }
}

async fn run(
    upstream: &Upstream,
    caller: &Caller,
    mut request: Request<UnboundedReceiverStream<WatchRequest>>,
    responses: &mpsc::Sender<DirectEvent>,
) -> DirectEvent {
    let token = match caller.credentials(upstream).await {
        Ok((metadata, token)) => {
            *request.metadata_mut() = metadata;
            token
        }
        Err(status) => return DirectEvent::Ended(status),
    };
    let member = upstream.wait_and_pick().await;
    let Some((member, channel, generation)) = member.and_then(|member| {
        member.connection().map(|(channel, generation)| (member, channel, generation))
    }) else {
        return DirectEvent::Ended(status::no_member());
    };
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let watched = async {
        let mut stream = client.watch(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            if caller.login().is_some()
                && response.canceled
                && status::is_token_rejection(&response.cancel_reason)
            {
                return Err(status::token_rejected());
            }
            if responses.send(DirectEvent::Response(response)).await.is_err() {
                break;
            }
        }
        Ok::<(), Status>(())
    };
    let ended = tokio::select! {
        ended = watched => ended,
        () = upstream.lost(&member, generation) => return DirectEvent::Lost,
    };
    match ended {
        Ok(()) => DirectEvent::Lost,
        Err(status) if is_transport_error(&status) => {
            member.doubt();
            DirectEvent::Lost
        }
        Err(status) => match caller.login() {
            Some(login) if status::is_token_rejection(status.message()) => {
                login.reject(token.as_ref()).await;
                DirectEvent::TokenRejected
            }
            _ => DirectEvent::Ended(status),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_answer_to_a_repeated_request_is_not_about_later_watches() {
        let (mut progress, now) = (ProgressRequests::default(), Instant::now());
        assert!(progress.request(now, 5));
        assert!(!progress.request(now, 5), "one request is outstanding");
        assert!(progress.repeat(now, 5));
        assert_eq!(progress.answered(), 5);
        // The second answer is in flight when watch 6 is created and progress is requested.
        assert!(progress.request(now, 6));
        assert_eq!(progress.answered(), 5, "it may be the answer to the repeated request");
        assert!(progress.request(now, 6));
        assert_eq!(progress.answered(), 6);
    }

    #[test]
    fn dropped_requests_are_forgotten() {
        let (mut progress, start) = (ProgressRequests::default(), Instant::now());
        assert!(!progress.repeat(start, 1), "there is nothing to repeat");
        assert!(progress.request(start, 1));
        for second in 1..100 {
            let now = start + Duration::from_secs(second);
            progress.forget_dropped(now);
            assert!(progress.repeat(now, 1 + second as i64));
        }
        assert_eq!(progress.sent.len() as u64, PROGRESS_DROPPED.as_secs() + 1);
        assert_eq!(progress.answered(), 95);
    }
}
