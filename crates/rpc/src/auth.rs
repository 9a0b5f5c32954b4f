//! The service Auth: users, roles, tokens, and whether auth is enabled.
//!
//! Queries are linearizable reads on this member. Changes go through the log; the user's permission
//! is checked when the entry is applied. [`clearlane_auth`] keeps the users and roles.

use std::time::Duration;

use clearlane_auth::checks::Checker;
use clearlane_auth::password::{HashError, PASSWORD_BYTES_MAX};
use clearlane_auth::{AuthRejection, AuthState};
use clearlane_proto::etcdserverpb::auth_server::Auth;
use clearlane_proto::etcdserverpb::{self as wire, ResponseHeader};
use clearlane_server::observe::request_trace::{RequestTrace, SlowRequestFields, Stage};
use clearlane_server::{PasswordError, Server};
use prost::Message;
use tonic::{Request, Response, Status};

use crate::client_info::client_of;
use crate::context::propose;
use crate::credentials::server_for;
use crate::slow_request::RequestSummary;
use crate::status::{self, Reply};

pub(crate) struct AuthService {
    pub(crate) server: Server,
    /// A call of Authenticate that takes longer than this time is logged.
    pub(crate) slow_threshold: Duration,
}

/// Reads the users and roles linearizably. Returns the result of `read`, and a header with the
/// store's current revision.
async fn read_users<T>(
    server: &Server,
    read: impl FnOnce(Checker<'_>, &AuthState) -> Result<T, AuthRejection>,
) -> Result<(Option<ResponseHeader>, T), Status> {
    let found = server.read_users(read).await.map_err(status::from_error)?;
    let revision = server.store_revision().await.map_err(status::from_error)?;
    Ok((server.header_at(revision), found))
}

/// Returns the hash of a password, because only the hash may go into the log. Fails if the password
/// is too long, or if the caller may not change users. Hashing is expensive, so both checks are
/// made before it.
async fn hash_password(server: &Server, password: String) -> Result<String, Status> {
    let failed = |error: PasswordError| match error {
        PasswordError::Hash(error @ HashError::TooLong) => Status::unknown(error.to_string()),
        PasswordError::Hash(error) => Status::internal(error.to_string()),
        PasswordError::Request(error) => status::from_error(error),
    };
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(failed(HashError::TooLong.into()));
    }
    server.read_users(|user, _| user.admin()).await.map_err(status::from_error)?;
    server.hash_password(password).await.map_err(failed)
}

/// Proposes a change that needs no preparation, such as hashing a password, and returns a response
/// that has only a header.
macro_rules! propose_and_answer_header {
    ($service:expr, $request:expr, $response:ident) => {{
        let server = server_for(&$service.server, &$request);
        let header = propose(&server, $request.into_inner()).await?;
        Ok(Response::new(wire::$response { header }))
    }};
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(
        &self,
        request: Request<wire::AuthEnableRequest>,
    ) -> Reply<wire::AuthEnableResponse> {
        propose_and_answer_header!(self, request, AuthEnableResponse)
    }

    async fn auth_disable(
        &self,
        request: Request<wire::AuthDisableRequest>,
    ) -> Reply<wire::AuthDisableResponse> {
        propose_and_answer_header!(self, request, AuthDisableResponse)
    }

    async fn auth_status(
        &self,
        request: Request<wire::AuthStatusRequest>,
    ) -> Reply<wire::AuthStatusResponse> {
        let server = server_for(&self.server, &request);
        let status = |_: Checker<'_>, state: &AuthState| Ok((state.enabled, state.revision));
        let (header, (enabled, auth_revision)) = read_users(&server, status).await?;
        Ok(Response::new(wire::AuthStatusResponse { header, enabled, auth_revision }))
    }

    async fn authenticate(
        &self,
        request: Request<wire::AuthenticateRequest>,
    ) -> Reply<wire::AuthenticateResponse> {
        let (_whatever_token, extensions, request) = request.into_parts();
        let summary = RequestSummary::of_authenticate(&request);
        let recorder = self.server.threads().trace();
        let mut trace = RequestTrace::start().with_number(recorder.next_request_number());
        let response = self.server.authenticate(request, &mut trace).await;
        trace.end_stage(Stage::Sending);
        let (class, lane) = summary.trace_class(0);
        recorder.record_request(class, lane, trace);
        if trace.elapsed() > self.slow_threshold {
            let response_size = response.as_ref().map_or(0, Message::encoded_len);
            trace.log_slow_request(&SlowRequestFields {
                call: "/etcdserverpb.Auth/Authenticate",
                remote: &client_of(&extensions).to_string(),
                request: &summary,
                response_count: 0,
                response_size,
            });
        }
        response.map(Response::new).map_err(status::from_error)
    }

    async fn user_add(
        &self,
        request: Request<wire::AuthUserAddRequest>,
    ) -> Reply<wire::AuthUserAddResponse> {
        let server = server_for(&self.server, &request);
        let mut add = request.into_inner();
        let password = std::mem::take(&mut add.password);
        add.hashed_password.clear();
        if !add.options.is_some_and(|options| options.no_password) {
            add.hashed_password = hash_password(&server, password).await?;
        }
        let header = propose(&server, add).await?;
        Ok(Response::new(wire::AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<wire::AuthUserGetRequest>,
    ) -> Reply<wire::AuthUserGetResponse> {
        let server = server_for(&self.server, &request);
        let name = request.into_inner().name;
        let read = |user: Checker<'_>, state: &AuthState| {
            user.user_get(&name)?;
            state.roles_of(&name)
        };
        let (header, roles) = read_users(&server, read).await?;
        Ok(Response::new(wire::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(
        &self,
        request: Request<wire::AuthUserListRequest>,
    ) -> Reply<wire::AuthUserListResponse> {
        let server = server_for(&self.server, &request);
        let read = |user: Checker<'_>, state: &AuthState| user.admin().map(|()| state.user_names());
        let (header, users) = read_users(&server, read).await?;
        Ok(Response::new(wire::AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<wire::AuthUserDeleteRequest>,
    ) -> Reply<wire::AuthUserDeleteResponse> {
        propose_and_answer_header!(self, request, AuthUserDeleteResponse)
    }

    /// As in etcd, an empty password is not hashed. The stored hash is then empty, and no password
    /// matches it.
    async fn user_change_password(
        &self,
        request: Request<wire::AuthUserChangePasswordRequest>,
    ) -> Reply<wire::AuthUserChangePasswordResponse> {
        let server = server_for(&self.server, &request);
        let mut change = request.into_inner();
        let password = std::mem::take(&mut change.password);
        change.hashed_password.clear();
        if !password.is_empty() {
            change.hashed_password = hash_password(&server, password).await?;
        }
        let header = propose(&server, change).await?;
        Ok(Response::new(wire::AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<wire::AuthUserGrantRoleRequest>,
    ) -> Reply<wire::AuthUserGrantRoleResponse> {
        propose_and_answer_header!(self, request, AuthUserGrantRoleResponse)
    }

    async fn user_revoke_role(
        &self,
        request: Request<wire::AuthUserRevokeRoleRequest>,
    ) -> Reply<wire::AuthUserRevokeRoleResponse> {
        propose_and_answer_header!(self, request, AuthUserRevokeRoleResponse)
    }

    async fn role_add(
        &self,
        request: Request<wire::AuthRoleAddRequest>,
    ) -> Reply<wire::AuthRoleAddResponse> {
        propose_and_answer_header!(self, request, AuthRoleAddResponse)
    }

    async fn role_get(
        &self,
        request: Request<wire::AuthRoleGetRequest>,
    ) -> Reply<wire::AuthRoleGetResponse> {
        let server = server_for(&self.server, &request);
        let role = request.into_inner().role;
        let read = |user: Checker<'_>, state: &AuthState| {
            user.role_get(&role)?;
            state.permissions_of(&role)
        };
        let (header, perm) = read_users(&server, read).await?;
        Ok(Response::new(wire::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<wire::AuthRoleListRequest>,
    ) -> Reply<wire::AuthRoleListResponse> {
        let server = server_for(&self.server, &request);
        let read = |user: Checker<'_>, state: &AuthState| user.admin().map(|()| state.role_names());
        let (header, roles) = read_users(&server, read).await?;
        Ok(Response::new(wire::AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<wire::AuthRoleDeleteRequest>,
    ) -> Reply<wire::AuthRoleDeleteResponse> {
        propose_and_answer_header!(self, request, AuthRoleDeleteResponse)
    }

    async fn role_grant_permission(
        &self,
        request: Request<wire::AuthRoleGrantPermissionRequest>,
    ) -> Reply<wire::AuthRoleGrantPermissionResponse> {
        propose_and_answer_header!(self, request, AuthRoleGrantPermissionResponse)
    }

    async fn role_revoke_permission(
        &self,
        request: Request<wire::AuthRoleRevokePermissionRequest>,
    ) -> Reply<wire::AuthRoleRevokePermissionResponse> {
        propose_and_answer_header!(self, request, AuthRoleRevokePermissionResponse)
    }
}
