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
