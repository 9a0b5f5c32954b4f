//! Counts the keys in a response while it arrives.
//!
//! A gRPC response is a message with five bytes in front: a compression flag, and the length. Of a
//! range response only one field matters here: field 2, which occurs once per key. Of responses of
//! several messages, other fields may ([`ResponseShape`]).
//!
//! ```text
//!   00 00 01 86 a0 │ 0a len header ... │ 12 len key-value ... │ 12 len key-value ... │ 20 count
//!                     1: skipped          2: counted, skipped
//! ```
//!
//! The bytes come in pieces that end anywhere, also within a length. So [`Scanner`] is a state
//! machine: it reads tags and lengths, skips what they announce, and keeps nothing. Field 2 of
//! other responses is something else; their count is not used.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStats {
    /// Occurrences of the field that is counted: keys, if it was a range, or events.
    pub keys: u64,
    /// Includes the five bytes in front of each message.
    pub bytes: u64,
}

/// What a response consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseShape {
    /// One message: field 2 is counted.
    #[default]
    Message,
    /// Messages up to the end. Field 1 is entered, and field 2 counted in it: the keys of a
    /// RangeStream. Elsewhere field 1 is a header, which has numbers only.
    Stream,
    /// Messages without an end, of a watch: field 11 is counted, the events.
    Watch,
    /// One message, of a lease that is kept alive: field 3 is counted, the time that it has left. A
    /// lease that is gone has none.
    KeepAlive,
}

/// Of a watch: it was refused, or is over.
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

/// Why it is no valid response.
pub type ScanError = &'static str;

/// Field 1 of `RangeStreamResponse`.
const ENTERED_FIELD: u64 = 1;
const PREFIX_BYTES: u32 = 5;

#[derive(Clone, Debug, Default)]
pub struct Scanner {
    shape: ResponseShape,
    stats: ResponseStats,
    state: ScanState,
    /// The field whose length is read is not skipped: its own fields come next.
    is_entered: bool,
    /// Bytes of the message still to come, once its length is known.
    remaining: u64,
    /// The bits so far of the number that is read; then the bytes to skip.
    value: u64,
    /// Where its next bits go; of the prefix, the number of bytes that were read.
    shift: u32,
}

/// What is read next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    Prefix,
    Tag,
    Length,
    Number,
    /// The rest of a field.
    Skipped,
}

impl Scanner {
    pub fn new(shape: ResponseShape) -> Scanner {
        Scanner { shape, ..Scanner::default() }
    }

    /// So far.
    pub fn stats(&self) -> ResponseStats {
        self.stats
    }

    /// Whether at least one message has come, and none in part.
    pub fn is_between_messages(&self) -> bool {
        self.stats.bytes > 0 && (self.state, self.shift, self.remaining) == (ScanState::Tag, 0, 0)
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

    /// An error if the message is not complete.
    pub fn finish(self) -> Result<ResponseStats, ScanError> {
        match (self.state, self.shift, self.remaining) {
            (ScanState::Tag, 0, 0) => Ok(self.stats),
            _ => Err("the answer ends in its middle"),
        }
    }

    fn step(&mut self, byte: u8) -> Result<(), ScanError> {
        let is_message_over = (self.state, self.shift, self.remaining) == (ScanState::Tag, 0, 0);
        let has_more = matches!(self.shape, ResponseShape::Stream | ResponseShape::Watch);
        if is_message_over && has_more {
            self.state = ScanState::Prefix;
        }
        if self.state == ScanState::Prefix {
            if self.shift == 0 && byte != 0 {
                return Err("the answer is compressed");
            }
            self.remaining = self.remaining << 8 | u64::from(byte);
            self.shift += 1;
            if self.shift == PREFIX_BYTES {
                (self.state, self.shift) = (ScanState::Tag, 0);
            }
            return Ok(());
        }
        self.remaining = self.remaining.checked_sub(1).ok_or("there is more than one answer")?;
        if self.shift > 63 {
            return Err("a number in the answer is too long");
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
            _ => return Err("the answer is not protobuf"),
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), ScanError> {
        if bytes > self.remaining {
            return Err("a field of the answer is longer than the answer");
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

    /// Whatever the pieces.
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
    fn keys_are_counted_however_the_pieces_are_cut() {
        for (keys, value) in [(0, 0), (1, 0), (3, 10), (5, 300), (2, 70_000)] {
            let answer = answer(keys, value);
            let seen = ResponseStats { keys: keys as u64, bytes: answer.len() as u64 };
            assert_eq!(scan(&[&answer]), Ok(seen));
            for size in [1, 2, 7, 4096] {
                assert_eq!(scan(&answer.chunks(size).collect::<Vec<_>>()), Ok(seen), "{size}");
            }
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
            assert_eq!(scan(&[&answer[..end]]), Err("the answer ends in its middle"), "{end}");
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let compressed = [&[1, 0, 0, 0, 1], &[0][..]].concat();
        assert_eq!(scan(&[&compressed]), Err("the answer is compressed"));
        assert_eq!(scan(&[&framed(&[0x13])]), Err("the answer is not protobuf"));
        assert_eq!(
            scan(&[&framed(&[0x12, 9, 0])]),
            Err("a field of the answer is longer than the answer")
        );
        assert_eq!(scan(&[&framed(&[0xff; 11])]), Err("a number in the answer is too long"));
        let two = [answer(1, 1), answer(1, 1)].concat();
        assert_eq!(scan(&[&two]), Err("there is more than one answer"));
    }

    #[test]
    fn fields_of_every_kind_are_jumped_over() {
        let fixed = [0x31, 1, 2, 3, 4, 5, 6, 7, 8, 0x3d, 1, 2, 3, 4, 0x20, 0x80, 1, 0x12, 0];
        assert_eq!(scan(&[&framed(&fixed)]).map(|seen| seen.keys), Ok(1));
    }
}
