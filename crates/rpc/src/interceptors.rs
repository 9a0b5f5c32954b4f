//! Checks before every call: may this member serve the call? The checks use the state of the member
//! and the head of the call, but not the messages of the call.
//!
//! The checks are in etcd's order:
//!
//! 1. **A learner** lacks a part of the committed data, so it serves only its status, snapshots of
//!    its store, and serializable calls of Range. [`RequiredRole::Any`] lets a learner pass this
//!    check; the service KV then rejects all its calls except serializable calls of Range.
//! 2. **The client's API version**, if it is set, must be text.
//! 3. **A leader**: with `hasleader: true`, a call fails immediately on a member that knows no
//!    leader. With the same header, a stream of watches, keep-alives, Observe or Snapshot ends
//!    after three election time-outs without a leader ([`require_leader`]).
//!
//! A request that waits for the log ends at its [deadline](grpc_timeout) with `DeadlineExceeded`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use clearlane_contention::now_ns;
use clearlane_raft::Leadership;
use clearlane_replica::RequestError;
use clearlane_server::Server;
use http::HeaderMap;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::Status;

use crate::status;

/// Number of election time-outs without a leader after which a stream ends: etcd's
/// `maxNoLeaderCnt`.
const LEADERLESS_ELECTION_TIMEOUTS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredRole {
    Any,
    Voter,
}

pub(crate) fn check_member_can_serve(
    member: &Server,
    head: &HeaderMap,
    role: RequiredRole,
) -> Result<(), Status> {
    let node = member.threads();
    if role == RequiredRole::Voter && node.status().is_learner() {
        return Err(status::from_error(RequestError::NotSupportedForLearner));
    }
    if head.get("client-api-version").is_some_and(|version| version.to_str().is_err()) {
        return Err(status::from_error(RequestError::InvalidApiVersion));
    }
    if requires_leader(head) && node.status().leader() == 0 {
        Err(status::from_error(RequestError::NoLeader))
    } else {
        Ok(())
    }
}

/// Reads `grpc-timeout`: up to eight digits and a unit. Returns `None` if it is absent or
/// malformed.
pub(crate) fn grpc_timeout(head: &HeaderMap) -> Option<Duration> {
    let text = head.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Returns the deadline of a call, on the clock of [`now_ns`]. Returns `None` if the call has no
/// deadline.
pub(crate) fn deadline_ns(head: &HeaderMap) -> Option<u64> {
    let patience = u64::try_from(grpc_timeout(head)?.as_nanos()).unwrap_or(u64::MAX);
    Some(now_ns().saturating_add(patience))
}

fn requires_leader(head: &HeaderMap) -> bool {
    head.get("hasleader").is_some_and(|value| value == "true")
}

/// Wraps a stream. If the caller requires a leader, the stream ends with an error when this member
/// has had no leader for too long.
pub(crate) fn require_leader<S>(
    member: &Server,
    head: &HeaderMap,
    stream: S,
) -> RequireLeaderStream<S> {
    let node = member.threads();
    let lost = requires_leader(head).then(|| {
        let waits: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(wait_until_leader_lost(
            node.leadership(),
            node.election_timeout() * LEADERLESS_ELECTION_TIMEOUTS_MAX,
        ));
        waits
    });
    RequireLeaderStream { stream: Box::pin(stream), leader_lost: lost, is_ended: false }
}

/// Returns when there has been no leader for `patience`, or when the member has stopped.
async fn wait_until_leader_lost(mut leadership: watch::Receiver<Leadership>, patience: Duration) {
    loop {
        if leadership.wait_for(|now| now.leader == 0).await.is_err() {
            return;
        }
        let found = leadership.wait_for(|now| now.leader != 0);
        if tokio::time::timeout(patience, found).await.is_err() {
            return;
        }
    }
}

/// The stream that [`require_leader`] returns.
pub struct RequireLeaderStream<S> {
    stream: Pin<Box<S>>,
    leader_lost: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    is_ended: bool,
}

impl<T, S: Stream<Item = Result<T, Status>>> Stream for RequireLeaderStream<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        if let Some(lost) = &mut self.leader_lost
            && lost.as_mut().poll(context).is_ready()
        {
            self.is_ended = true;
            return Poll::Ready(Some(Err(status::from_error(RequestError::NoLeader))));
        }
        self.stream.as_mut().poll_next(context)
    }
}

impl<S> std::fmt::Debug for RequireLeaderStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Led").field("ended", &self.is_ended).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_written_as_grpc_writes_it() {
        let patience = |text: &str| {
            let mut head = HeaderMap::new();
            head.insert("grpc-timeout", text.parse().unwrap());
            super::grpc_timeout(&head)
        };
        for (text, wanted) in [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("99999999S", Duration::from_secs(99_999_999)),
            ("150m", Duration::from_millis(150)),
            ("7u", Duration::from_micros(7)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(patience(text), Some(wanted), "{text}");
        }
        for text in ["", "S", "5", "5s", "+5S", "999999999S", "5 S", "-1S"] {
            assert_eq!(patience(text), None, "{text}");
        }
        assert_eq!(super::grpc_timeout(&HeaderMap::new()), None);
    }
}
