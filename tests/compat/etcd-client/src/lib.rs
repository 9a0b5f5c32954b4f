//! Servers for the tests of a client from another project: the real program, over real sockets.
//!
//! The environment variable `CLEARLANE` names the program. It may also name etcd's program, so a
//! test must pass with both programs. A [`Cluster`] is one process of this program or several, each
//! with its own ports:
//!
//! ```text
//!   Cluster::one()    ──▶ m0 :20114 (clients) :20115 (peers)   data and log in a new directory
//!   Cluster::three()  ──▶ m0, m1, m2
//!     │ stop(1)       ──▶ m1 is killed, as if it had crashed
//!     │ start(1)      ──▶ m1 is back, on the same ports and the same data
//!     └ dropped       ──▶ all are killed; if the test failed, the ends of their logs are shown
//! ```
//!
//! A test has its own servers, so it knows all revisions in advance. Instead of sleeping for a
//! fixed time, a test calls [`until`], which repeats a query for at most [`PATIENCE`].

mod cluster;
mod ports;

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use etcd_client::{Error, WatchResponse, WatchStream};
use tonic::Code;

pub use cluster::Cluster;

/// The longest time to wait for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause of [`until`] between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits for a future, and panics after [`PATIENCE`].
pub async fn soon<T>(what: &str, coming: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, coming).await {
        Ok(come) => come,
        Err(_) => panic!("{what}: nothing within {PATIENCE:?}"),
    }
}

/// Repeats a query until its result is not `None`, and returns the value. Panics after
/// [`PATIENCE`].
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            match ask().await {
                Some(value) => break value,
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    soon(what, asking).await
}

/// Returns the next message of a watch.
pub async fn next(stream: &mut WatchStream) -> WatchResponse {
    let message = soon("the next message of a watch", stream.message()).await;
    message.expect("the watch goes on").expect("the stream goes on")
}

/// Asserts that the server has rejected a request with this code and exactly this message.
#[track_caller]
pub fn assert_refused<T: Debug>(answer: Result<T, Error>, code: Code, words: &str) {
    match answer {
        Err(Error::GRpcStatus(status)) => {
            assert_eq!((status.code(), status.message()), (code, words));
        }
        other => panic!("refused with {code:?} {words:?} was expected, and came {other:?}"),
    }
}
