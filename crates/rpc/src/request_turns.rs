//! Bounds the bytes of requests that a call takes in one [turn](BulkTurns) of its network thread.
//!
//! A compressed message of 2 KiB may have 2 MiB when it is unpacked. A stream that takes a fixed
//! number of such messages in a turn would hold up all other connections of the thread. So the
//! body of a request waits for a new turn after [`BYTES_PER_TURN`] bytes, compressed or not.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use clearlane_net::bulk_turn::{BulkTurn, BulkTurns};

/// Number of bytes after which a turn ends. One message or chunk may exceed it.
pub(crate) const BYTES_PER_TURN: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct RequestTurns {
    turns: BulkTurns,
    /// Number of bytes that were taken in this turn.
    bytes: usize,
    /// No byte is taken before this turn.
    next: Option<BulkTurn>,
}

impl RequestTurns {
    pub(crate) fn new(turns: BulkTurns) -> RequestTurns {
        RequestTurns { turns, bytes: 0, next: None }
    }

    /// Pending until the call may take more bytes.
    pub(crate) fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.next {
            ready!(Pin::new(turn).poll(context));
            self.next = None;
        }
        Poll::Ready(())
    }

    /// Counts unpacked bytes that the call has taken.
    pub(crate) fn record(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= BYTES_PER_TURN {
            self.bytes = 0;
            self.next = Some(self.turns.request());
        }
    }
}
