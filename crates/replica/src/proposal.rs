//! Requests that go through the log, each with the type of its response. In the log and the apply
//! loop, every request is an [`InternalRaftRequest`] and every response an [`AppliedResponse`].

use clearlane_proto::etcdserverpb::{
    AlarmRequest, AlarmResponse, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest,
    AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest,
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, AuthenticateResponse, CompactionRequest,
    CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, DowngradeResponse,
    InternalAuthenticateRequest, InternalRaftRequest, LeaseCheckpointRequest,
    LeaseCheckpointResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, PutRequest, PutResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use clearlane_proto::membershippb::DowngradeInfoSetRequest;

use crate::apply::AppliedResponse;
use crate::error::Error;
use crate::request_error::RequestError;

pub trait Proposal: Send {
    type Response;

    fn into_request(self) -> InternalRaftRequest;

    fn response_of(applied: AppliedResponse) -> Result<Self::Response, RequestError>;
}

/// Leaves the response as it is, for callers that do not read it.
impl Proposal for InternalRaftRequest {
    type Response = AppliedResponse;

    fn into_request(self) -> InternalRaftRequest {
        self
    }

    fn response_of(applied: AppliedResponse) -> Result<AppliedResponse, RequestError> {
        Ok(applied)
    }
}

macro_rules! proposals {
    ($($request:ty: $field:ident => $answer:ident($response:ty);)*) => {$(
        impl Proposal for $request {
            type Response = $response;

            fn into_request(self) -> InternalRaftRequest {
                InternalRaftRequest { $field: Some(self), ..InternalRaftRequest::default() }
            }

            fn response_of(applied: AppliedResponse) -> Result<$response, RequestError> {
                match applied {
                    AppliedResponse::$answer(response) => Ok(response),
                    other => Err(unexpected(&other)),
                }
            }
        }
    )*};
}

proposals! {
    PutRequest: put => Put(PutResponse);
    DeleteRangeRequest: delete_range => DeleteRange(DeleteRangeResponse);
    TxnRequest: txn => Txn(TxnResponse);
    CompactionRequest: compaction => Compact(CompactionResponse);
    AlarmRequest: alarm => Alarm(AlarmResponse);
    DowngradeInfoSetRequest: downgrade_info_set => Downgrade(DowngradeResponse);
    LeaseGrantRequest: lease_grant => LeaseGrant(LeaseGrantResponse);
    LeaseRevokeRequest: lease_revoke => LeaseRevoke(LeaseRevokeResponse);
    LeaseCheckpointRequest: lease_checkpoint => LeaseCheckpoint(LeaseCheckpointResponse);
    AuthEnableRequest: auth_enable => Auth(Option<ResponseHeader>);
    AuthDisableRequest: auth_disable => Auth(Option<ResponseHeader>);
    InternalAuthenticateRequest: authenticate => Authenticate(AuthenticateResponse);
    AuthUserAddRequest: auth_user_add => Auth(Option<ResponseHeader>);
    AuthUserDeleteRequest: auth_user_delete => Auth(Option<ResponseHeader>);
    AuthUserChangePasswordRequest: auth_user_change_password => Auth(Option<ResponseHeader>);
    AuthUserGrantRoleRequest: auth_user_grant_role => Auth(Option<ResponseHeader>);
    AuthUserRevokeRoleRequest: auth_user_revoke_role => Auth(Option<ResponseHeader>);
    AuthRoleAddRequest: auth_role_add => Auth(Option<ResponseHeader>);
    AuthRoleDeleteRequest: auth_role_delete => Auth(Option<ResponseHeader>);
    AuthRoleGrantPermissionRequest: auth_role_grant_permission => Auth(Option<ResponseHeader>);
    AuthRoleRevokePermissionRequest: auth_role_revoke_permission => Auth(Option<ResponseHeader>);
}

fn unexpected(applied: &AppliedResponse) -> RequestError {
    // Prints only the variant's number, because the response may contain a token.
    let applied = std::mem::discriminant(applied);
    Error::damaged("a response", format!("{applied:?} belongs to another request")).into()
}
