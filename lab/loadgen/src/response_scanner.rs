//! Counts the keys in a response while it arrives, without decoding it.
//!
//! A gRPC message has a prefix of five bytes: a compression flag and the length. A range response
//! has field 2 once per key, and only this field matters. Other responses have another field that
//! is counted ([`ResponseShape`]).
//!
//! ```text
//!   00 00 01 86 a0 │ 0a len header ... │ 12 len key-value ... │ 12 len key-value ... │ 20 count
//!                     1: skipped          2: counted, skipped
//! ```
//!
//! The bytes arrive in chunks that may end anywhere, even within a length. So [`Scanner`] is a
//! state machine. It reads tags and lengths, skips the contents of fields, and stores no bytes. In
//! single messages that are not range responses, field 2 has another meaning. Callers do not check
//! the count of such a message, but a report contains it as `keys_per_answer`.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStats {
    /// How often the counted field occurred. It is the number of keys in a range, or of events in a
    /// watch.
    pub keys: u64,
    /// Bytes of the response so far, with the prefix of each message.
    pub bytes: u64,
}

/// The structure of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseShape {
    /// One message. Field 2 is counted.
    #[default]
    Message,
    /// Messages until the stream ends. Field 1 is entered, and field 2 in it is counted: the keys
    /// of a RangeStream. Other streams, such as a snapshot, have a header in field 1. A header has
    /// only numbers, so it adds nothing to the count.
    Stream,
    /// Messages of a watch, without an end. Field 11 is counted: the events.
    Watch,
    /// One message that answers a keep-alive of a lease. Field 3, the remaining time, is counted.
    /// It is missing if the lease does not exist.
    KeepAlive,
}

/// The field of a watch response that reports a canceled watch: it was rejected or has ended.
const CANCELED_FIELD: u64 = 4;
const CANCELED: ScanError = "the watch was canceled";

impl ResponseShape {
    fn counted_field(self) -> u64 {
        match self {
            ResponseShape::Message | ResponseShape::Stream => 2,
            ResponseShape::Watch => 11,
            ResponseShape::KeepAlive => 3,
        }
    }
}

/// The reason why the bytes are not a valid response.
pub type ScanError = &'static str;

/// The field that [`ResponseShape::Stream`] enters: `range_response` of `RangeStreamResponse`.
const ENTERED_FIELD: u64 = 1;
const PREFIX_BYTES: u32 = 5;

#[derive(Clone, Debug, Default)]
pub struct Scanner {
    shape: ResponseShape,
    stats: ResponseStats,
    state: ScanState,
    /// If true, the scanner does not skip the field whose length it reads. It reads the fields in
    /// that field instead.
    is_entered: bool,
    /// Number of bytes of the message after the current position. While the prefix is read, the
    /// part of the message's length that has been read.
    remaining: u64,
    /// While a number is read: its bits so far. While a field is skipped: the bytes that are still
    /// to be skipped.
    value: u64,
    /// While a number is read: the position of its next bits. While the prefix is read: the number
    /// of its bytes that have been read.
    shift: u32,
}

/// The part of the message that is read next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    Prefix,
    Tag,
    Length,
    Number,
    /// The rest of a field whose contents do not matter.
    Skipped,
}

impl Scanner {
    pub fn new(shape: ResponseShape) -> Scanner {
        Scanner { shape, ..Scanner::default() }
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> ResponseStats {
        self.stats
    }

    /// Returns true if at least one message has arrived and no message is incomplete.
    pub fn is_between_messages(&self) -> bool {
        self.stats.bytes > 0 && self.is_message_over()
    }

    fn is_message_over(&self) -> bool {
        (self.state, self.shift, self.remaining) == (ScanState::Tag, 0, 0)
    }

    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), ScanError> {
        self.stats.bytes += piece.len() as u64;
        while let Some((byte, rest)) = piece.split_first() {
            if self.state != ScanState::Skipped {
                piece = rest;
                self.step(*byte)?;
                continue;
            }
            let skipped = self.value.min(piece.len() as u64);
            piece = &piece[skipped as usize..];
            self.remaining -= skipped;
            self.value -= skipped;
            if self.value == 0 {
                self.state = ScanState::Tag;
            }
        }
        Ok(())
    }

    /// Returns the final counts. Fails if the message is not complete.
    pub fn finish(self) -> Result<ResponseStats, ScanError> {
        if self.is_message_over() { Ok(self.stats) } else { Err("the response is incomplete") }
    }

    fn step(&mut self, byte: u8) -> Result<(), ScanError> {
        let has_more = matches!(self.shape, ResponseShape::Stream | ResponseShape::Watch);
        if has_more && self.is_message_over() {
            self.state = ScanState::Prefix;
        }
        if self.state == ScanState::Prefix {
            if self.shift == 0 && byte != 0 {
                return Err("the response is compressed");
            }
            self.remaining = self.remaining << 8 | u64::from(byte);
            self.shift += 1;
            if self.shift == PREFIX_BYTES {
                (self.state, self.shift) = (ScanState::Tag, 0);
            }
            return Ok(());
        }
        self.remaining = self.remaining.checked_sub(1).ok_or("there is more than one response")?;
        if self.shift > 63 {
            return Err("a number in the response is too long");
        }
        self.value |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        if byte & 0x80 != 0 {
            return Ok(());
        }
        self.shift = 0;
        let value = std::mem::take(&mut self.value);
        match (self.state, value & 7) {
            (ScanState::Number, _) => self.state = ScanState::Tag,
            (ScanState::Length, _) if self.is_entered => self.state = ScanState::Tag,
            (ScanState::Length, _) => return self.skip(value),
            (_, 0) => {
                let field = value >> 3;
                if self.shape == ResponseShape::Watch && field == CANCELED_FIELD {
                    return Err(CANCELED);
                }
                let is_ttl = self.shape == ResponseShape::KeepAlive && field == 3;
                self.stats.keys += u64::from(is_ttl);
                self.state = ScanState::Number;
            }
            (_, 1) => return self.skip(8),
            (_, 2) => {
                let field = value >> 3;
                self.stats.keys += u64::from(field == self.shape.counted_field());
                self.is_entered = self.shape == ResponseShape::Stream && field == ENTERED_FIELD;
                self.state = ScanState::Length;
            }
            (_, 5) => return self.skip(4),
            _ => return Err("the response is not protobuf"),
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), ScanError> {
        if bytes > self.remaining {
            return Err("a field of the response is longer than the response");
        }
        self.value = bytes;
        self.state = if bytes == 0 { ScanState::Tag } else { ScanState::Skipped };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clearlane_proto::Message;
    use clearlane_proto::etcdserverpb::{
        RangeResponse, RangeStreamResponse, ResponseHeader, SnapshotResponse, WatchResponse,
    };
    use clearlane_proto::mvccpb::{Event, KeyValue};

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = (message.len() as u32).to_be_bytes();
        [&[0], &length[..], message].concat()
    }

    fn header() -> Option<ResponseHeader> {
        Some(ResponseHeader { cluster_id: u64::MAX, revision: 7, ..Default::default() })
    }

    fn key_value(value: usize) -> KeyValue {
        KeyValue { key: "key".into(), value: vec![b'v'; value].into(), ..Default::default() }
    }

    fn range(keys: usize, value: usize) -> RangeResponse {
        let kvs = vec![key_value(value); keys];
        RangeResponse { header: header(), kvs, more: true, count: 1 << 40 }
    }

    fn answer(keys: usize, value: usize) -> Vec<u8> {
        framed(&range(keys, value).encode_to_vec())
    }

    /// Returns the number of counted keys. Checks that this number does not depend on the sizes of
    /// the chunks.
    fn keys_of(shape: ResponseShape, messages: &[Vec<u8>]) -> u64 {
        let bytes = messages.concat();
        let keys = [1, 3, 4096].map(|size| {
            let mut scanner = Scanner::new(shape);
            bytes.chunks(size).for_each(|piece| scanner.feed(piece).expect("a response"));
            let seen = scanner.finish().expect("it is complete");
            assert_eq!(seen.bytes, bytes.len() as u64);
            seen.keys
        });
        assert!(keys.iter().all(|other| *other == keys[0]), "{keys:?}");
        keys[0]
    }

    fn scan(pieces: &[&[u8]]) -> Result<ResponseStats, ScanError> {
        let mut scanner = Scanner::default();
        pieces.iter().try_for_each(|piece| scanner.feed(piece))?;
        scanner.finish()
    }

    #[test]
    fn keys_of_one_message_are_counted() {
        for (keys, value) in [(0, 0), (1, 0), (3, 10), (5, 300), (2, 70_000)] {
            assert_eq!(keys_of(ResponseShape::Message, &[answer(keys, value)]), keys as u64);
        }
        assert_eq!(scan(&[&framed(&[])]), Ok(ResponseStats { keys: 0, bytes: 5 }));
    }

    #[test]
    fn responses_of_several_messages_are_counted_by_their_shape() {
        let part = |keys| {
            let range_response = Some(range(keys, 40));
            framed(&RangeStreamResponse { range_response }.encode_to_vec())
        };
        let parts = [part(3), part(0), framed(&[]), part(200)];
        assert_eq!(keys_of(ResponseShape::Stream, &parts), 203);
        let events = |number| WatchResponse {
            header: header(),
            created: number == 0,
            events: vec![Event { kv: Some(key_value(300)), ..Event::default() }; number],
            ..WatchResponse::default()
        };
        let watch = [0, 5, 1].map(|number| framed(&events(number).encode_to_vec()));
        assert_eq!(keys_of(ResponseShape::Watch, &watch), 6);
        let blob = vec![1; 70_000].into();
        let snapshot =
            SnapshotResponse { header: header(), remaining_bytes: 9, blob, ..Default::default() };
        let chunk = framed(&snapshot.encode_to_vec());
        assert_eq!(keys_of(ResponseShape::Stream, &[chunk.clone(), chunk]), 0);
    }

    #[test]
    fn an_answer_that_was_cut_off_is_broken_wherever_that_was() {
        let answer = answer(3, 200);
        for end in 0..answer.len() {
            assert_eq!(scan(&[&answer[..end]]), Err("the response is incomplete"), "{end}");
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let compressed = [&[1, 0, 0, 0, 1], &[0][..]].concat();
        assert_eq!(scan(&[&compressed]), Err("the response is compressed"));
        assert_eq!(scan(&[&framed(&[0x13])]), Err("the response is not protobuf"));
        assert_eq!(
            scan(&[&framed(&[0x12, 9, 0])]),
            Err("a field of the response is longer than the response")
        );
        assert_eq!(scan(&[&framed(&[0xff; 11])]), Err("a number in the response is too long"));
        let two = [answer(1, 1), answer(1, 1)].concat();
        assert_eq!(scan(&[&two]), Err("there is more than one response"));
    }

    #[test]
    fn fields_of_every_kind_are_jumped_over() {
        let fixed = [0x31, 1, 2, 3, 4, 5, 6, 7, 8, 0x3d, 1, 2, 3, 4, 0x20, 0x80, 1, 0x12, 0];
        assert_eq!(scan(&[&framed(&fixed)]).map(|seen| seen.keys), Ok(1));
    }
}
