//! The page `/debug/vars`, and the interface for the pages below `/debug/pprof/`. The program makes
//! the latter pages if `--enable-pprof` is set.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_raft::Role;
use http::{Response, StatusCode};
use serde_json::json;
use tonic::body::Body;

use super::{HttpService, PLAIN, error_response, not_a_get, text};
use crate::maintenance::ETCD_VERSION;

const PPROF: &str = "/debug/pprof/";

type Answer = Pin<Box<dyn Future<Output = DebugPage> + Send>>;

/// The response to a request below `/debug/pprof/`.
#[derive(Debug)]
pub struct DebugPage {
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
}

impl DebugPage {
    pub fn text(text: impl Into<Bytes>) -> DebugPage {
        DebugPage { status: StatusCode::OK, kind: PLAIN, body: text.into() }
    }

    pub fn bytes(bytes: impl Into<Bytes>) -> DebugPage {
        let kind = "application/octet-stream";
        DebugPage { status: StatusCode::OK, kind, body: bytes.into() }
    }

    pub fn error(status: StatusCode, why: String) -> DebugPage {
        DebugPage { status, ..DebugPage::text(why + "\n") }
    }
}

/// The function that makes the pages below `/debug/pprof/`. Its arguments are the part of the path
/// after this prefix, and the query.
#[derive(Clone)]
pub struct DebugPages(Arc<dyn Fn(String, String) -> Answer + Send + Sync>);

impl DebugPages {
    pub fn new(page: impl Fn(String, String) -> Answer + Send + Sync + 'static) -> DebugPages {
        DebugPages(Arc::new(page))
    }

    /// Makes the page with this name, which is the part of the path after `/debug/pprof/`.
    pub async fn response(&self, name: String, query: String) -> Response<Body> {
        let page = (self.0)(name, query).await;
        match page.status {
            StatusCode::OK => text(page.status, page.kind, page.body),
            status => error_response(status, String::from_utf8_lossy(&page.body).trim_end()),
        }
    }
}

impl fmt::Debug for DebugPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DebugPages")
    }
}

impl HttpService {
    /// Returns the response for a debug page, or `None` if there is no such page.
    pub(super) async fn debug_page(
        &self,
        path: &str,
        query: Option<&str>,
        is_get: bool,
    ) -> Option<Response<Body>> {
        let name = path.strip_prefix(PPROF).or((path == "/debug/pprof").then_some(""));
        match (path, name, &self.config.profiles) {
            ("/debug/vars", ..) if is_get => Some(self.variables()),
            ("/debug/vars", ..) => Some(not_a_get()),
            (_, Some(_), Some(_)) if !is_get => Some(not_a_get()),
            (_, Some(name), Some(pages)) => {
                Some(pages.response(name.to_owned(), query.unwrap_or_default().to_owned()).await)
            }
            _ => None,
        }
    }

    /// Returns etcd's variables, except variables that have no meaning here. The program's
    /// arguments are omitted, because they may contain a password.
    fn variables(&self) -> Response<Body> {
        let threads = self.server.threads();
        let leadership = *threads.leadership().borrow();
        let role = match leadership.role {
            Role::Leader => "StateLeader",
            Role::Candidate | Role::PreCandidate => "StateCandidate",
            Role::Follower => "StateFollower",
        };
        let variables = json!({
            "cmdline": std::env::args().take(1).collect::<Vec<_>>(),
            "etcd_version": ETCD_VERSION,
            "raft.status": {
                "id": format!("{:x}", threads.metadata().node_id),
                "term": leadership.term,
                "lead": format!("{:x}", leadership.leader),
                "raftState": role,
                "applied": threads.status().applied(),
            },
        });
        text(StatusCode::OK, "application/json; charset=utf-8", format!("{variables:#}\n"))
    }
}
