//! What can go wrong, by what a caller can do about it.
//!
//! A server answers with a code and a text. The codes are coarse: `OutOfRange` is both a revision
//! that was compacted and one that does not exist yet. So clients of etcd go by the text, which is
//! part of the API. Each text that a program would act on has a variant here.
//!
//! A write whose answer is lost is [`Error::OutcomeUnknown`]: it may have happened, so the client
//! does not write again. The caller can read, write again if twice does no harm, or guard the write
//! with a [comparison](crate::Compare). Every other error of a write means that nothing was
//! written.

use std::error::Error as _;
use std::fmt::Write as _;

use tonic::{Code, Status};

/// Either the answer, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The revision was compacted away. A watch knows up to where.
    #[error("the revision has been compacted{}", up_to(.compact_revision))]
    Compacted {
        /// The oldest revision that can still be read, where the server says it.
        compact_revision: Option<i64>,
    },
    /// The revision has not happened yet.
    #[error("the revision lies in the future")]
    FutureRevision,
    /// There is no such key, and there had to be.
    #[error("there is no such key")]
    KeyNotFound,
    /// There is no such lease: it was revoked, has expired, or never was.
    #[error("there is no such lease")]
    LeaseNotFound,
    /// The id is that of a lease already.
    #[error("there is a lease of this id already")]
    LeaseExists,
    /// There is no such member.
    #[error("there is no such member")]
    MemberNotFound,
    /// The store is full. Deleting, compacting and defragmenting helps, and then disarming the
    /// alarm.
    #[error("the store is full")]
    NoSpace,
    /// The server has too much to do. Nothing was done; later it may be.
    #[error("the server has too much to do")]
    TooManyRequests,
    /// The request is larger than the server takes.
    #[error("the request is too large")]
    RequestTooLarge,
    /// Members have found that their data differs.
    #[error("the cluster is corrupt")]
    Corrupt,
    /// No member that can be reached knows of a leader. Nothing was done.
    #[error("there is no leader")]
    NoLeader,
    /// Only the leader does this, and no member that was asked is it.
    #[error("not the leader")]
    NotLeader,
    /// In an election: this candidate does not lead (any more).
    #[error("not the leader of the election")]
    NotElected,
    /// User or password is wrong.
    #[error("wrong user or password")]
    AuthFailed,
    /// This user may not do that.
    #[error("permission denied")]
    PermissionDenied,
    /// The server wants to know which user asks, and was not informed, or does not believe it.
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
    /// Authentication is not switched on.
    #[error("authentication is not enabled")]
    AuthNotEnabled,
    /// The request makes no sense to the server.
    #[error("{0}")]
    InvalidArgument(String),
    /// The request makes sense, but not in the state in which the cluster is.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The server does not know how.
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
    /// The server refuses in words that this client has no name for.
    #[error("{text} ({code:?})")]
    Rejected {
        /// gRPC's code.
        code: Code,
        /// The server's words.
        text: String,
    },
    /// The server's answer is not one that the API allows.
    #[error("unexpected answer: {0}")]
    Unexpected(&'static str),
    /// What the client was given as endpoints, certificates or users cannot be used.
    #[error("{0}")]
    Setup(String),
    /// What was received could not be written where the caller wanted it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn up_to(revision: &Option<i64>) -> String {
    revision.map(|revision| format!(" up to {revision}")).unwrap_or_default()
}

/// Texts that have an error of their own.
pub(crate) mod text {
    pub(crate) const NO_LEADER: &str = "etcdserver: no leader";
    pub(crate) const NOT_LEADER: &str = "etcdserver: not leader";
    pub(crate) const LEARNER: &str = "etcdserver: rpc not supported for learner";
    pub(crate) const BAD_TOKEN: &str = "etcdserver: invalid auth token";
    pub(crate) const USER_EMPTY: &str = "etcdserver: user name is empty";
    pub(crate) const OLD_AUTH: &str = "etcdserver: revision of auth store is old";
    /// Troubles of a moment, or of one member.
    pub(crate) const TRANSIENT: [&str; 5] = [
        "etcdserver: request timed out",
        "etcdserver: server stopped",
        "etcdserver: leader changed",
        "context canceled",
        "context deadline exceeded",
    ];
    pub(crate) const NONE_ELECTED: &str = "election: no leader";

    /// Whether a server of etcd's kind speaks so of something that it has decided.
    pub(crate) fn is_from_server(words: &str) -> bool {
        const BEGINNINGS: [&str; 7] =
            ["etcdserver:", "auth:", "election:", "mutex:", "lease", "grpc:", "context "];
        BEGINNINGS.iter().any(|beginning| words.starts_with(beginning))
    }
}

impl Error {
    /// What a server's answer means.
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

    /// What a text means that came without a code, such as the reason why a watch was cancelled.
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

/// What a failed call says about whether it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusKind {
    /// It was not sent: another endpoint may be asked for anything.
    NotSent,
    /// It was rejected before any work: so, too.
    WrongMember,
    /// It is not known.
    Unknown,
    /// Turned away for want of a token that holds.
    TokenRejected,
    /// The server has decided.
    Final,
}

impl StatusKind {
    pub(crate) fn from_status(status: &Status) -> StatusKind {
        let words = status.message();
        if let Some(source) = status.source() {
            return if causes(source).any(|cause| cause.is::<tonic::ConnectError>()) {
                StatusKind::NotSent
            } else {
                StatusKind::Unknown
            };
        }
        match words {
            text::NO_LEADER | text::NOT_LEADER | text::LEARNER => return StatusKind::WrongMember,
            text::BAD_TOKEN | text::USER_EMPTY | text::OLD_AUTH => {
                return StatusKind::TokenRejected;
            }
            _ if words.starts_with("Service was not ready") => return StatusKind::NotSent,
            // tonic's words for a stream that ends in the middle.
            _ if words.starts_with("protocol error: missing grpc-status") => {
                return StatusKind::Unknown;
            }
            _ => {}
        }
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => StatusKind::Unknown,
            // Not a server's words, but a proxy's on the way, or of work that broke off.
            Code::Unknown | Code::Internal if !text::is_from_server(words) => StatusKind::Unknown,
            // Locks and elections send all their troubles without a code.
            Code::Unknown if text::TRANSIENT.iter().any(|passing| words.starts_with(passing)) => {
                StatusKind::Unknown
            }
            _ => StatusKind::Final,
        }
    }
}

type Cause = dyn std::error::Error + 'static;

fn causes(first: &Cause) -> impl Iterator<Item = &Cause> {
    std::iter::successors(Some(first), |&error| error.source())
}

/// A failure with all its causes, in one line.
pub(crate) fn describe_status(status: &Status) -> String {
    let mut words = status.message().to_owned();
    let mut last = words.clone();
    for cause in status.source().into_iter().flat_map(causes) {
        let next = cause.to_string();
        // Many an error repeats what it was made from.
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
        // The real server sends this one as Unknown.
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
