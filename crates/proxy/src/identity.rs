//! Who calls: the parts of a request's head that decide how the proxy may answer.

use http::{HeaderMap, HeaderValue};
use tonic::metadata::MetadataMap;

/// The headers of a caller that go upstream with a stream that the proxy opens for it. Callers with
/// equal headers may share such a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    token: Option<HeaderValue>,
    authorization: Option<HeaderValue>,
    requires_leader: bool,
    api_version: Option<HeaderValue>,
}

impl Caller {
    pub fn new(head: &HeaderMap) -> Caller {
        Caller {
            token: head.get("token").cloned(),
            authorization: head.get("authorization").cloned(),
            requires_leader: head.get("hasleader").is_some_and(|value| value == "true"),
            api_version: head.get("client-api-version").cloned(),
        }
    }

    /// Returns true if the caller has named no user. The cache may answer only such callers.
    pub fn is_anonymous(&self) -> bool {
        self.token.is_none() && self.authorization.is_none()
    }

    pub(crate) fn requires_leader(&self) -> bool {
        self.requires_leader
    }

    pub(crate) fn metadata(&self) -> MetadataMap {
        let mut headers = HeaderMap::new();
        let leader = self.requires_leader.then_some(HeaderValue::from_static("true"));
        for (name, value) in [
            ("token", self.token.clone()),
            ("authorization", self.authorization.clone()),
            ("hasleader", leader),
            ("client-api-version", self.api_version.clone()),
        ] {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        MetadataMap::from_headers(headers)
    }
}
