//! Finds the end of each JSON object in a stream.
//!
//! Braces and quotes show the end of an object. Each byte is scanned once, even if a client sends a
//! long object byte by byte. The parser receives whole objects.

use bytes::{Bytes, BytesMut};
use tonic::Status;

#[derive(Debug, Default)]
pub(crate) struct JsonSplitter {
    gathered: BytesMut,
    /// Number of gathered bytes that were scanned.
    seen: usize,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonSplitter {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.gathered.extend_from_slice(piece);
    }

    /// Returns the next object or array, or `None` if it is incomplete. The returned bytes include
    /// any white space before the value. Fails if the value has more than `bytes_max` bytes,
    /// including this white space, or if something other than an object or an array follows. An
    /// array is returned, because the parser rejects it later.
    pub(crate) fn next(&mut self, bytes_max: usize) -> Result<Option<Bytes>, Status> {
        while let Some(byte) = self.gathered.get(self.seen) {
            self.seen += 1;
            if self.seen > bytes_max {
                return Err(too_large(bytes_max));
            }
            if self.ends_object(*byte)? {
                let value = self.gathered.split_to(self.seen);
                self.seen = 0;
                return Ok(Some(value.freeze()));
            }
        }
        Ok(None)
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.depth > 0
    }

    fn ends_object(&mut self, byte: u8) -> Result<bool, Status> {
        if self.is_in_string {
            let was_escaped = std::mem::replace(&mut self.is_escaped, false);
            match byte {
                _ if was_escaped => {}
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return Ok(false);
        }
        match byte {
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                return Ok(self.depth == 0);
            }
            b'"' if self.depth > 0 => self.is_in_string = true,
            _ if self.depth > 0 || byte.is_ascii_whitespace() => {}
            _ => return Err(Status::invalid_argument("a request stream consists of JSON objects")),
        }
        Ok(false)
    }
}

pub(super) fn too_large(bytes_max: usize) -> Status {
    Status::resource_exhausted(format!("a JSON request has at most {bytes_max} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, piece: usize) -> Result<Vec<String>, Status> {
        let mut values = JsonSplitter::default();
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(piece) {
            values.push(piece);
            while let Some(value) = values.next(100)? {
                found.push(String::from_utf8(value.to_vec()).unwrap());
            }
        }
        assert!(!values.is_incomplete());
        Ok(found)
    }

    #[test]
    fn objects_end_where_their_brace_is_whatever_is_in_strings() {
        let text = r#"{"a":"}\"{"} {"b":[{},{"c":1}]}  {}"#;
        for piece in 1..text.len() {
            let found = cut(text, piece).unwrap();
            assert_eq!(found, [r#"{"a":"}\"{"}"#, r#" {"b":[{},{"c":1}]}"#, "  {}"], "{piece}");
        }
    }

    #[test]
    fn what_is_no_object_or_too_long_is_refused() {
        assert_eq!(cut("{} 1", 2).unwrap_err().code(), tonic::Code::InvalidArgument);
        assert_eq!(cut("}", 2).unwrap_err().code(), tonic::Code::InvalidArgument);
        let long = format!("{{\"a\":\"{}", "x".repeat(100));
        let mut values = JsonSplitter::default();
        values.push(long.as_bytes());
        assert_eq!(values.next(100).unwrap_err().code(), tonic::Code::ResourceExhausted);
    }
}
