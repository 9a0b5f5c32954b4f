//! Errors of the proxy, and errors of members that the proxy recognises by etcd's texts.

use tonic::{Code, Status};

const NO_LEADER: &str = "etcdserver: no leader";

pub(crate) fn no_leader() -> Status {
    Status::unavailable(NO_LEADER)
}

pub(crate) fn is_no_leader(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.message() == NO_LEADER
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
