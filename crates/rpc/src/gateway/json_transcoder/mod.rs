//! Translates a large message to JSON, chunk by chunk.
//!
//! The fields have the same order in the text as in the bytes. So the transcoder remembers only the
//! open messages and lists, and an incomplete number or value at the end of the last chunk. Of an
//! incomplete value that is written as base64, it remembers at most two bytes.
//!
//! * The text is the same as the text of [`json::of_message`](super::json::of_message), byte for
//!   byte. A test compares them.
//! * The transcoder needs memory for the current chunk, for the open messages, and for one string,
//!   such as a user name.
//! * A call of [`transcode`](JsonTranscoder::transcode) makes about [`CHUNK_BYTES`] of text.
//!
//! The bytes were encoded by this program. So the transcoder does not support fields that are out
//! of order, packed numbers, or floating-point numbers, and fails if it finds any. It does not
//! support maps either, because no response has a map.

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::{Buf, Bytes};
use prost::encoding::WireType;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use tonic::Status;

/// Approximate number of bytes of text that one call of `transcode` makes.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// The state of a translation. The message may arrive in pieces that end at any byte:
///
/// ```text
///   bytes   12 0a │ 0a 02 61 │ 62 2a 04 ..
///           kvs 10  key 2 a     b value 4
///   text    ,"kvs":[{"key":"  YWI=","value":"...    open: RangeResponse [ KeyValue
/// ```
#[derive(Debug)]
pub(crate) struct JsonTranscoder {
    /// The open messages, the outermost first. Empty when the message is complete.
    open: Vec<OpenMessage>,
    state: TranscodeState,
    /// Number of bytes read so far.
    at: u64,
    /// The part of a number that was read so far.
    number: u64,
    shift: u32,
}

#[derive(Debug)]
struct OpenMessage {
    kind: MessageDescriptor,
    /// The position in the bytes at which the message ends.
    end: u64,
    /// The field number of the last written field.
    last: u32,
    /// If true, the last written field is a list, and more items may follow.
    is_in_list: bool,
}

/// The meaning of the next bytes. A field without a descriptor is unknown to this program.
#[derive(Debug)]
enum TranscodeState {
    Key,
    Number(Option<FieldDescriptor>),
    Length(Option<FieldDescriptor>),
    /// The bytes of a value. `left` is the number of bytes that have not been read. `waiting` has
    /// the bytes that were read but not written: up to two bytes of a base64 value, or the first
    /// part of a string.
    Value {
        kind: ValueKind,
        left: u64,
        waiting: Vec<u8>,
    },
}

#[derive(Debug)]
enum ValueKind {
    Bytes,
    Text,
    Unknown,
}

impl JsonTranscoder {
    pub(crate) fn new(kind: MessageDescriptor, length: u64) -> JsonTranscoder {
        let outermost = OpenMessage { kind, end: length, last: 0, is_in_list: false };
        JsonTranscoder {
            open: vec![outermost],
            state: TranscodeState::Key,
            at: 0,
            number: 0,
            shift: 0,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// Translates bytes to text, up to about [`CHUNK_BYTES`] of text. Bytes that are not translated
    /// yet stay in `bytes` for the next call.
    pub(crate) fn transcode(
        &mut self,
        bytes: &mut Bytes,
        text: &mut Vec<u8>,
    ) -> Result<(), Status> {
        if self.at == 0 {
            text.push(b'{');
        }
        loop {
            self.end_messages(text)?;
            if self.is_done() || bytes.is_empty() || text.len() >= CHUNK_BYTES {
                return Ok(());
            }
            self.step(bytes, text)?;
        }
    }

    fn step(&mut self, bytes: &mut Bytes, text: &mut Vec<u8>) -> Result<(), Status> {
        if let TranscodeState::Value { kind, left, waiting } = &mut self.state {
            let some = bytes.split_to((*left).min(bytes.len().min(CHUNK_BYTES) as u64) as usize);
            self.at += some.len() as u64;
            *left -= some.len() as u64;
            match kind {
                ValueKind::Bytes => write_base64(waiting, &some, *left == 0, text),
                ValueKind::Text => waiting.extend_from_slice(&some),
                ValueKind::Unknown => {}
            }
            if *left == 0 {
                if matches!(kind, ValueKind::Text) {
                    write_string(waiting, text)?;
                }
                self.state = TranscodeState::Key;
            }
            return Ok(());
        }
        let Some(number) = self.number(bytes)? else { return Ok(()) };
        match std::mem::replace(&mut self.state, TranscodeState::Key) {
            TranscodeState::Number(Some(field)) => self.write_number(&field, number, text)?,
            TranscodeState::Number(None) => {}
            TranscodeState::Length(field) => self.length_delimited(field, number, text)?,
            TranscodeState::Key | TranscodeState::Value { .. } => {
                self.state = self.field(number)?
            }
        }
        Ok(())
    }

    /// Reads a number of up to ten bytes. Returns `None` if the bytes end within the number; the
    /// next call continues with the rest.
    fn number(&mut self, bytes: &mut Bytes) -> Result<Option<u64>, Status> {
        while bytes.has_remaining() {
            let byte = bytes.get_u8();
            self.at += 1;
            if self.shift == 63 && byte > 1 || self.at > self.innermost().end {
                return Err(malformed("an unterminated number"));
            }
            self.number |= u64::from(byte & 0x7f) << self.shift;
            self.shift += 7;
            if byte < 0x80 {
                self.shift = 0;
                return Ok(Some(std::mem::take(&mut self.number)));
            }
        }
        Ok(None)
    }

    fn field(&self, key: u64) -> Result<TranscodeState, Status> {
        let number = u32::try_from(key).map_or(0, |key| key >> 3);
        if number == 0 {
            return Err(malformed("an invalid field number"));
        }
        let field = self.innermost().kind.get_field(number);
        match WireType::try_from(key & 7) {
            Ok(WireType::Varint) => Ok(TranscodeState::Number(field)),
            Ok(WireType::LengthDelimited) => Ok(TranscodeState::Length(field)),
            Ok(WireType::SixtyFourBit) if field.is_none() => self.value(ValueKind::Unknown, 8),
            Ok(WireType::ThirtyTwoBit) if field.is_none() => self.value(ValueKind::Unknown, 4),
            _ => Err(malformed("a field type that no response has")),
        }
    }

    /// Returns the state for reading a value of this length. Fails if the value is longer than the
    /// rest of the innermost open message.
    fn value(&self, kind: ValueKind, length: u64) -> Result<TranscodeState, Status> {
        if self.innermost().end - self.at >= length {
            Ok(TranscodeState::Value { kind, left: length, waiting: Vec::new() })
        } else {
            Err(malformed("a field that is longer than its message"))
        }
    }

    fn innermost(&self) -> &OpenMessage {
        self.open.last().expect("a step is made while a message is open")
    }

    fn length_delimited(
        &mut self,
        field: Option<FieldDescriptor>,
        length: u64,
        text: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let value = self.value(ValueKind::Unknown, length)?;
        let Some(field) = field else {
            if length > 0 {
                self.state = value;
            }
            return Ok(());
        };
        self.check_field_order(&field)?;
        if length == 0 && is_left_out(&field) {
            return Ok(());
        }
        self.write_name(&field, text);
        match field.kind() {
            Kind::Message(kind) => {
                text.push(b'{');
                self.begin_message(kind, length);
            }
            Kind::Bytes | Kind::String if length == 0 => text.extend_from_slice(b"\"\""),
            Kind::Bytes => {
                text.push(b'"');
                self.state = self.value(ValueKind::Bytes, length)?;
            }
            Kind::String => self.state = self.value(ValueKind::Text, length)?,
            _ => return Err(malformed("packed numbers, which no response has")),
        }
        Ok(())
    }

    fn begin_message(&mut self, kind: MessageDescriptor, length: u64) {
        self.open.push(OpenMessage { kind, end: self.at + length, last: 0, is_in_list: false });
    }

    /// Closes the messages that end at this position.
    fn end_messages(&mut self, text: &mut Vec<u8>) -> Result<(), Status> {
        while let Some(open) = self.open.last()
            && open.end == self.at
        {
            if !matches!(self.state, TranscodeState::Key) || self.shift > 0 {
                return Err(malformed("a message that ends within a field"));
            }
            text.extend_from_slice(if open.is_in_list { b"]}" } else { b"}" });
            self.open.pop();
        }
        Ok(())
    }

    /// Fails unless the fields are in the order of their numbers: text that was written cannot be
    /// changed.
    fn check_field_order(&self, field: &FieldDescriptor) -> Result<(), Status> {
        let open = self.innermost();
        if field.number() > open.last || field.number() == open.last && open.is_in_list {
            Ok(())
        } else {
            Err(malformed("fields that are not in the order of their numbers"))
        }
    }

    fn write_name(&mut self, field: &FieldDescriptor, text: &mut Vec<u8>) {
        let open = self.open.last_mut().expect("a step is made while a message is open");
        let number = field.number();
        if number == open.last && open.is_in_list {
            text.push(b',');
            return;
        }
        if open.is_in_list {
            text.push(b']');
        }
        if open.last > 0 {
            text.push(b',');
        }
        (open.last, open.is_in_list) = (number, field.is_list());
        text.push(b'"');
        text.extend_from_slice(field.name().as_bytes());
        text.extend_from_slice(if open.is_in_list { b"\":[" } else { b"\":" });
    }

    fn write_number(
        &mut self,
        field: &FieldDescriptor,
        number: u64,
        text: &mut Vec<u8>,
    ) -> Result<(), Status> {
        self.check_field_order(field)?;
        if number == 0 && is_left_out(field) {
            return Ok(());
        }
        self.write_name(field, text);
        let word = match field.kind() {
            Kind::Bool => (number != 0).to_string(),
            // The number is truncated, as in other decoders.
            Kind::Int32 => (number as i32).to_string(),
            Kind::Uint32 => (number as u32).to_string(),
            Kind::Int64 => format!("\"{}\"", number as i64),
            Kind::Uint64 => format!("\"{number}\""),
            Kind::Enum(kind) => match kind.get_value(number as i32) {
                Some(value) => format!("\"{}\"", value.name()),
                None => (number as i32).to_string(),
            },
            _ => return Err(malformed("a field type that no response has")),
        };
        text.extend_from_slice(word.as_bytes());
        Ok(())
    }
}

/// Returns true if the field is omitted when it has its default value.
fn is_left_out(field: &FieldDescriptor) -> bool {
    !field.is_list() && !field.supports_presence()
}

/// Writes the next bytes of a value, `some`, as base64 text. Three bytes become four characters, so
/// up to two bytes stay in `waiting`. If `is_last` is true, also writes the bytes in `waiting` and
/// the closing quote.
fn write_base64(waiting: &mut Vec<u8>, mut some: &[u8], is_last: bool, text: &mut Vec<u8>) {
    if !waiting.is_empty() {
        let missing = (3 - waiting.len()).min(some.len());
        waiting.extend_from_slice(&some[..missing]);
        some = &some[missing..];
        if waiting.len() == 3 {
            encode(waiting, text);
            waiting.clear();
        }
    }
    let (whole, rest) = some.split_at(some.len() / 3 * 3);
    encode(whole, text);
    waiting.extend_from_slice(rest);
    if is_last {
        encode(waiting, text);
        text.push(b'"');
    }
}

fn encode(bytes: &[u8], text: &mut Vec<u8>) {
    let begin = text.len();
    text.resize(begin + bytes.len().div_ceil(3) * 4, 0);
    BASE64_STANDARD.encode_slice(bytes, &mut text[begin..]).expect("there is room for all of it");
}

fn write_string(string: &[u8], text: &mut Vec<u8>) -> Result<(), Status> {
    let string =
        std::str::from_utf8(string).map_err(|_| malformed("a string that is not valid UTF-8"))?;
    serde_json::to_writer(text, string).map_err(|error| malformed(&error.to_string()))
}

fn malformed(why: &str) -> Status {
    Status::internal(format!("the response has {why}"))
}

#[cfg(test)]
mod tests;
