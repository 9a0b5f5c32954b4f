//! A stream of watches at one member, as etcd serves it.
//!
//! A watch that starts in the past is *unsynced*: the member sends batches of old revisions, whose
//! headers are newer than their events. A request for progress is dropped while any watch of the
//! stream is unsynced.

use clearlane_proto::etcdserverpb::watch_create_request::FilterType;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use clearlane_proto::mvccpb::Event;
use clearlane_proto::mvccpb::event::EventType;
use clearlane_proxy::cache::range::Span;
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::world::{Time, World, header, revision_of};

const PROGRESS_ID: i64 = -1;

/// Who has opened a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Feed(usize),
    Session(usize),
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) owner: Owner,
    pub(super) member: usize,
    user: Option<usize>,
    watches: Vec<UpstreamWatch>,
    /// Messages arrive in order, so none arrives before these times.
    pub(super) last_request: Time,
    pub(super) last_response: Time,
}

#[derive(Debug)]
struct UpstreamWatch {
    create: WatchCreateRequest,
    span: Span,
    /// All events below this revision were sent.
    next: i64,
}

impl Stream {
    pub(super) fn new(owner: Owner, member: usize, user: Option<usize>) -> Stream {
        Stream { owner, member, user, watches: Vec::new(), last_request: 0, last_response: 0 }
    }

    /// Handles a request at the member.
    pub(super) fn handle(&mut self, world: &World, request: RequestUnion) -> Vec<WatchResponse> {
        let revision = world.members[self.member].revision;
        let message = WatchResponse {
            header: Some(header(self.member, revision)),
            ..WatchResponse::default()
        };
        match request {
            RequestUnion::CreateRequest(create) => self.create(world, create, message),
            RequestUnion::CancelRequest(cancel) => {
                let known = self.watches.len();
                self.watches.retain(|watch| watch.create.watch_id != cancel.watch_id);
                let response =
                    WatchResponse { watch_id: cancel.watch_id, canceled: true, ..message };
                if self.watches.len() < known { vec![response] } else { Vec::new() }
            }
            RequestUnion::ProgressRequest(_) => {
                let is_synced = self.watches.iter().all(|watch| watch.next > revision);
                let response = WatchResponse { watch_id: PROGRESS_ID, ..message };
                if is_synced { vec![response] } else { Vec::new() }
            }
        }
    }

    fn create(
        &mut self,
        world: &World,
        create: WatchCreateRequest,
        message: WatchResponse,
    ) -> Vec<WatchResponse> {
        let member = &world.members[self.member];
        let span = Span::of_request(&create.key, &create.range_end);
        if !member.auth.permits(self.user, &span) {
            let reason = match self.user {
                None => "rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
                Some(_) => {
                    "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
                }
            };
            return vec![WatchResponse {
                watch_id: PROGRESS_ID,
                created: true,
                canceled: true,
                cancel_reason: reason.to_owned(),
                ..message
            }];
        }
        let next = match create.start_revision {
            0 => member.revision + 1,
            start => start,
        };
        let response = WatchResponse { watch_id: create.watch_id, created: true, ..message };
        self.watches.push(UpstreamWatch { create, span, next });
        vec![response]
    }

    /// Sends some of the events that the member has applied. Returns true if there may be more.
    pub(super) fn pump(
        &mut self,
        world: &World,
        random: &mut SmallRng,
    ) -> (Vec<WatchResponse>, bool) {
        let member = &world.members[self.member];
        let (mut responses, mut has_more) = (Vec::new(), false);
        self.watches.retain_mut(|watch| {
            let message = WatchResponse {
                header: Some(header(self.member, member.revision)),
                watch_id: watch.create.watch_id,
                ..WatchResponse::default()
            };
            if watch.next <= member.revision && watch.next < member.compacted {
                let compact_revision = member.compacted;
                responses.push(WatchResponse { canceled: true, compact_revision, ..message });
                return false;
            }
            let to = member.revision.min(watch.next + random.random_range(0..4));
            let missed = world.events(&watch.span, watch.next..=to);
            let events: Vec<_> = missed.filter_map(|event| wanted(&watch.create, event)).collect();
            if !events.is_empty() {
                responses.push(WatchResponse { events, ..message });
            } else if watch.create.progress_notify
                && watch.next > member.revision
                && random.random_bool(0.05)
            {
                responses.push(message);
            }
            watch.next = watch.next.max(to + 1);
            has_more |= watch.next <= member.revision;
            true
        });
        (responses, has_more)
    }
}

/// Returns the event as the watch wants it, or `None` if its filters exclude it.
pub(super) fn wanted(create: &WatchCreateRequest, event: &Event) -> Option<Event> {
    debug_assert!(revision_of(event) > 0);
    let filter = match event.r#type() {
        EventType::Put => FilterType::Noput,
        EventType::Delete => FilterType::Nodelete,
    };
    let mut event = event.clone();
    if !create.prev_kv {
        event.prev_kv = None;
    }
    (!create.filters.contains(&(filter as i32))).then_some(event)
}
