//! Who calls: the parts of a request's head that decide how the proxy may answer.

use http::HeaderMap;
use tonic::metadata::MetadataMap;

/// Headers of the caller that go upstream with a stream that the proxy opens for it.
const FORWARDED: [&str; 4] = ["token", "authorization", "hasleader", "client-api-version"];

#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    headers: HeaderMap,
}

impl Caller {
    pub(crate) fn new(head: &HeaderMap) -> Caller {
        let mut headers = HeaderMap::new();
        for name in FORWARDED {
            if let Some(value) = head.get(name) {
                headers.insert(name, value.clone());
            }
        }
        Caller { headers }
    }

    /// Returns true if the caller has named no user. The cache may answer only such callers.
    pub(crate) fn is_anonymous(&self) -> bool {
        !self.headers.contains_key("token") && !self.headers.contains_key("authorization")
    }

    pub(crate) fn requires_leader(&self) -> bool {
        self.headers.get("hasleader").is_some_and(|value| value == "true")
    }

    pub(crate) fn metadata(&self) -> MetadataMap {
        MetadataMap::from_headers(self.headers.clone())
    }
}
