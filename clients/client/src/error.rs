//! What can go wrong, by what a caller can do about it.
//!
//! A server answers with a code and a text. The codes are coarse: `OutOfRange` is both a revision
//! that was compacted and one that does not exist yet. So clients of etcd compare the text, which
//! is part of the API. Each text that a program would act on has a variant here.
//!
//! A write whose answer is lost is [`Error::OutcomeUnknown`]: it may have happened, so the client
//! does not write again. The caller can read, write again if twice does no harm, or guard the write
//! with a [comparison](crate::Compare). Every other error of a write means that nothing was
//! written.

use std::error::Error as _;
use std::fmt::Write as _;

use tonic::{Code, Status};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The revision was compacted away.
    #[error("the revision has been compacted{}", up_to(.compact_revision))]
    Compacted {
        /// The oldest revision that can still be read; only a watch is given it.
        compact_revision: Option<i64>,
    },
    #[error("the revision lies in the future")]
    FutureRevision,
    #[error("there is no such key")]
    KeyNotFound,
    /// It was revoked, has expired, or never existed.
    #[error("there is no such lease")]
    LeaseNotFound,
    #[error("there is a lease of this id already")]
    LeaseExists,
    #[error("there is no such member")]
    MemberNotFound,
    /// The store has reached its quota. Delete, compact and defragment; then disarm the alarm.
    #[error("the store is full")]
    NoSpace,
    /// Nothing was done.
    #[error("the server has too much to do")]
    TooManyRequests,
    #[error("the request is too large")]
    RequestTooLarge,
    /// Members have found that their data differs.
    #[error("the cluster is corrupt")]
    Corrupt,
    /// No member that can be reached knows of a leader. Nothing was done.
    #[error("there is no leader")]
    NoLeader,
    /// Only the leader can do this, and no member that was asked is it.
    #[error("not the leader")]
    NotLeader,
    /// In an election: this candidate does not lead (any more).
    #[error("not the leader of the election")]
    NotElected,
    #[error("wrong user or password")]
    AuthFailed,
    #[error("permission denied")]
    PermissionDenied,
    /// A user is required, or the token is not valid.
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
    #[error("authentication is not enabled")]
    AuthNotEnabled,
    #[error("{0}")]
    InvalidArgument(String),
    /// Valid, but not in the present state of the cluster.
    #[error("{0}")]
    FailedPrecondition(String),
    #[error("{0}")]
    Unsupported(String),
    /// There was no answer in time. Nothing was written.
    #[error("no answer in time: {0}")]
    TimedOut(String),
    /// No endpoint can be reached. Nothing was written.
    #[error("no endpoint can be reached: {0}")]
    Unavailable(String),
    /// A write was sent, and its answer is lost: it may have happened, may yet happen, or not.
    #[error("it is not known whether this was done: {0}")]
    OutcomeUnknown(String),
    /// An answer without a variant of its own.
    #[error("{text} ({code:?})")]
    Rejected {
        /// gRPC's code.
        code: Code,
        text: String,
    },
    /// The server's answer is not one that the API allows.
    #[error("unexpected answer: {0}")]
    Unexpected(&'static str),
    /// Endpoints, certificates or credentials in the options cannot be used.
    #[error("{0}")]
    Setup(String),
    /// Received data could not be written to the caller's writer.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn up_to(revision: &Option<i64>) -> String {
    revision.map(|revision| format!(" up to {revision}")).unwrap_or_default()
}

/// The answer of a learner to what only a voter does.
const LEARNER: &str = "etcdserver: rpc not supported for learner";
pub(crate) const NONE_ELECTED: &str = "election: no leader";
/// Errors of one member, or of a moment.
const TRANSIENT: [&str; 5] = [
    "etcdserver: request timed out",
    "etcdserver: server stopped",
    "etcdserver: leader changed",
    "context canceled",
    "context deadline exceeded",
];
/// How the texts begin that an etcd server gives to decisions of its own.
const FROM_SERVER: [&str; 7] =
    ["etcdserver:", "auth:", "election:", "mutex:", "lease", "grpc:", "context "];

fn begins_with_any(words: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| words.starts_with(beginning))
}

impl Error {
    pub(crate) fn from_status(status: &Status) -> Error {
        let words = status.message();
        parse_text(words).unwrap_or_else(|| match status.code() {
            Code::InvalidArgument => Error::InvalidArgument(words.to_owned()),
            Code::FailedPrecondition => Error::FailedPrecondition(words.to_owned()),
            Code::Unimplemented => Error::Unsupported(words.to_owned()),
            Code::PermissionDenied => Error::PermissionDenied,
            Code::Unauthenticated => Error::Unauthenticated(words.to_owned()),
            Code::DataLoss => Error::Corrupt,
            code => Error::Rejected { code, text: words.to_owned() },
        })
    }

    /// Another endpoint, or the same one later, may open the stream.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::NoLeader | Error::TimedOut(_))
    }

    /// For a text without a code, such as the reason why a watch was cancelled.
    pub(crate) fn from_text(words: &str) -> Error {
        let (_, bare) = words.rsplit_once("desc = ").unwrap_or(("", words));
        let refused = || Error::Rejected { code: Code::Unknown, text: bare.to_owned() };
        parse_text(bare).unwrap_or_else(refused)
    }
}

fn parse_text(words: &str) -> Option<Error> {
    let what = words.strip_prefix("etcdserver: ").unwrap_or(words);
    Some(match what {
        "mvcc: required revision has been compacted" => Error::Compacted { compact_revision: None },
        "mvcc: required revision is a future revision" => Error::FutureRevision,
        "mvcc: database space exceeded" => Error::NoSpace,
        "key not found" => Error::KeyNotFound,
        "requested lease not found" => Error::LeaseNotFound,
        "lease already exists" => Error::LeaseExists,
        "member not found" => Error::MemberNotFound,
        "too many requests" => Error::TooManyRequests,
        "request is too large" => Error::RequestTooLarge,
        "corrupt cluster" => Error::Corrupt,
        "no leader" => Error::NoLeader,
        "not leader" => Error::NotLeader,
        "election: not leader" => Error::NotElected,
        "authentication failed, invalid user ID or password" => Error::AuthFailed,
        "permission denied" => Error::PermissionDenied,
        "authentication is not enabled" => Error::AuthNotEnabled,
        "invalid auth token" | "user name is empty" | "revision of auth store is old" => {
            Error::Unauthenticated(words.to_owned())
        }
        _ if words.starts_with("grpc: received message larger than max") => Error::RequestTooLarge,
        _ => return None,
    })
}

/// Of a text that has the server's prefix.
fn parse_server_text(words: &str) -> Option<Error> {
    words.starts_with("etcdserver: ").then(|| parse_text(words))?
}

/// Whether the server has refused the token itself, and another one may do.
pub(crate) fn is_token_refused(words: &str) -> bool {
    matches!(parse_server_text(words), Some(Error::Unauthenticated(_)))
}

/// What a failed call says about whether it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusKind {
    /// Any request may go to another endpoint.
    NotSent,
    /// Rejected before any work: any request may go to another endpoint.
    WrongMember,
    /// It may have been carried out.
    Unknown,
    TokenRejected,
    /// The server has decided.
    Final,
}

impl StatusKind {
    pub(crate) fn from_status(status: &Status) -> StatusKind {
        let words = status.message();
        if let Some(source) = status.source() {
            let is_unsent = causes(source).any(|cause| cause.is::<tonic::ConnectError>());
            return if is_unsent { StatusKind::NotSent } else { StatusKind::Unknown };
        }
        // Only a text of the server itself says that it has not taken the request.
        match parse_server_text(words) {
            Some(Error::NoLeader | Error::NotLeader) => return StatusKind::WrongMember,
            Some(Error::Unauthenticated(_)) => return StatusKind::TokenRejected,
            _ if words == LEARNER => return StatusKind::WrongMember,
            _ if words.starts_with("Service was not ready") => return StatusKind::NotSent,
            // tonic's words for a stream that ends in the middle.
            _ if words.starts_with("protocol error: missing grpc-status") => {
                return StatusKind::Unknown;
            }
            _ => {}
        }
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => StatusKind::Unknown,
            // Not a server's text, but that of a proxy on the way, or of work that broke off.
            Code::Unknown | Code::Internal if !begins_with_any(words, &FROM_SERVER) => {
                StatusKind::Unknown
            }
            // Locks and elections send all their errors without a code.
            Code::Unknown if begins_with_any(words, &TRANSIENT) => StatusKind::Unknown,
            _ => StatusKind::Final,
        }
    }
}

type Cause = dyn std::error::Error + 'static;

fn causes(first: &Cause) -> impl Iterator<Item = &Cause> {
    std::iter::successors(Some(first), |&error| error.source())
}

/// The status with all its causes, in one line.
pub(crate) fn describe_status(status: &Status) -> String {
    let mut words = status.message().to_owned();
    let mut last = words.clone();
    for cause in status.source().into_iter().flat_map(causes) {
        let next = cause.to_string();
        // Many errors repeat the text of their cause.
        if !last.contains(&next) && !words.contains(&next) {
            let _ = write!(words, ": {next}");
        }
        last = next;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_variants_whatever_the_code() {
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        for code in [Code::OutOfRange, Code::Unknown] {
            let error = Error::from_status(&Status::new(code, compacted));
            assert!(matches!(error, Error::Compacted { compact_revision: None }), "{error:?}");
        }
        // etcd sends this one as Unknown.
        let busy = Status::unknown("etcdserver: too many requests");
        assert!(matches!(Error::from_status(&busy), Error::TooManyRequests));
        let wrong = Status::invalid_argument("etcdserver: key is not provided");
        assert!(
            matches!(Error::from_status(&wrong), Error::InvalidArgument(text) if text.contains("key"))
        );
    }

    #[test]
    fn words_without_a_code_are_known_too() {
        let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        assert!(matches!(Error::from_text(reason), Error::PermissionDenied));
        let strange = Error::from_text("mvcc: watcher range is empty");
        assert_eq!(strange.to_string(), "mvcc: watcher range is empty (Unknown)");
    }

    #[test]
    fn a_verdict_is_certain_or_says_so() {
        let of = |code, words: &str| StatusKind::from_status(&Status::new(code, words));
        assert_eq!(of(Code::Unavailable, "etcdserver: no leader"), StatusKind::WrongMember);
        assert_eq!(of(Code::Unavailable, "not leader"), StatusKind::Unknown, "of a proxy");
        assert_eq!(of(Code::Unavailable, "etcdserver: request timed out"), StatusKind::Unknown);
        assert_eq!(of(Code::DeadlineExceeded, "context deadline exceeded"), StatusKind::Unknown);
        assert_eq!(
            of(Code::Unauthenticated, "etcdserver: invalid auth token"),
            StatusKind::TokenRejected
        );
        assert_eq!(of(Code::OutOfRange, "etcdserver: whatever"), StatusKind::Final);
        assert_eq!(of(Code::Unknown, "etcdserver: server stopped"), StatusKind::Unknown);
        assert_eq!(of(Code::Unknown, "election: not leader"), StatusKind::Final);
    }
}
