//! Errors of the proxy, and errors of members that the proxy recognises by etcd's texts.

use tonic::{Code, Status};

const NO_LEADER: &str = "etcdserver: no leader";
/// Errors after which a client of etcd logs in again. A member that sends one of them has not
/// carried out the call.
const TOKEN_REJECTIONS: [&str; 3] = [
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
];

pub(crate) fn no_leader() -> Status {
    Status::unavailable(NO_LEADER)
}

pub(crate) fn is_no_leader(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.message() == NO_LEADER
}

/// Returns true if a member has rejected the token of a call. `message` is the message of a status,
/// or the reason why a watch was canceled.
pub(crate) fn is_token_rejection(message: &str) -> bool {
    TOKEN_REJECTIONS.iter().any(|rejection| message.ends_with(rejection))
}

pub(crate) fn token_rejected() -> Status {
    Status::unauthenticated(TOKEN_REJECTIONS[0])
}

pub(crate) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// The end of a stream when the proxy stops. The text is etcd's.
pub(crate) fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

/// The error of a call that was not sent, because no member is connected.
pub(crate) fn no_member() -> Status {
    Status::unavailable("clearlane grpc-proxy: no member of the cluster can be reached")
}

/// The error of a call that may have been carried out. The text is etcd's.
pub(crate) fn connection_lost() -> Status {
    Status::unavailable("etcdserver: request timed out, possibly due to connection lost")
}
