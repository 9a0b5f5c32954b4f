//! Protobuf's encoding: varints, tags, and an iterator over the fields of a message.
//!
//! ```text
//!   message = field*      field = tag value      tag = number << 3 | type
//!   type 0: a varint      type 2: a length as a varint, then that number of bytes
//! ```
//!
//! Our messages do not use the two other types, fixed 64 and 32 bits.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {message}: {what}")]
pub struct DecodeError {
    /// The kind of message that was expected.
    pub message: &'static str,
    pub what: &'static str,
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a field with a number, even if the number is zero.
pub(super) fn put_number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    put_varint(out, value);
}

/// Writes a field with bytes, even if there are none.
pub(super) fn put_bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

pub(super) struct Fields<'a> {
    message: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'static str, bytes: &'a [u8]) -> Fields<'a> {
        Fields { message, rest: bytes }
    }

    /// Returns the bytes that have not been read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn error(&self, what: &'static str) -> DecodeError {
        DecodeError { message: self.message, what }
    }

    /// Returns the next field with its number, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            2 => Value::Bytes(self.bytes()?),
            _ => return Err(self.error("a field of an unknown type")),
        };
        Ok(Some((tag >> 3, value)))
    }

    /// Reads a number of at most 64 bits.
    pub(super) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if at == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * at);
            if byte & 0x80 == 0 {
                // No program writes a number with needless bytes, and a record may have only one
                // encoding.
                if at > 0 && *byte == 0 {
                    return Err(self.error("a number with more bytes than it needs"));
                }
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(self.error("a number that is cut off or longer than 64 bits"))
    }

    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.varint()?).ok();
        let split = length.and_then(|length| self.rest.split_at_checked(length));
        let (bytes, rest) = split.ok_or_else(|| self.error("a field longer than the message"))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Returns the error for a field that the message does not have, or that has another type.
    pub(super) fn unknown_field(&self) -> DecodeError {
        self.error("an unknown field, or a field of the wrong type")
    }

    /// Converts a number to a boolean. Fails if it is neither 0 nor 1.
    pub(super) fn bool(&self, number: u64) -> Result<bool, DecodeError> {
        match number {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error("neither true nor false")),
        }
    }

    /// Adds ids, which may be in separate fields or packed into one field.
    pub(super) fn ids(&self, value: Value<'_>, ids: &mut Vec<u64>) -> Result<(), DecodeError> {
        match value {
            Value::Number(id) => ids.push(id),
            Value::Bytes(bytes) => {
                let mut packed = Fields::new(self.message, bytes);
                while !packed.rest.is_empty() {
                    ids.push(packed.varint()?);
                }
            }
        }
        Ok(())
    }
}
