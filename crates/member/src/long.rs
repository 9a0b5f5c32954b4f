//! An answer that is too long to be in memory at once.
//!
//! # The problem
//!
//! How long an answer is must be said before its first byte. But a client may ask for a gigabyte, take a
//! minute to read it, and have a hundred friends who do the same.
//!
//! # The idea
//!
//! ```text
//!   measure    the index knows how long each record is: no record is read for it
//!   next       a piece of the records, behind those of the piece before
//!   next       ...                         each in the read pool, when the connection can take it
//! ```
//!
//! All pieces are read from one view, which nothing changes. So what was measured is what is read, each
//! record is read once, and an answer in flight takes the memory of a piece or two, whatever its size: how
//! large a piece may be, the [shelf](crate::shelf) decides. Between two pieces it is another answer's turn in
//! the [pool](crate::node::ReadPool).
//!
//! The threads of the pool are [late](clearlane_turns::Turn::Late) and read in [`Steps`], so that whoever has less to do
//! on the same core goes first.
//!
//! Where the index [does not know](clearlane_mvcc::key_history::Payload) a length, the records are read to
//! measure them, and read again to be sent.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_turns::Steps;

use crate::error::{Error, Result};
use crate::range::{About, Found, Records, about, decode, options, span};
use crate::requests::{Refused, Stop, apart};

/// An answer up to this size is read at once.
const AT_ONCE: u64 = 256 << 10;
/// To find out how long a record is takes as long as to read so many bytes, if the index knows it.
const KNOWN: usize = 64;

/// A range whose records are read when they are sent.
pub struct Long {
    /// The rest of the answer.
    pub about: About,
    view: Arc<dyn ReadTxn + Send + Sync>,
    /// What is left of it: it begins behind what was read last.
    request: RangeRequest,
    records: u64,
    encoded: u64,
}

impl Long {
    /// Finds out how long a plain range will be, and reads it if it is short.
    pub(crate) fn measure(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> Result<std::result::Result<Found, Refused>> {
        let (records, encoded, count) = match measured(&*view, &request)? {
            Ok(measured) => measured,
            Err(refused) => return Ok(Err(refused)),
        };
        let about = about(&*view, &request, count);
        let mut found = Long { about, view, request, records, encoded };
        Ok(Ok(if encoded > AT_ONCE {
            Found::Long(found)
        } else {
            let records = found.next(usize::MAX)?.unwrap_or_default();
            Found::Records(Records { about: found.about, records })
        }))
    }

    /// How many records are left.
    pub fn records(&self) -> usize {
        self.records as usize
    }

    /// How many bytes the records that are left take, with what lies between them on the wire.
    pub fn encoded_len(&self) -> u64 {
        self.encoded
    }

    /// The next records, about so many bytes; nothing if there are no more.
    pub fn next(&mut self, bytes: usize) -> Result<Option<Vec<Bytes>>> {
        if self.records == 0 {
            return Ok(None);
        }
        let mut piece = Vec::new();
        let (mut left, mut encoded, mut steps) = (bytes, 0, Steps::default());
        let options = options(&self.request);
        let options = RangeOptions { limit: self.records as i64, uncounted: true, ..options };
        self.view.records(span(&self.request).range(), options, &mut |record| {
            // One record may be larger than all of a piece.
            if record.len() > left && !piece.is_empty() {
                return ControlFlow::Break(());
            }
            left = left.saturating_sub(record.len());
            steps.did(record.len());
            encoded += field_len(record.len());
            piece.push(record);
            ControlFlow::Continue(())
        })?;
        self.records = self.records.saturating_sub(piece.len() as u64);
        self.encoded = self.encoded.checked_sub(encoded).ok_or_else(unequal)?;
        let last = piece.last().ok_or_else(unequal)?;
        if self.records == 0 {
            return if self.encoded == 0 { Ok(Some(piece)) } else { Err(unequal()) };
        }
        self.request.key = behind(&decode(last.clone())?.key);
        Ok(Some(piece))
    }
}

/// How many records a range finds, what they take, and how many keys there are.
fn measured(
    view: &dyn ReadTxn,
    request: &RangeRequest,
) -> Result<std::result::Result<(u64, u64, u64), Refused>> {
    let (mut records, mut encoded, mut steps) = (0, 0, Steps::default());
    let mut measure = |record| {
        steps.did(KNOWN);
        records += 1;
        encoded += field_len(record);
        ControlFlow::Continue(())
    };
    let known = view.lengths(span(request).range(), options(request), &mut measure);
    let known = match apart(known.map_err(Stop::from))? {
        Ok(known) => known,
        Err(refused) => return Ok(Err(refused)),
    };
    if let Some(count) = known {
        return Ok(Ok((records, encoded, count)));
    }
    (records, encoded) = (0, 0);
    let count = view.records(span(request).range(), options(request), &mut |record| {
        steps.did(record.len());
        records += 1;
        encoded += field_len(record.len());
        ControlFlow::Continue(())
    });
    Ok(apart(count.map_err(Stop::from))?.map(|count| (records, encoded, count)))
}

fn unequal() -> Error {
    Error::damaged("the store", "the records of a range are not as long as the index says")
}

/// The first key behind this one.
fn behind(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// What a record takes in an answer: its tag, its length, and itself.
fn field_len(record: usize) -> u64 {
    (1 + prost::length_delimiter_len(record) + record) as u64
}

impl std::fmt::Debug for Long {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Long { about, records, encoded, .. } = self;
        f.debug_struct("Long")
            .field("about", about)
            .field("records", records)
            .field("encoded", encoded)
            .finish_non_exhaustive()
    }
}
