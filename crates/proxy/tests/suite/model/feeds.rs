//! The feeds of the scopes. [`feed::watch_request`] and [`feed::handle`] are real; connections,
//! lists and delays are simulated.

use std::sync::Arc;
use std::time::Duration;

use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchProgressRequest, WatchResponse};
use clearlane_proxy::cache::budget::Refusal;
use clearlane_proxy::cache::contents::HistoryLimits;
use clearlane_proxy::cache::feed::{self, Interruption};
use clearlane_proxy::cache::range::Span;
use clearlane_proxy::cache::scope::{Reached, Scope};

use super::bugs::Bug;
use super::probes::{Probed, Waiter};
use super::streams::Owner;
use super::world::{Time, header};
use super::{Action, EPOCH, LAG_MAX, Simulation};

/// A request for progress is repeated after this time.
const PROGRESS_REPEAT: Time = 50;

#[derive(Debug)]
pub(super) struct Feed {
    pub(super) scope: Arc<Scope>,
    pub(super) stream: Option<u64>,
    /// When progress was requested that has not arrived.
    requested: Option<Time>,
    /// The newest revision in any header, for planted bugs.
    pub(super) newest_header: i64,
    /// Successful probes that the scope has not reached, with their deadlines.
    unreached: Vec<(Probed, Time)>,
}

impl Feed {
    pub(super) fn new(span: Span, revisions_max: usize) -> Feed {
        let limits = HistoryLimits { revisions_max, bytes_max: usize::MAX };
        let scope = Scope::new(span, limits, Arc::default());
        Feed { scope, stream: None, requested: None, newest_header: 0, unreached: Vec::new() }
    }
}

/// The steps of a feed without a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum FeedStep {
    Connect,
    List,
    /// A list of this revision has arrived.
    Listed(i64),
}

impl Simulation {
    pub(super) fn feed_step(&mut self, number: usize, step: FeedStep) {
        let scope = Arc::clone(&self.feeds[number].scope);
        match step {
            FeedStep::Connect if scope.revision() == 0 => {
                self.after(1..10, Action::Feed(number, FeedStep::List));
            }
            FeedStep::Connect => self.watch_upstream(number),
            FeedStep::List => {
                if self.world.auth().permits(None, &scope.span) {
                    let revision = self.world.revision;
                    self.after(1..30, Action::Feed(number, FeedStep::Listed(revision)));
                } else {
                    let why = "auth is enabled".to_owned();
                    let refused = Interruption::Refused(Refusal::NotPermitted, why);
                    self.interrupt(number, refused);
                }
            }
            FeedStep::Listed(revision) => {
                let records = self.world.state(&scope.span, revision);
                let keys = records.iter().map(|record| (**record).clone()).collect();
                scope.load(scope.new_contents(keys, revision), &header(0, revision), EPOCH);
                self.feeds[number].newest_header = revision;
                self.watch_upstream(number);
                self.scopes_changed();
            }
        }
    }

    fn watch_upstream(&mut self, number: usize) {
        let Some(stream) = self.open_stream(Owner::Feed(number), None) else {
            return self.interrupt(number, Interruption::Lost("no member".to_owned()));
        };
        let feed = &mut self.feeds[number];
        feed.stream = Some(stream);
        feed.requested = None;
        let mut create = feed::watch_request(&feed.scope);
        if self.bug == Some(Bug::ResumesAfterHeader) {
            create.start_revision = feed.newest_header + 1;
        }
        self.send_upstream(stream, RequestUnion::CreateRequest(create));
    }

    pub(super) fn feed_response(&mut self, number: usize, response: WatchResponse) {
        let feed = &mut self.feeds[number];
        let revision = response.header.as_ref().unwrap().revision;
        feed.newest_header = feed.newest_header.max(revision);
        let is_progress = response.events.is_empty() && !response.created && !response.canceled;
        if is_progress {
            feed.requested = None;
        }
        if let Err(interruption) = feed::handle(&feed.scope, response) {
            self.interrupt(number, interruption);
        }
        if is_progress && self.bug == Some(Bug::ProgressAsProbe) {
            self.reads_saw_progress(number, revision);
        }
        self.scopes_changed();
    }

    /// Does what `feed::run` does after an interruption.
    pub(super) fn interrupt(&mut self, number: usize, interruption: Interruption) {
        if let Some(stream) = self.feeds[number].stream.take() {
            self.streams.remove(&stream);
        }
        let scope = Arc::clone(&self.feeds[number].scope);
        let delay = match interruption {
            Interruption::Lost(_) => 1..30,
            Interruption::Gap(_) => {
                scope.reset();
                1..30
            }
            Interruption::Replaced(why) => unreachable!("the cluster is never replaced: {why}"),
            Interruption::Refused(..) => {
                scope.reset();
                20..60
            }
        };
        self.after(delay, Action::Feed(number, FeedStep::Connect));
        self.scopes_changed();
    }

    /// Requests progress if somebody waits for it.
    pub(super) fn feed_tick(&mut self, number: usize) {
        let now = self.now;
        let feed = &mut self.feeds[number];
        feed.unreached.retain(|(_, deadline)| *deadline > now);
        let is_due = match feed.requested {
            None => feed.scope.take_wants_progress(),
            Some(time) => time + PROGRESS_REPEAT <= now,
        };
        if is_due && let Some(stream) = feed.stream {
            feed.requested = Some(now);
            let request = RequestUnion::ProgressRequest(WatchProgressRequest::default());
            self.send_upstream(stream, request);
        }
        self.after(5..15, Action::FeedTick(number));
    }

    pub(super) fn keep_fresh(&mut self, number: usize) {
        if self.feeds[number].scope.published().is_some() {
            self.probe(Waiter::Freshness(number));
        }
        self.after(40..80, Action::KeepFresh(number));
    }

    pub(super) fn freshness_probed(&mut self, number: usize, probed: Option<Probed>) {
        let deadline = self.now + LAG_MAX;
        self.feeds[number].unreached.extend(probed.map(|probed| (probed, deadline)));
    }

    pub(super) fn mark_fresh(&self, scope: &Scope, started: Time) {
        scope.mark_fresh(self.start + Duration::from_millis(started));
    }

    pub(super) fn is_fresh(&self, scope: &Scope) -> bool {
        let now = self.start + Duration::from_millis(self.now);
        scope.is_fresh_at(now, Duration::from_millis(LAG_MAX))
    }

    /// Returns the feed of the scope that `Cache::covering` returns.
    pub(super) fn covering(&self, span: &Span) -> Option<usize> {
        let is_usable = |feed: &Feed| feed.scope.span.covers(span) && feed.scope.revision() != 0;
        self.feeds.iter().position(is_usable)
    }

    /// Lets all continue who wait for a revision of a scope.
    pub(super) fn scopes_changed(&mut self) {
        for number in 0..self.feeds.len() {
            let scope = Arc::clone(&self.feeds[number].scope);
            for (probed, deadline) in std::mem::take(&mut self.feeds[number].unreached) {
                match scope.reached(probed.revision) {
                    Reached::Yes(_) => self.mark_fresh(&scope, probed.started),
                    Reached::Reset => {}
                    Reached::NotYet => {
                        scope.want_progress();
                        self.feeds[number].unreached.push((probed, deadline));
                    }
                }
            }
        }
        self.continue_reads();
        self.continue_sessions();
    }
}
