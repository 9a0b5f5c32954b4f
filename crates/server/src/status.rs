//! Which gRPC code goes with which words.
//!
//! Clients of etcd tell errors apart by their text, and decide by the code whether to try again. Two
//! codes are not what one would expect, and are etcd's all the same: "too many requests" and "not
//! enough started members" come as `Unknown`.

use clearlane_member::Trouble;
use clearlane_member::downgrade::Refused as Downgrade;
use clearlane_member::membership::Refused as Members;
use clearlane_member::requests::{Refused as Request, Reply};
use clearlane_member::users::Refused as Users;
use clearlane_read_index::Error as Read;
use http::HeaderMap;
use tonic::{Code, Status};

/// The status of a failed request.
pub fn of(trouble: &Trouble) -> Status {
    let code = match trouble {
        Trouble::Refused(refused) => of_request(*refused),
        Trouble::Members(refused) => of_members(*refused),
        Trouble::Read(Read::TooManyReaders) | Trouble::TooManyRequests => Code::Unknown,
        Trouble::Read(Read::ReaderIsWaiting) => Code::Internal,
        Trouble::Downgrade(Downgrade::InProcess) => Code::FailedPrecondition,
        Trouble::Downgrade(_) => Code::InvalidArgument,
        Trouble::NotLeader | Trouble::BadTransferee | Trouble::Learner => Code::FailedPrecondition,
        Trouble::BadApiVersion => Code::InvalidArgument,
        Trouble::Read(_) | Trouble::NoLeader | Trouble::Stopped => Code::Unavailable,
        Trouble::TimedOut | Trouble::LeaderLost | Trouble::ConnectionLost => Code::Unavailable,
        Trouble::DeadlineExceeded => Code::DeadlineExceeded,
        Trouble::Unhealthy => Code::Unavailable,
        Trouble::Failed(_) => Code::Unknown,
    };
    Status::new(code, trouble.to_string())
}

/// The trailers of an answer whose deadline has passed.
pub fn late() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    of(&Trouble::DeadlineExceeded).add_header(&mut trailers).expect("plain words");
    trailers
}

/// A reply of another kind than the request is a bug.
pub fn mismatch(reply: &Reply) -> Status {
    Status::internal(format!("{reply:?} answers another request"))
}

fn of_request(refused: Request) -> Code {
    match refused {
        Request::EmptyKey
        | Request::ValueProvided
        | Request::LeaseProvided
        | Request::TooManyOps
        | Request::DuplicateKey
        | Request::InvalidSortOption
        | Request::RequestTooLarge
        | Request::UnknownAlarmAction
        | Request::KeyNotFound => Code::InvalidArgument,
        Request::StreamOrder | Request::StreamFilter => Code::Unimplemented,
        Request::LeaseNotFound => Code::NotFound,
        Request::LeaseExists => Code::FailedPrecondition,
        Request::LeaseTtlTooLarge => Code::OutOfRange,
        Request::Compacted | Request::FutureRevision => Code::OutOfRange,
        Request::Users(refused) => of_users(refused),
        Request::NoSpace => Code::ResourceExhausted,
        Request::Corrupt => Code::DataLoss,
    }
}

fn of_users(refused: Users) -> Code {
    match refused {
        Users::UserEmpty | Users::RoleEmpty | Users::PermissionNotGiven | Users::InvalidRange => {
            Code::InvalidArgument
        }
        _ => Code::FailedPrecondition,
    }
}

fn of_members(refused: Members) -> Code {
    match refused {
        Members::Removed | Members::NotFound => Code::NotFound,
        Members::BadUrls => Code::InvalidArgument,
        Members::NotEnoughStarted => Code::Unknown,
        _ => Code::FailedPrecondition,
    }
}
