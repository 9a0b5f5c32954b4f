//! The gRPC code for each error.
//!
//! Clients of etcd distinguish errors by their text, and decide by the code whether to try again.
//! Two codes are unexpected, but the same as etcd's: "too many requests" and "not enough started
//! members" have the code `Unknown`.

use clearlane_auth::AuthRejection as Users;
use clearlane_raft::read_index::ReadIndexError as Read;
use clearlane_replica::RequestError;
use clearlane_replica::apply::RequestRejection as Request;
use clearlane_replica::downgrade::DowngradeRejection as Downgrade;
use clearlane_replica::membership::MembershipRejection as Members;
use http::HeaderMap;
use tonic::{Code, Status};

/// The result of a method of a service.
pub(crate) type Reply<T> = Result<tonic::Response<T>, Status>;

pub(crate) fn from_error(error: impl Into<RequestError>) -> Status {
    let error = error.into();
    let code = match &error {
        RequestError::Rejected(refused) => request_code(*refused),
        RequestError::Membership(refused) => membership_code(*refused),
        RequestError::ReadIndex(Read::TooManyReaders)
        | RequestError::TooManyRequests
        | RequestError::Failed(_) => Code::Unknown,
        RequestError::ReadIndex(Read::ReaderIsWaiting) => Code::Internal,
        RequestError::Downgrade(Downgrade::InProgress)
        | RequestError::NotLeader
        | RequestError::BadTransferee
        | RequestError::NotSupportedForLearner => Code::FailedPrecondition,
        RequestError::Downgrade(_) | RequestError::InvalidApiVersion => Code::InvalidArgument,
        RequestError::ReadIndex(_)
        | RequestError::NoLeader
        | RequestError::Stopped
        | RequestError::TimedOut
        | RequestError::LeaderLost
        | RequestError::ConnectionLost
        | RequestError::Unhealthy => Code::Unavailable,
        RequestError::DeadlineExceeded => Code::DeadlineExceeded,
    };
    Status::new(code, error.to_string())
}

pub(crate) fn deadline_exceeded_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    from_error(RequestError::DeadlineExceeded).add_header(&mut trailers).expect("plain words");
    trailers
}

fn request_code(refused: Request) -> Code {
    match refused {
        Request::EmptyKey
        | Request::ValueProvided
        | Request::LeaseProvided
        | Request::TooManyOps
        | Request::DuplicateKey
        | Request::InvalidSortOption
        | Request::RequestTooLarge
        | Request::NameTooLong(_)
        | Request::UnknownAlarmAction
        | Request::KeyNotFound => Code::InvalidArgument,
        Request::StreamOrder | Request::StreamFilter => Code::Unimplemented,
        Request::LeaseNotFound => Code::NotFound,
        Request::LeaseExists => Code::FailedPrecondition,
        Request::LeaseTtlTooLarge | Request::Compacted | Request::FutureRevision => {
            Code::OutOfRange
        }
        Request::Auth(refused) => auth_code(refused),
        Request::NoSpace => Code::ResourceExhausted,
        Request::Corrupt => Code::DataLoss,
    }
}

fn auth_code(refused: Users) -> Code {
    match refused {
        Users::UserEmpty
        | Users::RoleEmpty
        | Users::PermissionNotGiven
        | Users::InvalidManagement
        | Users::AuthFailed
        | Users::OldRevision => Code::InvalidArgument,
        Users::PermissionDenied => Code::PermissionDenied,
        Users::InvalidToken => Code::Unauthenticated,
        Users::NoPasswordUser | Users::VerifyOnly => Code::Unknown,
        _ => Code::FailedPrecondition,
    }
}

fn membership_code(refused: Members) -> Code {
    match refused {
        Members::Removed | Members::NotFound => Code::NotFound,
        Members::BadUrls => Code::InvalidArgument,
        Members::NotEnoughStarted => Code::Unknown,
        _ => Code::FailedPrecondition,
    }
}
