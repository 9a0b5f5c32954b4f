//! Limits the request bytes that a call of tonic's services reads in one [turn](BulkTurns) of its
//! network thread.
//!
//! A compressed message of 2 KiB may have 2 MiB when it is decompressed. A stream that reads a
//! fixed number of such messages in a turn would delay all other connections of the thread. So the
//! body of a request waits for a new turn after [`BYTES_PER_TURN`] decompressed bytes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use clearlane_net::bulk_turn::{BulkTurn, BulkTurns};

/// A turn ends after this number of bytes. The last message or chunk of a turn may exceed it.
pub(crate) const BYTES_PER_TURN: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct RequestTurns {
    turns: BulkTurns,
    /// Number of bytes that were read in this turn.
    bytes: usize,
    /// The turn that the call has requested, and before which it reads no bytes. `None` while the
    /// call may read.
    next: Option<BulkTurn>,
}

impl RequestTurns {
    pub(crate) fn new(turns: BulkTurns) -> RequestTurns {
        RequestTurns { turns, bytes: 0, next: None }
    }

    /// Returns `Pending` until the call may read more bytes.
    pub(crate) fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.next {
            ready!(Pin::new(turn).poll(context));
            self.next = None;
        }
        Poll::Ready(())
    }

    /// Counts decompressed bytes that the call has read.
    pub(crate) fn record(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= BYTES_PER_TURN {
            self.bytes = 0;
            self.next = Some(self.turns.request());
        }
    }
}
