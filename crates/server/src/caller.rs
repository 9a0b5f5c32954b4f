//! May this member answer this caller at all? What is asked of every call, whatever it is about.
//!
//! Three questions, in etcd's order:
//!
//! 1. **A learner** has not all that was agreed on, and answers only what is about itself:
//!    [`Who::Anybody`] is for its status, its copy of the store and serializable ranges.
//! 2. **The version of the client's API**, if it names one, must be text.
//! 3. **A leader**: a client that says `hasleader: true` would rather go to another member than wait
//!    at one that is cut off. It is told so at once; a stream that runs is ended when its member
//!    has known of no leader for three election time-outs ([`while_led`]).
//!
//! A caller may say [how long he waits](patience). Who waits for the log is answered then, with
//! `DeadlineExceeded`, and forgotten: mostly his own library has told him already.
//!
//! What a caller may see and change is asked further down.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use clearlane_member::{Handle, Trouble};
use clearlane_raft_log::driver::Leadership;
use http::HeaderMap;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::Status;

use crate::status;

/// After so many election time-outs without a leader a stream is ended.
const PATIENCE: u32 = 3;

/// Who may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Any member.
    Anybody,
    /// One that votes.
    Voters,
}

/// Whether this member may answer a call with this head.
pub fn admit(member: &Handle, head: &HeaderMap, who: Who) -> Result<(), Status> {
    let node = member.node();
    if who == Who::Voters && node.status().is_learner() {
        return Err(status::of(&Trouble::Learner));
    }
    if head.get("client-api-version").is_some_and(|version| version.to_str().is_err()) {
        return Err(status::of(&Trouble::BadApiVersion));
    }
    match requires_leader(head) && node.status().leader() == 0 {
        true => Err(status::of(&Trouble::NoLeader)),
        false => Ok(()),
    }
}

/// How long a caller waits, if he says so in a way that makes sense: up to eight digits, and a unit.
pub fn patience(head: &HeaderMap) -> Option<Duration> {
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

fn requires_leader(head: &HeaderMap) -> bool {
    head.get("hasleader").is_some_and(|value| value == "true")
}

/// A stream that ends with an error when its member has been without a leader for too long, if its
/// caller wants that.
pub fn while_led<S>(member: &Handle, head: &HeaderMap, stream: S) -> Led<S> {
    let node = member.node();
    let lost = requires_leader(head).then(|| {
        let waits: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(lost(node.leadership(), node.election_timeout() * PATIENCE));
        waits
    });
    Led { stream: Box::pin(stream), lost, ended: false }
}

/// Waits until nobody has led for so long.
async fn lost(mut leadership: watch::Receiver<Leadership>, patience: Duration) {
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

/// See [`while_led`].
pub struct Led<S> {
    stream: Pin<Box<S>>,
    lost: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    ended: bool,
}

impl<T, S: Stream<Item = Result<T, Status>>> Stream for Led<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(lost) = &mut self.lost
            && lost.as_mut().poll(context).is_ready()
        {
            self.ended = true;
            return Poll::Ready(Some(Err(status::of(&Trouble::NoLeader))));
        }
        self.stream.as_mut().poll_next(context)
    }
}

impl<S> std::fmt::Debug for Led<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Led").field("ended", &self.ended).finish_non_exhaustive()
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
            super::patience(&head)
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
        assert_eq!(super::patience(&HeaderMap::new()), None);
    }
}
