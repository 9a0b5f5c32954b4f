//! The service Auth, of a server that asks no client for a password.
//!
//! Users and roles are kept ([`clearlane_server::auth_store`]), but passwords are not asked for
//! yet. So enabling is refused after etcd's own checks: a client would rely on the answer
//! "enabled".

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clearlane_engine::Bucket;
use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::auth_server::Auth;
use clearlane_proto::etcdserverpb::{self as wire, ResponseHeader};
use clearlane_server::Server;
use clearlane_server::apply::ApplyError;
use clearlane_server::auth_store::{self, AuthRejection};
use tonic::{Request, Response, Status};

use crate::context::propose;
use crate::status::{self, Reply};

/// Each step doubles the work of hashing a password. The default is etcd's.
pub const BCRYPT_COST: u32 = 10;
/// bcrypt ignores what is longer, and etcd refuses it.
const PASSWORD_BYTES_MAX: usize = 72;

pub(crate) struct AuthService {
    pub(crate) server: Server,
    pub(crate) bcrypt_cost: u32,
}

impl AuthService {
    /// A linearizable read of users and roles.
    async fn read_auth<T>(
        &self,
        look: impl FnOnce(&(dyn ReadTxn + '_)) -> Result<T, ApplyError> + Send + 'static,
    ) -> Result<(Option<ResponseHeader>, T), Status>
    where
        T: Send + 'static,
    {
        self.server.linearizable_read_notify().await.map_err(status::from_error)?;
        let look = |read: &(dyn ReadTxn + '_)| (look(read), read.revision());
        let (found, revision) = self.server.read_store(look).await.map_err(status::from_error)?;
        Ok((self.server.header_at(revision), found.map_err(status::from_error)?))
    }
}

/// The hash goes into the log. It takes long on purpose, and not on a network thread.
async fn hash_password(password: String, cost: u32) -> Result<String, Status> {
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(Status::unknown("bcrypt: password length exceeds 72 bytes"));
    }
    let work = move || bcrypt::hash(password, cost);
    let failed = |error: &dyn std::fmt::Display| {
        Status::internal(format!("the password cannot be hashed: {error}"))
    };
    let text = tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))?;
    Ok(STANDARD.encode(text.map_err(|error| failed(&error))?))
}

/// For changes that need no preparation and are answered by a header alone.
macro_rules! propose_and_answer_header {
    ($service:expr, $request:expr, $response:ident) => {{
        let header = propose(&$service.server, $request.into_inner()).await?;
        Ok(Response::new(wire::$response { header }))
    }};
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(
        &self,
        _: Request<wire::AuthEnableRequest>,
    ) -> Reply<wire::AuthEnableResponse> {
        self.read_auth(auth_store::check_can_enable).await?;
        Err(Status::unimplemented("authentication is not served yet, and was not enabled"))
    }

    async fn auth_disable(
        &self,
        _: Request<wire::AuthDisableRequest>,
    ) -> Reply<wire::AuthDisableResponse> {
        let (header, ()) = self.read_auth(|_| Ok(())).await?;
        Ok(Response::new(wire::AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        _: Request<wire::AuthStatusRequest>,
    ) -> Reply<wire::AuthStatusResponse> {
        let (header, auth_revision) = self.read_auth(auth_store::revision).await?;
        Ok(Response::new(wire::AuthStatusResponse { header, enabled: false, auth_revision }))
    }

    async fn authenticate(
        &self,
        _: Request<wire::AuthenticateRequest>,
    ) -> Reply<wire::AuthenticateResponse> {
        Err(status::from_error(ApplyError::from(AuthRejection::NotEnabled)))
    }

    async fn user_add(
        &self,
        request: Request<wire::AuthUserAddRequest>,
    ) -> Reply<wire::AuthUserAddResponse> {
        let mut add = request.into_inner();
        let password = std::mem::take(&mut add.password);
        add.hashed_password.clear();
        if !add.options.is_some_and(|options| options.no_password) {
            add.hashed_password = hash_password(password, self.bcrypt_cost).await?;
        }
        let header = propose(&self.server, add).await?;
        Ok(Response::new(wire::AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<wire::AuthUserGetRequest>,
    ) -> Reply<wire::AuthUserGetResponse> {
        let name = request.into_inner().name;
        let (header, user) = self.read_auth(move |read| auth_store::user(read, &name)).await?;
        Ok(Response::new(wire::AuthUserGetResponse { header, roles: user.roles }))
    }

    async fn user_list(
        &self,
        _: Request<wire::AuthUserListRequest>,
    ) -> Reply<wire::AuthUserListResponse> {
        let names = |read: &(dyn ReadTxn + '_)| auth_store::names(read, Bucket::AuthUsers);
        let (header, users) = self.read_auth(names).await?;
        Ok(Response::new(wire::AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<wire::AuthUserDeleteRequest>,
    ) -> Reply<wire::AuthUserDeleteResponse> {
        propose_and_answer_header!(self, request, AuthUserDeleteResponse)
    }

    async fn user_change_password(
        &self,
        request: Request<wire::AuthUserChangePasswordRequest>,
    ) -> Reply<wire::AuthUserChangePasswordResponse> {
        let mut change = request.into_inner();
        change.hashed_password =
            hash_password(std::mem::take(&mut change.password), self.bcrypt_cost).await?;
        let header = propose(&self.server, change).await?;
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
        let role = request.into_inner().role;
        let look = move |read: &(dyn ReadTxn + '_)| auth_store::permissions(read, &role);
        let (header, perm) = self.read_auth(look).await?;
        Ok(Response::new(wire::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        _: Request<wire::AuthRoleListRequest>,
    ) -> Reply<wire::AuthRoleListResponse> {
        let names = |read: &(dyn ReadTxn + '_)| auth_store::names(read, Bucket::AuthRoles);
        let (header, roles) = self.read_auth(names).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_hashed_at_the_cost_that_was_set() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let text = runtime.block_on(hash_password("secret".to_owned(), 4)).unwrap();
        let text = String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
        assert_eq!(text.split('$').nth(2), Some("04"), "{text}");
        assert!(bcrypt::verify("secret", &text).unwrap());
    }
}
