//! The answer to a range, from stored records to bytes.
//!
//! The store keeps a record as an encoded `KeyValue`, and an answer has it in that form, too. So
//! nothing is decoded here: between the store's page and the socket a value is copied once.
//!
//! ```text
//!   0 │ length │ header │ tag length record │ tag length record │ ... │ more │ count
//!     └────────── said first: known before the first record goes ────────────┘
//! ```
//!
//! A small answer is one piece of memory. A large one is encoded in pieces of 64 KiB, each when the
//! connection can take it, and after each piece others on the thread get their turn.

use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_member::range::{About, Found, Long, Records};
use http::Response;
use http_body::Frame;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;

use super::body::Error;
use super::unary::{PREFIX, frame, well};
use super::{Answer, failed};

/// An answer up to this size is encoded at once, and a larger one in pieces of this size.
const PIECE: usize = 64 << 10;
/// As much as fits into one message.
const MESSAGE_MAX: u64 = i32::MAX as u64;

/// The numbers of the answer's fields.
const HEADER: u32 = 1;
const KVS: u32 = 2;
const MORE: u32 = 3;
const COUNT: u32 = 4;

/// What goes out for what a range has found.
pub(crate) fn answer(found: Found) -> Response<Answer> {
    match found {
        Found::Shaped(response) => well(Answer::Message(frame(&response))),
        Found::Records(Records { about, records }) => {
            let encoded = records.iter().map(|record| field_len(record.len()) as u64).sum();
            body(&about, Source::Records(records.into_iter()), encoded)
        }
        Found::Long(found) => {
            let encoded = found.encoded_len();
            body(&found.about.clone(), Source::Long(found), encoded)
        }
    }
}

/// `encoded` is what the records take, with what lies between them.
fn body(about: &About, source: Source, encoded: u64) -> Response<Answer> {
    let tail = tail(about);
    let header = about.header.as_ref().map_or(0, |header| message_len(header.encoded_len()));
    let length = header as u64 + encoded + tail.len() as u64;
    if length > MESSAGE_MAX {
        let why =
            format!("grpc: trying to send message larger than max ({length} vs. {MESSAGE_MAX})");
        return failed(&Status::resource_exhausted(why));
    }
    let is_small = length <= PIECE as u64;
    let mut bytes =
        BytesMut::with_capacity(if is_small { PREFIX + length as usize } else { PIECE });
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    if let Some(header) = &about.header {
        encode_key(HEADER, WireType::LengthDelimited, &mut bytes);
        header.encode_length_delimited(&mut bytes).expect("this memory grows");
    }
    match source {
        Source::Records(records) if is_small => {
            records.for_each(|record| encode(&record, &mut bytes));
            bytes.put(tail);
            well(Answer::Message(bytes.freeze()))
        }
        source => well(Answer::Range(Box::new(Pieces { bytes, source, tail, rests: false }))),
    }
}

fn tail(about: &About) -> Bytes {
    let mut tail = BytesMut::with_capacity(16);
    if about.more {
        encode_key(MORE, WireType::Varint, &mut tail);
        encode_varint(1, &mut tail);
    }
    if about.count != 0 {
        encode_key(COUNT, WireType::Varint, &mut tail);
        encode_varint(about.count as u64, &mut tail);
    }
    tail.freeze()
}

fn encode(record: &[u8], bytes: &mut BytesMut) {
    encode_key(KVS, WireType::LengthDelimited, bytes);
    encode_varint(record.len() as u64, bytes);
    bytes.put_slice(record);
}

fn field_len(record: usize) -> usize {
    key_len(KVS) + encoded_len_varint(record as u64) + record
}

fn message_len(message: usize) -> usize {
    key_len(HEADER) + encoded_len_varint(message as u64) + message
}

/// Where the records come from.
#[derive(Debug)]
enum Source {
    Records(std::vec::IntoIter<Bytes>),
    Long(Long),
}

impl Source {
    /// Some more; nothing at the end.
    fn next(&mut self) -> Result<Option<Vec<Bytes>>, Error> {
        match self {
            Source::Records(records) => {
                let mut left = PIECE;
                let mut piece = Vec::new();
                while left > 0
                    && let Some(record) = records.next()
                {
                    left = left.saturating_sub(record.len());
                    piece.push(record);
                }
                Ok((!piece.is_empty()).then_some(piece))
            }
            Source::Long(found) => Ok(found.next(PIECE)?),
        }
    }
}

/// An answer that is encoded while it is sent.
#[derive(Debug)]
pub struct Pieces {
    /// What is encoded and not sent.
    bytes: BytesMut,
    source: Source,
    tail: Bytes,
    /// A piece has just gone: now it is the others' turn.
    rests: bool,
}

impl Pieces {
    /// How long the whole message is, if nothing of it has gone.
    pub(super) fn message_len(&self) -> usize {
        let length = self.bytes.get(1..PREFIX).and_then(|length| length.try_into().ok());
        length.map_or(0, |length| u32::from_be_bytes(length) as usize)
    }

    /// The next piece; nothing when the message is complete.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if std::mem::replace(&mut self.rests, false) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.rests = true;
        Poll::Ready(self.piece().transpose().map(|piece| piece.map(Frame::data)))
    }

    fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        match self.source.next()? {
            Some(records) => {
                self.bytes.reserve(records.iter().map(|record| field_len(record.len())).sum());
                records.iter().for_each(|record| encode(record, &mut self.bytes));
            }
            None => self.bytes.put(std::mem::take(&mut self.tail)),
        }
        let piece = std::mem::take(&mut self.bytes).freeze();
        Ok((!piece.is_empty()).then_some(piece))
    }
}
