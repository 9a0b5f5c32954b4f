//! A message that a client or a member sends. The target reads it, writes it, and reads it again.
//!
//! ```text
//!   number of the message (1) │ its bytes
//! ```

use std::fmt::Debug;

use bytes::Bytes;
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::*;
use clearlane_proto::grpc::health::v1::*;
use clearlane_proto::peerpb::*;
use clearlane_proto::v3electionpb::*;
use clearlane_proto::v3lockpb::*;

use crate::input::Input;

macro_rules! messages {
    ($($message:ident),* $(,)?) => {
        [$((stringify!($message), round_trip::<$message>)),*]
    };
}

pub type RoundTrip = fn(Bytes);

/// Each message with its name. A test checks that no input message of an RPC is missing.
pub const MESSAGES: [(&str, RoundTrip); 55] = messages![
    RangeRequest,
    PutRequest,
    DeleteRangeRequest,
    TxnRequest,
    CompactionRequest,
    WatchRequest,
    LeaseGrantRequest,
    LeaseRevokeRequest,
    LeaseKeepAliveRequest,
    LeaseTimeToLiveRequest,
    LeaseLeasesRequest,
    MemberAddRequest,
    MemberRemoveRequest,
    MemberUpdateRequest,
    MemberListRequest,
    MemberPromoteRequest,
    AlarmRequest,
    StatusRequest,
    DefragmentRequest,
    HashRequest,
    HashKvRequest,
    SnapshotRequest,
    MoveLeaderRequest,
    DowngradeRequest,
    AuthEnableRequest,
    AuthDisableRequest,
    AuthStatusRequest,
    AuthenticateRequest,
    AuthUserAddRequest,
    AuthUserGetRequest,
    AuthUserListRequest,
    AuthUserDeleteRequest,
    AuthUserChangePasswordRequest,
    AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest,
    AuthRoleAddRequest,
    AuthRoleGetRequest,
    AuthRoleListRequest,
    AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest,
    CampaignRequest,
    ProclaimRequest,
    LeaderRequest,
    ResignRequest,
    LockRequest,
    UnlockRequest,
    HealthCheckRequest,
    HealthListRequest,
    Greeting,
    Parcel,
    CopyChunk,
    MembersRequest,
    PromoteRequest,
    Echo,
];

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let (_, round_trip) = MESSAGES[input.choice(MESSAGES.len())];
    round_trip(Bytes::copy_from_slice(input.rest()));
}

/// Checks that a message does not change when it is written and read again. Unknown fields are lost
/// when a message is read. So the second encoding is compared with the first encoding instead of
/// `bytes`.
pub(super) fn round_trip<M: Message + Default + PartialEq + Debug>(bytes: Bytes) {
    if let Ok(message) = M::decode(bytes) {
        assert_stable(&message);
    }
}

pub(super) fn assert_stable<M: Message + Default + PartialEq + Debug>(message: &M) {
    let encoded = message.encode_to_vec();
    assert_eq!(encoded.len(), message.encoded_len());
    let again = M::decode(&encoded[..]).expect("what was written can be read");
    assert!(again == *message, "{again:?} was read from what {message:?} wrote");
    assert_eq!(again.encode_to_vec(), encoded);
}
