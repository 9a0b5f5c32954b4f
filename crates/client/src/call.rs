//! How does a request find somebody to answer it? Attempts, repetitions, and when to stop.
//!
//! ```text
//!   an attempt ends with           a read             a write
//!   ─────────────────────────────────────────────────────────────────────
//!   an answer                      done               done
//!   no connection                  somebody else      somebody else
//!   turned away: no leader here    somebody else      somebody else
//!   turned away: token             a new token, once  a new token, once
//!   the connection broke           somebody else      FateUnknown
//!   time is up                     TimedOut           FateUnknown
//! ```
//!
//! When all endpoints have been tried, there is a short pause and another round, until the time of the
//! request is up. That carries requests over an election, and over the restart of a lone server.
//!
//! # What makes a write repeatable at all
//!
//! Every request but those that are content with a stale answer says `hasleader: true`. A member
//! without a leader then turns it away at the door, where it is certain that nothing was done. Without
//! that word the member would take the request, wait for a leader, and give up: and nobody could tell
//! whether the write is in its log.

use std::sync::Arc;
use std::time::Duration;

use clearlane_proto::etcdserverpb::AuthenticateRequest;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::Client;
use crate::error::{Error, Result, Verdict, told};
use crate::pause::Pause;
use crate::place::{Place, Places};

/// Nothing takes so long: a request without a limit.
const FOR_EVER: Duration = Duration::from_secs(86_400 * 365);

pub(crate) type Token = MetadataValue<Ascii>;

/// How a request may be treated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Only a member that knows of a leader may take it.
    wants_leader: bool,
    /// Doing it twice is the same as doing it once.
    may_repeat: bool,
    /// It ends when the time for requests is up.
    has_limit: bool,
    /// Asks each endpoint again and again.
    has_patience: bool,
}

impl Way {
    /// Changes nothing.
    pub(crate) const READ: Way =
        Way { wants_leader: true, may_repeat: true, has_limit: true, has_patience: true };
    /// Changes nothing, and is content with what any member has.
    pub(crate) const LOCAL: Way = Way { wants_leader: false, ..Way::READ };
    /// Changes something.
    pub(crate) const WRITE: Way = Way { may_repeat: false, ..Way::READ };
    /// Changes something, as long as that takes. To wait for a lock, too: a member that gives up for a client
    /// takes back the client's place in line, at any time later, and that may be the place he has by then
    /// asked for elsewhere.
    pub(crate) const LONG_WRITE: Way = Way { has_limit: false, ..Way::WRITE };
    /// About the member that answers, and of interest only now.
    pub(crate) const MEMBER: Way = Way { has_patience: false, ..Way::LOCAL };
    /// The same, as long as it takes, and not twice.
    pub(crate) const MEMBER_WORK: Way = Way { has_limit: false, may_repeat: false, ..Way::MEMBER };
    /// The beginning of a stream; whoever needs it begins again.
    pub(crate) const STREAM: Way = Way { has_patience: false, ..Way::READ };

    fn mark(self, head: &mut MetadataMap, token: Option<&Token>) {
        if self.wants_leader {
            head.insert("hasleader", MetadataValue::from_static("true"));
        }
        if let Some(token) = token {
            head.insert("token", token.clone());
        }
    }
}

/// Why nobody has answered.
enum Failed {
    /// The token was not taken; the server's words.
    Token(Error),
    /// For good.
    Error(Error),
}

/// One request on its way from endpoint to endpoint.
struct Attempts<'a> {
    places: &'a Places,
    way: Way,
    timeout: Duration,
    /// Not after this one.
    until: Instant,
    tried: Vec<bool>,
    pause: Pause,
    last: Option<Error>,
    /// In this round, all have said that it is not for them.
    is_hopeless: bool,
}

impl<'a> Attempts<'a> {
    fn new(client: &'a Client, way: Way) -> Attempts<'a> {
        let timeout = client.shared.options.request_timeout;
        Attempts {
            places: &client.places,
            way,
            timeout,
            until: Instant::now() + timeout,
            tried: Vec::new(),
            pause: Pause::new(),
            last: None,
            is_hopeless: true,
        }
    }

    /// When an attempt that begins now has to end.
    fn deadline(&self) -> Instant {
        if self.way.has_limit { self.until } else { Instant::now() + FOR_EVER }
    }

    /// Whom to ask next.
    async fn next(&mut self) -> Result<Arc<Place>> {
        loop {
            if let Some(place) = self.places.next(&mut self.tried) {
                return Ok(place);
            }
            let next = Instant::now() + self.pause.next();
            if next >= self.until || self.is_hopeless || !self.way.has_patience {
                let nobody = || Error::Unavailable("no endpoint was asked".to_owned());
                return Err(self.last.take().unwrap_or_else(nobody));
            }
            sleep_until(next).await;
            self.tried.clear();
            self.is_hopeless = true;
        }
    }

    /// After an attempt that began then: whether there may be another.
    fn failed(
        &mut self,
        place: &Arc<Place>,
        began: Instant,
        status: &Status,
    ) -> std::result::Result<(), Failed> {
        let words = || format!("{}: {}", place.url(), told(status));
        let error = match Verdict::of(status) {
            Verdict::Answer => return Err(Failed::Error(Error::of(status))),
            Verdict::Token => return Err(Failed::Token(Error::of(status))),
            Verdict::TurnedAway => Error::of(status),
            Verdict::NotSent => Error::Unavailable(words()),
            Verdict::Unknown if self.way.may_repeat => Error::Unavailable(words()),
            Verdict::Unknown => {
                place.set_aside();
                return Err(Failed::Error(Error::FateUnknown(words())));
            }
        };
        if !matches!(error, Error::NotLeader) {
            place.set_aside();
        }
        // Nobody becomes the leader, or a voter, because he is asked again.
        self.is_hopeless &= matches!(error, Error::NotLeader | Error::FailedPrecondition(_));
        self.last = Some(error);
        if !self.way.has_limit && began.elapsed() >= self.timeout {
            // It waited for long and then broke: the time for failing begins now.
            self.until = Instant::now() + self.timeout;
        }
        Ok(())
    }

    fn timed_out(&self, place: &Arc<Place>) -> Error {
        place.set_aside();
        let words = format!("{} in {:?}", place.url(), self.timeout);
        match self.way.may_repeat {
            true => Error::TimedOut(words),
            false => Error::FateUnknown(format!("no answer from {words}")),
        }
    }
}

impl Client {
    /// Asks until somebody answers.
    pub(crate) async fn call<Q, R, F, A>(&self, way: Way, request: Q, send: F) -> Result<R>
    where
        Q: Clone,
        F: Fn(Channel, Request<Q>) -> A,
        A: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        self.call_at(way, request, send).await.map(|(_, reply)| reply)
    }

    /// The same, and says who has answered.
    pub(crate) async fn call_at<Q, R, F, A>(
        &self,
        way: Way,
        request: Q,
        send: F,
    ) -> Result<(Arc<Place>, R)>
    where
        Q: Clone,
        F: Fn(Channel, Request<Q>) -> A,
        A: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        let token = self.token(None).await?;
        match self.carry(way, token.as_ref(), &request, &send).await {
            Err(Failed::Token(error)) if self.shared.options.credentials.is_none() => Err(error),
            Err(Failed::Token(_)) => {
                let token = self.token(Some(token)).await?;
                self.carry(way, token.as_ref(), &request, &send).await.map_err(Failed::into_error)
            }
            done => done.map_err(Failed::into_error),
        }
    }

    async fn carry<Q, R, F, A>(
        &self,
        way: Way,
        token: Option<&Token>,
        request: &Q,
        send: &F,
    ) -> std::result::Result<(Arc<Place>, R), Failed>
    where
        Q: Clone,
        F: Fn(Channel, Request<Q>) -> A,
        A: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        let mut attempts = Attempts::new(self, way);
        loop {
            let place = attempts.next().await.map_err(Failed::Error)?;
            let mut message = Request::new(request.clone());
            way.mark(message.metadata_mut(), token);
            let began = Instant::now();
            match timeout_at(attempts.deadline(), send(place.channel(), message)).await {
                Ok(Ok(reply)) => {
                    place.is_well();
                    return Ok((place, reply.into_inner()));
                }
                Ok(Err(status)) => attempts.failed(&place, began, &status)?,
                Err(_) => return Err(Failed::Error(attempts.timed_out(&place))),
            }
        }
    }

    /// The token for a request; a new one, if the one that the caller had (`refused`) is still ours.
    pub(crate) async fn token(&self, refused: Option<Option<Token>>) -> Result<Option<Token>> {
        let Some(credentials) = &self.shared.options.credentials else { return Ok(None) };
        // Whoever comes while somebody fetches a token waits here, and finds it.
        let mut held = self.shared.token.lock().await;
        let is_good = match (&*held, &refused) {
            (Some(_), None) => true,
            (Some(held), Some(refused)) => held != refused,
            (None, _) => false,
        };
        if !is_good {
            let (name, password) = (credentials.name.clone(), credentials.password.clone());
            let request = AuthenticateRequest { name, password };
            let send = |channel, request| async move {
                AuthClient::new(channel).authenticate(request).await
            };
            *held = Some(match self.carry(Way::READ, None, &request, &send).await {
                Ok((_, reply)) => Some(
                    reply
                        .token
                        .parse()
                        .map_err(|_| Error::Unexpected("a token that is no text"))?,
                ),
                // Who has a password where none is wanted may come in, too.
                Err(Failed::Error(Error::AuthNotEnabled)) => None,
                Err(failed) => return Err(failed.into_error()),
            });
        }
        Ok(held.clone().flatten())
    }
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Failed::Token(error) | Failed::Error(error) => error,
        }
    }
}
