//! An answer while it arrives: what is in it, whether it is enough, and how it ended.

use http::HeaderMap;
use tonic::{Code, Status};

use super::text;
use crate::requests::Call;
use crate::response_scanner::{ResponseShape, ResponseStats, Scanner};

pub(super) struct Answer {
    scanner: Scanner,
    shape: ResponseShape,
    keys: Option<u64>,
    status: Option<Status>,
}

impl Answer {
    /// An answer that is an error has no body, and its status is in the headers.
    pub(super) fn new(call: &Call, headers: &HeaderMap) -> Answer {
        let status = Status::from_header_map(headers);
        Answer { scanner: Scanner::new(call.answer), shape: call.answer, keys: call.keys, status }
    }

    /// Whether that is enough, of an answer without an end.
    pub(super) fn feed(&mut self, data: &[u8]) -> Result<bool, String> {
        self.scanner.feed(data)?;
        let enough = self.keys.filter(|_| self.shape == ResponseShape::Watch);
        // The first message of a watch says that it is created.
        Ok(enough.is_some_and(|events| {
            self.scanner.stats().keys >= events && self.scanner.is_between_messages()
        }))
    }

    pub(super) fn set_trailers(&mut self, trailers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(trailers) {
            self.status = Some(status);
        }
    }

    /// Of an answer that is enough.
    pub(super) fn stats(&self) -> ResponseStats {
        self.scanner.stats()
    }

    /// The error is a short text, by which errors are counted.
    pub(super) fn finish(self) -> Result<ResponseStats, String> {
        match self.status {
            None => return Err("the answer has no status".to_owned()),
            Some(status) if status.code() != Code::Ok => return Err(text(status)),
            Some(_) => {}
        }
        let seen = self.scanner.finish()?;
        match self.keys {
            Some(keys) if keys != seen.keys => Err(format!("{} keys instead of {keys}", seen.keys)),
            _ => Ok(seen),
        }
    }
}
