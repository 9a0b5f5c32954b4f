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
//! A small answer is one piece of memory. A large one goes in [pieces](Pieces), and after each piece others
//! on the thread get their turn. What is longer still is read and encoded in the read pool, a piece ahead
//! of the connection: this thread only hands it on.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_member::Trouble;
use clearlane_member::in_time::Deadline;
use clearlane_member::long::Long;
use clearlane_member::node::Node;
use clearlane_member::range::{About, Found, Records};
use clearlane_member::shelf::Place;
use clearlane_turns::Steps;
use http::Response;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tokio::sync::oneshot;
use tonic::Status;

use super::Answer;
use super::body::Error;
use super::hot::Asker;
use super::unary::{Encoded, PREFIX, any_message, fits, well};
use crate::one_piece::LongAnswer;

/// An answer up to this size is encoded at once, and a larger one in pieces of this size.
const PIECE: usize = 64 << 10;
/// The pool is asked for more when so many pieces are left.
const AHEAD: usize = 8;

/// The numbers of the answer's fields.
const HEADER: u32 = 1;
const KVS: u32 = 2;
const MORE: u32 = 3;
const COUNT: u32 = 4;

/// What goes out for what a range has found.
pub(crate) fn answer(
    asker: &Asker,
    until_ns: Option<u64>,
    found: Found,
) -> Result<Encoded<'_>, Status> {
    match found {
        Found::Shaped(response) => any_message(&asker.member, response),
        Found::Records(Records { about, records }) => {
            let encoded = records.iter().map(|record| field_len(record.len())).sum();
            let Frame { length, mut bytes, tail } = Frame::around(&about, encoded)?;
            let records = records.into_iter();
            if length > PIECE {
                let source = Source::Records { records, bytes, tail };
                return Ok(Encoded::Now(pieces(length, until_ns, source)));
            }
            bytes.reserve(length);
            records.for_each(|record| encode(&record, &mut bytes));
            bytes.put(tail);
            Ok(Encoded::Now(well(Answer::Message(bytes.freeze()))))
        }
        Found::Long(found) => {
            let encoded = usize::try_from(found.encoded_len()).unwrap_or(usize::MAX);
            let Frame { length, bytes, tail } = Frame::around(&found.about, encoded)?;
            let reading = Reading::begin(asker, found, bytes, tail);
            Ok(Encoded::Now(pieces(length, until_ns, Source::Long(reading))))
        }
    }
}

fn pieces(length: usize, until_ns: Option<u64>, source: Source) -> Response<Answer> {
    let deadline = Deadline::at(until_ns);
    well(Answer::Range(Box::new(Pieces { length, source, deadline, rests: false })))
}

/// What stands around the records of an answer.
struct Frame {
    /// Of the whole message.
    length: usize,
    /// What comes first.
    bytes: BytesMut,
    /// What comes last.
    tail: Bytes,
}

impl Frame {
    /// `encoded` is what the records take, with what lies between them.
    fn around(about: &About, encoded: usize) -> Result<Frame, Status> {
        let tail = tail(about);
        let header = about.header.as_ref().map_or(0, |header| message_len(header.encoded_len()));
        let length = encoded.saturating_add(header + tail.len());
        fits(length as u64)?;
        let mut bytes = BytesMut::with_capacity(PREFIX + header);
        bytes.put_u8(0);
        bytes.put_u32(length as u32);
        if let Some(header) = &about.header {
            encode_key(HEADER, WireType::LengthDelimited, &mut bytes);
            header.encode_length_delimited(&mut bytes).expect("this memory grows");
        }
        Ok(Frame { length, bytes, tail })
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

/// Where the pieces come from.
#[derive(Debug)]
enum Source {
    /// The records are here, to be put behind what is encoded.
    Records { records: std::vec::IntoIter<Bytes>, bytes: BytesMut, tail: Bytes },
    /// The pool reads.
    Long(Reading),
    /// All have gone.
    Over,
}

/// An answer that is read while it is sent.
#[derive(Debug)]
struct Reading {
    /// What the pool has read.
    read: Read,
    /// What it is just reading.
    next: Option<oneshot::Receiver<Result<Read, Error>>>,
    tail: Bytes,
    node: Arc<Node>,
    #[expect(dead_code, reason = "known to the connection until the last piece is handed on")]
    under_way: LongAnswer,
}

/// What the pool has read, and what is left to read behind it, if anything is.
#[derive(Debug, Default)]
struct Read {
    pieces: VecDeque<Bytes>,
    left: Option<Box<Long>>,
    #[expect(dead_code, reason = "taken for as long as the pieces are here")]
    place: Option<Place>,
}

impl Reading {
    fn begin(asker: &Asker, found: Long, head: BytesMut, tail: Bytes) -> Reading {
        let (node, under_way) = (Arc::clone(asker.member.node()), asker.caller.long.begin());
        let next = Some(read(&node, Box::new(found), head, tail.clone()));
        Reading { read: Read::default(), next, tail, node, under_way }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        loop {
            // Not before, or a client that takes nothing would have more in memory.
            if self.read.pieces.len() <= AHEAD
                && let Some(left) = self.read.left.take()
            {
                self.next = Some(read(&self.node, left, BytesMut::new(), self.tail.clone()));
            }
            if let Some(piece) = self.read.pieces.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            let Some(next) = &mut self.next else { return Poll::Ready(None) };
            match ready!(Pin::new(next).poll(context)) {
                Ok(Ok(read)) => (self.read, self.next) = (read, None),
                Ok(Err(error)) => return Poll::Ready(Some(Err(error))),
                Err(_) => return Poll::Ready(Some(Err(Trouble::Stopped.into()))),
            }
        }
    }
}

/// A client that goes away leaves an old view behind, and whoever drops the last hold of it takes it apart. The
/// connections of this thread would wait for that; the pool has the time.
impl Drop for Reading {
    fn drop(&mut self) {
        let read = self.next.take().and_then(|mut next| {
            // A job that waits is passed over then, with all it has; one that is done has left its piece here.
            next.close();
            next.try_recv().ok()?.ok()?.left
        });
        if let Some(left) = self.read.left.take().or(read) {
            // Nobody waits for it: so the job does nothing but end, and what it has ends with it.
            drop(self.node.read_pool().go_on(move || drop(left)));
        }
    }
}

/// Has the pool read and encode what comes next, behind what there is.
fn read(
    node: &Node,
    mut found: Box<Long>,
    head: BytesMut,
    tail: Bytes,
) -> oneshot::Receiver<Result<Read, Error>> {
    let shelf = Arc::clone(node.shelf());
    node.read_pool().go_on(move || {
        let place = Place::on(&shelf, found.encoded_len());
        let records = found.next(place.bytes())?.unwrap_or_default();
        let left = (found.records() > 0).then_some(found);
        let (mut records, mut bytes, mut pieces) = (records.into_iter(), head, VecDeque::new());
        let mut steps = Steps::default();
        while !records.as_slice().is_empty() {
            encode_some(&mut records, &mut bytes);
            steps.did(bytes.len());
            if records.as_slice().is_empty() && left.is_none() {
                bytes.put_slice(&tail);
            }
            pieces.push_back(std::mem::take(&mut bytes).freeze());
        }
        Ok(Read { pieces, left, place: Some(place) })
    })
}

/// An answer that is encoded while it is sent.
#[derive(Debug)]
pub struct Pieces {
    /// Of the whole message.
    length: usize,
    source: Source,
    /// Of the call.
    deadline: Deadline,
    /// A piece has just gone: now it is the others' turn.
    rests: bool,
}

/// The next piece of a message; nothing behind the last.
type Piece = Option<Result<http_body::Frame<Bytes>, Error>>;

/// The deadline has passed.
#[derive(Debug)]
pub(super) struct Late;

impl Pieces {
    /// How long the whole message is.
    pub(super) fn message_len(&self) -> usize {
        self.length
    }

    /// The next piece; nothing when the message is complete, and an error behind the deadline.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Piece, Late>> {
        if self.deadline.has_passed() {
            return Poll::Ready(Err(Late));
        }
        match self.poll_piece(context) {
            Poll::Ready(piece) => Poll::Ready(Ok(piece)),
            Poll::Pending => self.deadline.poll(context).map(|()| Err(Late)),
        }
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Piece> {
        if std::mem::replace(&mut self.rests, false) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = match &mut self.source {
            Source::Over => None,
            Source::Long(reading) => ready!(reading.poll(context)),
            Source::Records { records, bytes, tail } => {
                let mut bytes = std::mem::take(bytes);
                encode_some(records, &mut bytes);
                if records.as_slice().is_empty() {
                    bytes.put_slice(tail);
                    self.source = Source::Over;
                }
                Some(Ok(bytes.freeze()))
            }
        };
        if !matches!(piece, Some(Ok(_))) {
            self.source = Source::Over;
        }
        self.rests = piece.is_some();
        Poll::Ready(piece.map(|piece| piece.map(http_body::Frame::data)))
    }
}

/// Encodes the first of these records, about a piece.
fn encode_some(records: &mut std::vec::IntoIter<Bytes>, bytes: &mut BytesMut) {
    let (mut count, mut length) = (0, bytes.len());
    for record in records.as_slice() {
        if length >= PIECE {
            break;
        }
        count += 1;
        length += field_len(record.len());
    }
    // With room for what comes last.
    bytes.reserve(length - bytes.len() + 32);
    records.take(count).for_each(|record| encode(&record, bytes));
}
