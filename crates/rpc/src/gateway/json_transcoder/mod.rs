//! The JSON of a large message, made piece by piece from the pieces of its bytes.
//!
//! The text has the order of the bytes, so the transcoder needs to remember only which messages and
//! lists are open, and what of a number or a value was cut off at the end of the last piece (at
//! most two bytes of a base64 value).
//!
//! * The text is that of [`json::of_message`](super::json::of_message), byte for byte: a test
//!   compares.
//! * Beside the current piece the memory is that of the open messages and of one string, a name.
//! * A call of [`transcode`](JsonTranscoder::transcode) makes about [`CHUNK_BYTES`] of text.
//!
//! Refused are fields in another order than that of their numbers, and kinds of fields that no
//! answer has (packed numbers, fractions, maps): what is read here was encoded by this program.

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::{Buf, Bytes};
use prost::encoding::WireType;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use tonic::Status;

/// About how many bytes of text are made at a time.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// The position in a message. The bytes may be cut anywhere:
///
/// ```text
///   bytes   12 0a │ 0a 02 61 │ 62 2a 04 ..
///           kvs 10  key 2 a     b value 4
///   text    ,"kvs":[{"key":"  YWI=","value":"...    open: RangeResponse [ KeyValue
/// ```
#[derive(Debug)]
pub(crate) struct JsonTranscoder {
    /// The outermost first; none when the message is complete.
    open: Vec<OpenMessage>,
    state: TranscodeState,
    /// Bytes read so far.
    at: u64,
    /// The part of a number that has come.
    number: u64,
    shift: u32,
}

#[derive(Debug)]
struct OpenMessage {
    kind: MessageDescriptor,
    /// The position in the bytes at which it ends.
    end: u64,
    /// The field that was written last.
    last: u32,
    /// It is a list, and more of it may come.
    is_in_list: bool,
}

/// What the next bytes are. A field without a descriptor is one that we do not know.
#[derive(Debug)]
enum TranscodeState {
    Key,
    Number(Option<FieldDescriptor>),
    Length(Option<FieldDescriptor>),
    /// `waiting` is what does not yet fill four characters of base64, or is no whole string.
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

    /// Leaves in `bytes` what is for the next call.
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

    /// A number of up to ten bytes; nothing if it was cut off, and then it goes on with the next
    /// call.
    fn number(&mut self, bytes: &mut Bytes) -> Result<Option<u64>, Status> {
        while bytes.has_remaining() {
            let byte = bytes.get_u8();
            self.at += 1;
            if self.shift == 63 && byte > 1 || self.at > self.innermost().end {
                return Err(malformed("a number without an end"));
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
            return Err(malformed("a number of no field"));
        }
        let field = self.innermost().kind.get_field(number);
        match WireType::try_from(key & 7) {
            Ok(WireType::Varint) => Ok(TranscodeState::Number(field)),
            Ok(WireType::LengthDelimited) => Ok(TranscodeState::Length(field)),
            Ok(WireType::SixtyFourBit) if field.is_none() => self.value(ValueKind::Unknown, 8),
            Ok(WireType::ThirtyTwoBit) if field.is_none() => self.value(ValueKind::Unknown, 4),
            _ => Err(malformed("a field of a kind that no answer has")),
        }
    }

    /// Fails if the open message ends before this length.
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
            _ => return Err(malformed("packed numbers, which no answer has")),
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

    /// Text cannot be taken back, so fields must come in the order of their numbers.
    fn check_field_order(&self, field: &FieldDescriptor) -> Result<(), Status> {
        let open = self.innermost();
        if field.number() > open.last || field.number() == open.last && open.is_in_list {
            Ok(())
        } else {
            Err(malformed("fields in another order than that of their numbers"))
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
            // Truncated, as other decoders do.
            Kind::Int32 => (number as i32).to_string(),
            Kind::Uint32 => (number as u32).to_string(),
            Kind::Int64 => format!("\"{}\"", number as i64),
            Kind::Uint64 => format!("\"{number}\""),
            Kind::Enum(kind) => match kind.get_value(number as i32) {
                Some(value) => format!("\"{}\"", value.name()),
                None => (number as i32).to_string(),
            },
            _ => return Err(malformed("a field of a kind that no answer has")),
        };
        text.extend_from_slice(word.as_bytes());
        Ok(())
    }
}

/// Whether the field is not written if it has its default.
fn is_left_out(field: &FieldDescriptor) -> bool {
    !field.is_list() && !field.supports_presence()
}

/// Adds what of a value fills characters of base64; at its end all of it.
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
    let string = std::str::from_utf8(string).map_err(|_| malformed("a string that is none"))?;
    serde_json::to_writer(text, string).map_err(|error| malformed(&error.to_string()))
}

fn malformed(why: &str) -> Status {
    Status::internal(format!("the answer has {why}"))
}

#[cfg(test)]
mod tests;
