//! Who calls: the parts of a request's head that decide how the proxy may answer, and the login of
//! the proxy for the client's certificate.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::login::Login;
use crate::upstream::Upstream;

/// The headers of a caller that go upstream with a stream that the proxy opens for it. Callers with
/// equal headers may share such a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    token: Option<HeaderValue>,
    authorization: Option<HeaderValue>,
    requires_leader: bool,
    api_version: Option<HeaderValue>,
    /// The login for the client's certificate. `None` if the caller has named a user itself.
    login: Option<Arc<Login>>,
}

impl Caller {
    /// `login` is the login for the certificate of the client's connection, if there is one.
    pub fn new(head: &HeaderMap, login: Option<&Arc<Login>>) -> Caller {
        let names_user = head.contains_key("token") || head.contains_key("authorization");
        Caller {
            login: login.filter(|_| !names_user).cloned(),
            token: head.get("token").cloned(),
            authorization: head.get("authorization").cloned(),
            requires_leader: head.get("hasleader").is_some_and(|value| value == "true"),
            api_version: head.get("client-api-version").cloned(),
        }
    }

    /// Returns true if the caller has no user. The cache may answer only such callers.
    pub fn is_anonymous(&self) -> bool {
        !self.names_user() && self.login.is_none()
    }

    /// Returns true if the caller has sent a token. Only the caller can renew it.
    pub(crate) fn names_user(&self) -> bool {
        self.token.is_some() || self.authorization.is_some()
    }

    /// Returns the caller of keep-alive streams: the token or the login, without the headers that
    /// do not matter for these streams.
    pub(crate) fn of_keep_alives(&self) -> Caller {
        Caller { requires_leader: false, api_version: None, ..self.clone() }
    }

    pub(crate) fn login(&self) -> Option<&Arc<Login>> {
        self.login.as_ref()
    }

    pub(crate) fn requires_leader(&self) -> bool {
        self.requires_leader
    }

    /// Returns the headers of a stream upstream, and the token of the login, if there is one. Logs
    /// in if necessary.
    pub(crate) async fn credentials(
        &self,
        upstream: &Upstream,
    ) -> Result<(MetadataMap, Option<HeaderValue>), Status> {
        let token = match &self.login {
            Some(login) => login.token(upstream).await?,
            None => None,
        };
        Ok((self.metadata(token.as_ref()), token))
    }

    fn metadata(&self, login_token: Option<&HeaderValue>) -> MetadataMap {
        let mut headers = HeaderMap::new();
        let leader = self.requires_leader.then_some(HeaderValue::from_static("true"));
        for (name, value) in [
            ("token", self.token.as_ref().or(login_token).cloned()),
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
