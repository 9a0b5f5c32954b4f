//! A client's request for progress, until it is answered.
//!
//! Progress at revision P promises that every event up to P was sent, of all watches of the stream.
//! The scopes and the member of the direct watches each report a revision, and P is the smallest.
//! While they do, watches may be created, or may continue upstream. So before P is sent, each
//! created watch must have [sent](super::watcher::Watcher::has_sent) its events up to P, and the
//! session's queue must be empty. Otherwise the session requests the reports again.

/// The reports that a pending request waits for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProgressRequest {
    scopes: Report,
    upstream: Report,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Report {
    #[default]
    NotRequested,
    Pending,
    Reached(i64),
}

impl ProgressRequest {
    pub fn request_scopes(&mut self) {
        self.scopes = Report::Pending;
    }

    pub fn request_upstream(&mut self) {
        self.upstream = Report::Pending;
    }

    pub fn is_requested(&self) -> bool {
        *self != ProgressRequest::default()
    }

    pub fn is_upstream_pending(&self) -> bool {
        self.upstream == Report::Pending
    }

    /// All scopes have this revision. If one did not get there in time, the request is dropped, as
    /// etcd drops it.
    pub fn scopes_reached(&mut self, revision: Option<i64>) {
        match revision {
            Some(revision) => self.scopes = Report::Reached(revision),
            None => self.clear(),
        }
    }

    /// The member has sent the events of all direct watches up to this revision.
    pub fn upstream_reached(&mut self, revision: i64) {
        if self.is_upstream_pending() {
            self.upstream = Report::Reached(revision);
        }
    }

    /// Returns the revision to send, or `None` if a report is pending or there is no request.
    pub fn revision(&self) -> Option<i64> {
        match (self.scopes, self.upstream) {
            (Report::Pending, _) | (_, Report::Pending) => None,
            (Report::Reached(one), Report::Reached(other)) => Some(one.min(other)),
            (Report::Reached(only), _) | (_, Report::Reached(only)) => Some(only),
            (Report::NotRequested, Report::NotRequested) => None,
        }
    }

    pub fn clear(&mut self) {
        *self = ProgressRequest::default();
    }
}
