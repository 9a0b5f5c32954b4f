//! The errors of a client. Each variant is a case that a caller can treat differently.
//!
//! A server responds with a code and a text. The codes are coarse: `OutOfRange` means either a
//! compacted revision or a future one. So clients of etcd compare the text, which is part of the
//! API. Each text to which a program can react has a variant here.
//!
//! A write whose response is lost fails with [`Error::OutcomeUnknown`]. It may have happened, so
//! the client does not write again. The caller can read the key, write again if a second write does
//! no harm, or guard the write with a [comparison](crate::Compare). All other errors of a write
//! mean that nothing was written, with three exceptions. After [`Error::Unexpected`], the server
//! has responded, but not as the API requires. An `unlock` or a `resign` may have happened although
//! it fails with [`Error::TimedOut`] or [`Error::Unavailable`]. A delete or a transaction whose
//! response would exceed 2 GiB has happened although it fails with [`Error::Rejected`].

use std::error::Error as _;
use std::fmt::Write as _;

use tonic::{Code, Status};

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a request has failed. Each variant is a case that a caller may treat differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The revision was compacted.
    #[error("the revision has been compacted{}", up_to(.compact_revision))]
    Compacted {
        /// The oldest revision that can still be read. `None` if the request was not a watch.
        compact_revision: Option<i64>,
    },
    /// The store has not reached the revision yet.
    #[error("the store has not reached the revision yet")]
    FutureRevision,
    /// The key does not exist.
    #[error("the key does not exist")]
    KeyNotFound,
    /// The lease was revoked, has expired, or never existed.
    #[error("the lease does not exist")]
    LeaseNotFound,
    /// Another lease has the id that the request chose.
    #[error("another lease has this id")]
    LeaseExists,
    /// No member of the cluster has this id.
    #[error("the cluster has no member with this id")]
    MemberNotFound,
    /// The store has reached its quota. Delete keys, compact and defragment the store, and then
    /// disarm the alarm.
    #[error("the store has reached its quota")]
    NoSpace,
    /// The server has too many pending requests. Nothing was done.
    #[error("the server has too many requests")]
    TooManyRequests,
    /// The server does not accept a request of this size. Nothing was done.
    #[error("the request is too large")]
    RequestTooLarge,
    /// Members have found that their data differs.
    #[error("the data of the members differs")]
    Corrupt,
    /// No reachable member has a leader. Nothing was done.
    #[error("the cluster has no leader")]
    NoLeader,
    /// Only the leader can handle this request, and none of the queried members is the leader.
    #[error("the member is not the leader")]
    NotLeader,
    /// The candidate is not, or is no longer, the leader of the election.
    #[error("the candidate is not the leader of the election")]
    NotElected,
    /// The user does not exist, or the password is wrong.
    #[error("wrong user or password")]
    AuthFailed,
    /// The user has no permission for this request.
    #[error("permission denied")]
    PermissionDenied,
    /// A user is required, or the token is not valid.
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
    /// The request needs authentication, which is not enabled in the cluster.
    #[error("authentication is not enabled")]
    AuthNotEnabled,
    /// The request is not valid. The text is the server's explanation.
    #[error("{0}")]
    InvalidArgument(String),
    /// The request is valid, but the current state of the cluster does not allow it.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The server does not support this call.
    #[error("{0}")]
    Unsupported(String),
    /// There was no response in time. A write was not carried out, except perhaps an `unlock` or a
    /// `resign`.
    #[error("no response in time: {0}")]
    TimedOut(String),
    /// No endpoint can be reached. A write was not carried out, except perhaps an `unlock` or a
    /// `resign`.
    #[error("no endpoint can be reached: {0}")]
    Unavailable(String),
    /// A write was sent, and its response is lost. The write may have happened, may still happen,
    /// or may never happen.
    #[error("the write may or may not have happened: {0}")]
    OutcomeUnknown(String),
    /// An error response that has no separate variant here.
    #[error("{text} ({code:?})")]
    Rejected {
        /// gRPC's code.
        code: Code,
        /// The server's explanation.
        text: String,
    },
    /// The API does not allow this response of the server.
    #[error("unexpected response: {0}")]
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

/// The response of a learner to a request that only a voter can handle.
const LEARNER: &str = "etcdserver: rpc not supported for learner";
pub(crate) const NONE_ELECTED: &str = "election: no leader";
/// The first words of errors that concern only one member, or that are temporary.
const TRANSIENT: [&str; 5] = [
    "etcdserver: request timed out",
    "etcdserver: server stopped",
    "etcdserver: leader changed",
    "context canceled",
    "context deadline exceeded",
];
/// The prefixes of texts that an etcd server itself sends.
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

    /// Returns whether the failed request may succeed at another endpoint, or later at the same
    /// one.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::NoLeader | Error::TimedOut(_))
    }

    /// Converts a text without a code, such as the reason why a watch was cancelled.
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

/// Converts an error text of a server to its variant. Returns `None` if the text does not have the
/// server's prefix, or if no variant has this text.
fn parse_server_text(words: &str) -> Option<Error> {
    words.starts_with("etcdserver: ").then(|| parse_text(words))?
}

/// Returns whether the server has rejected the token itself. Another token may be accepted.
pub(crate) fn is_token_refused(words: &str) -> bool {
    matches!(parse_server_text(words), Some(Error::Unauthenticated(_)))
}

/// The kinds of failed calls, which differ in whether the call may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusKind {
    /// The call was not sent. It may be sent to another endpoint.
    NotSent,
    /// The call was rejected before any work. It may be sent to another endpoint.
    WrongMember,
    /// The call may have been carried out.
    Unknown,
    TokenRejected,
    /// The server has rejected the call with a final error. The call is not sent to another
    /// endpoint.
    Final,
}

impl StatusKind {
    pub(crate) fn from_status(status: &Status) -> StatusKind {
        let words = status.message();
        if let Some(source) = status.source() {
            let is_unsent = causes(source).any(|cause| cause.is::<tonic::ConnectError>());
            return if is_unsent { StatusKind::NotSent } else { StatusKind::Unknown };
        }
        // Only a text of the server itself proves that the server has not accepted the request.
        match parse_server_text(words) {
            Some(Error::NoLeader | Error::NotLeader) => return StatusKind::WrongMember,
            Some(Error::Unauthenticated(_)) => return StatusKind::TokenRejected,
            _ if words == LEARNER => return StatusKind::WrongMember,
            _ if words.starts_with("Service was not ready") => return StatusKind::NotSent,
            // This is tonic's message for a stream that ends unexpectedly.
            _ if words.starts_with("protocol error: missing grpc-status") => {
                return StatusKind::Unknown;
            }
            _ => {}
        }
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => StatusKind::Unknown,
            // The text is not from the server. It is from a proxy between client and server, or
            // from interrupted work.
            Code::Unknown | Code::Internal if !begins_with_any(words, &FROM_SERVER) => {
                StatusKind::Unknown
            }
            // Locks and elections send all errors with the code Unknown.
            Code::Unknown if begins_with_any(words, &TRANSIENT) => StatusKind::Unknown,
            _ => StatusKind::Final,
        }
    }
}

type Cause = dyn std::error::Error + 'static;

fn causes(first: &Cause) -> impl Iterator<Item = &Cause> {
    std::iter::successors(Some(first), |&error| error.source())
}

/// Returns the status with all its causes, in one line.
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
        // etcd sends this error with the code Unknown.
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
