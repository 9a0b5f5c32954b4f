//! Counts the keys in a response while it arrives.
//!
//! A gRPC response is a message with five bytes in front: a compression flag, and the length. Of a
//! range response only one field matters here: field 2, which occurs once per key.
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
    /// Occurrences of field 2: keys, if it was a range.
    pub keys: u64,
    /// Includes the five bytes in front.
    pub bytes: u64,
}

/// Why it is no valid response.
pub type ScanError = &'static str;

/// Field 2 of `RangeResponse`.
const KVS_FIELD: u64 = 2;
const PREFIX_BYTES: u8 = 5;

#[derive(Clone, Debug, Default)]
pub struct Scanner {
    stats: ResponseStats,
    state: ScanState,
    /// Bytes of the message still to come, once its length is known.
    remaining: u64,
}

#[derive(Clone, Copy, Debug)]
enum ScanState {
    /// Some of the five bytes in front have been read; those of the length are in `remaining`.
    Prefix { bytes_read: u8 },
    /// The bits of the value so far; the next ones are at `shift`.
    Varint { kind: VarintKind, so_far: u64, shift: u32 },
    /// Bytes of a field that are to be skipped.
    FieldContent { left: u64 },
}

#[derive(Clone, Copy, Debug)]
enum VarintKind {
    Tag,
    Length,
    Number,
}

impl Default for ScanState {
    fn default() -> ScanState {
        ScanState::Prefix { bytes_read: 0 }
    }
}

impl ScanState {
    const TAG: ScanState = ScanState::Varint { kind: VarintKind::Tag, so_far: 0, shift: 0 };
}

impl Scanner {
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), ScanError> {
        self.stats.bytes += piece.len() as u64;
        while let Some((byte, rest)) = piece.split_first() {
            if let ScanState::FieldContent { left } = self.state {
                let skipped = left.min(piece.len() as u64);
                piece = &piece[skipped as usize..];
                self.remaining -= skipped;
                self.state = if left == skipped {
                    ScanState::TAG
                } else {
                    ScanState::FieldContent { left: left - skipped }
                };
                continue;
            }
            piece = rest;
            self.state = self.step(*byte)?;
        }
        Ok(())
    }

    /// An error if the message is not complete.
    pub fn finish(self) -> Result<ResponseStats, ScanError> {
        let whole = matches!(self.state, ScanState::Varint { kind: VarintKind::Tag, shift: 0, .. })
            && self.remaining == 0;
        if whole { Ok(self.stats) } else { Err("the answer ends in its middle") }
    }

    fn step(&mut self, byte: u8) -> Result<ScanState, ScanError> {
        match self.state {
            ScanState::Prefix { bytes_read: 0 } if byte != 0 => Err("the answer is compressed"),
            ScanState::Prefix { bytes_read: had } => {
                self.remaining = self.remaining << 8 | u64::from(byte);
                Ok(if had + 1 == PREFIX_BYTES {
                    ScanState::TAG
                } else {
                    ScanState::Prefix { bytes_read: had + 1 }
                })
            }
            ScanState::Varint { kind: of, so_far, shift } => {
                self.remaining =
                    self.remaining.checked_sub(1).ok_or("there is more than one answer")?;
                if shift > 63 {
                    return Err("a number in the answer is too long");
                }
                let value = so_far | u64::from(byte & 0x7f) << shift;
                if byte & 0x80 != 0 {
                    return Ok(ScanState::Varint { kind: of, so_far: value, shift: shift + 7 });
                }
                self.after_varint(of, value)
            }
            // `feed` skips these bytes.
            ScanState::FieldContent { .. } => Ok(self.state),
        }
    }

    fn after_varint(&mut self, of: VarintKind, value: u64) -> Result<ScanState, ScanError> {
        let varint = |of| ScanState::Varint { kind: of, so_far: 0, shift: 0 };
        match (of, value & 7) {
            (VarintKind::Number, _) => Ok(ScanState::TAG),
            (VarintKind::Length, _) => self.skip_content(value),
            (VarintKind::Tag, 0) => Ok(varint(VarintKind::Number)),
            (VarintKind::Tag, 1) => self.skip_content(8),
            (VarintKind::Tag, 2) => {
                self.stats.keys += u64::from(value >> 3 == KVS_FIELD);
                Ok(varint(VarintKind::Length))
            }
            (VarintKind::Tag, 5) => self.skip_content(4),
            (VarintKind::Tag, _) => Err("the answer is not protobuf"),
        }
    }

    fn skip_content(&self, left: u64) -> Result<ScanState, ScanError> {
        if left > self.remaining {
            return Err("a field of the answer is longer than the answer");
        }
        Ok(if left == 0 { ScanState::TAG } else { ScanState::FieldContent { left } })
    }
}

#[cfg(test)]
mod tests {
    use clearlane_proto::Message;
    use clearlane_proto::etcdserverpb::{RangeResponse, ResponseHeader};
    use clearlane_proto::mvccpb::KeyValue;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = (message.len() as u32).to_be_bytes();
        [&[0], &length[..], message].concat()
    }

    fn answer(keys: usize, value: usize) -> Vec<u8> {
        let header = ResponseHeader { cluster_id: u64::MAX, revision: 7, ..Default::default() };
        let kv =
            KeyValue { key: "key".into(), value: vec![b'v'; value].into(), ..Default::default() };
        let kvs = vec![kv; keys];
        let range = RangeResponse { header: Some(header), kvs, more: true, count: 1 << 40 };
        framed(&range.encode_to_vec())
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
