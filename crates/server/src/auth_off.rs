//! The service Auth, of a server that asks nobody for a password.
//!
//! Users and roles can be prepared, and are kept: see [`clearlane_member::users`]. To ask for
//! passwords is not served yet, so enabling it is refused after etcd's own checks, and clearly: a
//! client that is told "enabled" would trust in it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clearlane_engine::Bucket;
use clearlane_member::requests::{self, Reply};
use clearlane_member::users::{self, Refused};
use clearlane_member::{Handle, Trouble};
use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::auth_server::Auth;
use clearlane_proto::etcdserverpb::{
    AuthDisableRequest, AuthDisableResponse, AuthEnableRequest, AuthEnableResponse,
    AuthRoleAddRequest, AuthRoleAddResponse, AuthRoleDeleteRequest, AuthRoleDeleteResponse,
    AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleGrantPermissionResponse, AuthRoleListRequest, AuthRoleListResponse,
    AuthRoleRevokePermissionRequest, AuthRoleRevokePermissionResponse, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserAddResponse, AuthUserChangePasswordRequest,
    AuthUserChangePasswordResponse, AuthUserDeleteRequest, AuthUserDeleteResponse,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserGrantRoleResponse,
    AuthUserListRequest, AuthUserListResponse, AuthUserRevokeRoleRequest,
    AuthUserRevokeRoleResponse, AuthenticateRequest, AuthenticateResponse, InternalRaftRequest,
    ResponseHeader,
};
use tonic::{Request, Response, Status};

use crate::caller::{Who, admit};
use crate::status;

/// How much work it is to hash a password: each step doubles it. By default it is etcd's.
pub const BCRYPT_COST: u32 = 10;
/// bcrypt looks at no more of a password, and etcd takes none that is longer.
const PASSWORD_BYTES_MAX: usize = 72;

type Answer<T> = Result<Response<T>, Status>;

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct AuthService {
    member: Handle,
    bcrypt_cost: u32,
}

impl AuthService {
    /// In front of a member. Passwords are hashed at this cost: `--bcrypt-cost`.
    pub fn new(member: Handle, bcrypt_cost: u32) -> AuthService {
        AuthService { member, bcrypt_cost }
    }

    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        admit(&self.member, request.metadata().as_ref(), Who::Voters)
    }

    /// Changes users and roles.
    async fn change(&self, request: InternalRaftRequest) -> Result<Option<ResponseHeader>, Status> {
        match self.member.write(request).await.map_err(|trouble| status::of(&trouble))? {
            Reply::Users(header) => Ok(header),
            reply => Err(status::mismatch(&reply)),
        }
    }

    /// Looks at them, after all that was acknowledged before.
    async fn look<T>(
        &self,
        look: impl FnOnce(&(dyn ReadTxn + '_)) -> clearlane_member::Result<Result<T, Refused>>,
    ) -> Result<(Option<ResponseHeader>, T), Status> {
        let told = |trouble: Trouble| status::of(&trouble);
        self.member.fresh().await.map_err(told)?;
        let store = self.member.store();
        let read = store.read();
        let found = look(&*read).map_err(|error| told(error.into()))?;
        let found = found.map_err(|refused| told(refused_as(refused)))?;
        let revision = read.revision();
        let mut header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        self.member.stamp(&mut header);
        Ok((header, found))
    }
}

fn refused_as(refused: Refused) -> Trouble {
    requests::Refused::from(refused).into()
}

/// As it goes into the log. It is work, on purpose, and not for a network thread.
async fn hashed(password: String, cost: u32) -> Result<String, Status> {
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

/// A change that has nothing to prepare, and nothing but a header to answer.
macro_rules! changes {
    ($service:expr, $request:expr, $field:ident, $response:ident) => {{
        $service.admit(&$request)?;
        let $field = Some($request.into_inner());
        let request = InternalRaftRequest { $field, ..Default::default() };
        let header = $service.change(request).await?;
        Ok(Response::new($response { header }))
    }};
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(&self, request: Request<AuthEnableRequest>) -> Answer<AuthEnableResponse> {
        self.admit(&request)?;
        self.look(users::could_enable).await?;
        Err(Status::unimplemented("authentication is not served yet, and was not enabled"))
    }

    async fn auth_disable(
        &self,
        request: Request<AuthDisableRequest>,
    ) -> Answer<AuthDisableResponse> {
        self.admit(&request)?;
        let (header, ()) = self.look(|_| Ok(Ok(()))).await?;
        Ok(Response::new(AuthDisableResponse { header }))
    }

    async fn auth_status(&self, request: Request<AuthStatusRequest>) -> Answer<AuthStatusResponse> {
        self.admit(&request)?;
        let (header, auth_revision) = self.look(|read| Ok(Ok(users::revision(read)?))).await?;
        Ok(Response::new(AuthStatusResponse { header, enabled: false, auth_revision }))
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Answer<AuthenticateResponse> {
        self.admit(&request)?;
        Err(status::of(&refused_as(Refused::NotEnabled)))
    }

    async fn user_add(&self, request: Request<AuthUserAddRequest>) -> Answer<AuthUserAddResponse> {
        self.admit(&request)?;
        let mut add = request.into_inner();
        let password = std::mem::take(&mut add.password);
        add.hashed_password.clear();
        if !add.options.is_some_and(|options| options.no_password) {
            add.hashed_password = hashed(password, self.bcrypt_cost).await?;
        }
        let auth_user_add = Some(add);
        let request = InternalRaftRequest { auth_user_add, ..Default::default() };
        let header = self.change(request).await?;
        Ok(Response::new(AuthUserAddResponse { header }))
    }

    async fn user_get(&self, request: Request<AuthUserGetRequest>) -> Answer<AuthUserGetResponse> {
        self.admit(&request)?;
        let (header, user) = self.look(|read| users::user(read, &request.get_ref().name)).await?;
        Ok(Response::new(AuthUserGetResponse { header, roles: user.roles }))
    }

    async fn user_list(
        &self,
        request: Request<AuthUserListRequest>,
    ) -> Answer<AuthUserListResponse> {
        self.admit(&request)?;
        let names = |read: &(dyn ReadTxn + '_)| Ok(Ok(users::names(read, Bucket::AuthUsers)?));
        let (header, users) = self.look(names).await?;
        Ok(Response::new(AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> Answer<AuthUserDeleteResponse> {
        changes!(self, request, auth_user_delete, AuthUserDeleteResponse)
    }

    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Answer<AuthUserChangePasswordResponse> {
        self.admit(&request)?;
        let mut change = request.into_inner();
        change.hashed_password =
            hashed(std::mem::take(&mut change.password), self.bcrypt_cost).await?;
        let auth_user_change_password = Some(change);
        let request = InternalRaftRequest { auth_user_change_password, ..Default::default() };
        let header = self.change(request).await?;
        Ok(Response::new(AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> Answer<AuthUserGrantRoleResponse> {
        changes!(self, request, auth_user_grant_role, AuthUserGrantRoleResponse)
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> Answer<AuthUserRevokeRoleResponse> {
        changes!(self, request, auth_user_revoke_role, AuthUserRevokeRoleResponse)
    }

    async fn role_add(&self, request: Request<AuthRoleAddRequest>) -> Answer<AuthRoleAddResponse> {
        changes!(self, request, auth_role_add, AuthRoleAddResponse)
    }

    async fn role_get(&self, request: Request<AuthRoleGetRequest>) -> Answer<AuthRoleGetResponse> {
        self.admit(&request)?;
        let role = &request.get_ref().role;
        let (header, perm) = self.look(|read| users::permissions(read, role)).await?;
        Ok(Response::new(AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<AuthRoleListRequest>,
    ) -> Answer<AuthRoleListResponse> {
        self.admit(&request)?;
        let names = |read: &(dyn ReadTxn + '_)| Ok(Ok(users::names(read, Bucket::AuthRoles)?));
        let (header, roles) = self.look(names).await?;
        Ok(Response::new(AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> Answer<AuthRoleDeleteResponse> {
        changes!(self, request, auth_role_delete, AuthRoleDeleteResponse)
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> Answer<AuthRoleGrantPermissionResponse> {
        changes!(self, request, auth_role_grant_permission, AuthRoleGrantPermissionResponse)
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> Answer<AuthRoleRevokePermissionResponse> {
        changes!(self, request, auth_role_revoke_permission, AuthRoleRevokePermissionResponse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_hashed_at_the_cost_that_was_set() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let text = runtime.block_on(hashed("secret".to_owned(), 4)).unwrap();
        let text = String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
        assert_eq!(text.split('$').nth(2), Some("04"), "{text}");
        assert!(bcrypt::verify("secret", &text).unwrap());
    }
}
