//! Servers for the tests of a client that we did not write: the real program, over real sockets.
//!
//! The program is named by the variable `CLEARLANE`. It may be etcd's: what a test expects must be
//! true of both. A [`Cluster`] is one program or several, on ports of their own:
//!
//! ```text
//!   Cluster::one()    ──▶ m0 :20114 (clients) :20115 (peers)   data and log in a new directory
//!   Cluster::three()  ──▶ m0, m1, m2
//!     │ stop(1)       ──▶ m1 is killed, as by a power cut
//!     │ start(1)      ──▶ m1 is back, on the same ports and the same data
//!     └ dropped       ──▶ all are killed; if the test failed, the ends of their logs are shown
//! ```
//!
//! A test has its own servers, so it knows every revision beforehand. Instead of sleeping for a
//! time, [`until`] asks again, for [`PATIENCE`] at most.

mod cluster;
mod ports;

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use etcd_client::{Error, WatchResponse, WatchStream};
use tonic::Code;

pub use cluster::Cluster;

/// So long at most may anything take that is expected to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often [`until`] asks.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits for what should come, and panics if it does not.
pub async fn soon<T>(what: &str, coming: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, coming).await {
        Ok(come) => come,
        Err(_) => panic!("{what}: nothing within {PATIENCE:?}"),
    }
}

/// Asks until the answer is a value.
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

/// The next message of a watch.
pub async fn next(stream: &mut WatchStream) -> WatchResponse {
    let message = soon("the next message of a watch", stream.message()).await;
    message.expect("the watch goes on").expect("the stream goes on")
}

/// The server refused, with this code and exactly these words.
#[track_caller]
pub fn assert_refused<T: Debug>(answer: Result<T, Error>, code: Code, words: &str) {
    match answer {
        Err(Error::GRpcStatus(status)) => {
            assert_eq!((status.code(), status.message()), (code, words));
        }
        other => panic!("refused with {code:?} {words:?} was expected, and came {other:?}"),
    }
}
