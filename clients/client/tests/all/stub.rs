//! A stub of an etcd server before 3.7. It has no streamed ranges. It requires tokens, unless it
//! was created by `Stub::without_users`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use clearlane_client::proto::etcdserverpb::auth_server::{Auth, AuthServer};
use clearlane_client::proto::etcdserverpb::kv_server::{Kv, KvServer};
use clearlane_client::proto::etcdserverpb::*;
use clearlane_client::proto::mvccpb::KeyValue;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

/// Number of keys. They are named `k0000`, `k0001` and so on.
pub(crate) const KEYS: usize = 2500;
const REVISION: i64 = 17;

/// A server with one user and at most one valid token. If `is_off` is true, authentication is
/// disabled.
#[derive(Clone, Default)]
pub(crate) struct Stub {
    good: Arc<Mutex<Option<String>>>,
    given: Arc<AtomicU64>,
    is_off: bool,
}

impl Stub {
    pub(crate) fn without_users() -> Stub {
        Stub { is_off: true, ..Stub::default() }
    }

    pub(crate) async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(AuthServer::new(self.clone()))
            .add_service(KvServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        endpoint
    }

    pub(crate) fn expire(&self) {
        *self.good.lock().unwrap() = None;
    }

    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let token = request.metadata().get("token");
        let good = self.good.lock().unwrap();
        match token {
            None if self.is_off => Ok(()),
            None => Err(Status::invalid_argument("etcdserver: user name is empty")),
            Some(token) if good.as_deref() == token.to_str().ok() => Ok(()),
            Some(_) => Err(Status::unauthenticated("etcdserver: invalid auth token")),
        }
    }
}

macro_rules! auth {
    ($($name:ident $request:ident $response:ident),+) => {
        #[tonic::async_trait]
        impl Auth for Stub {
            async fn authenticate(
                &self,
                request: Request<AuthenticateRequest>,
            ) -> Answer<AuthenticateResponse> {
                let AuthenticateRequest { name, password } = request.into_inner();
                if self.is_off {
                    let words = "etcdserver: authentication is not enabled";
                    return Err(Status::failed_precondition(words));
                }
                if (&name[..], &password[..]) != ("root", "secret") {
                    let words = "etcdserver: authentication failed, invalid user ID or password";
                    return Err(Status::invalid_argument(words));
                }
                let number = self.given.fetch_add(1, Ordering::Relaxed);
                let token = format!("token.{number}");
                *self.good.lock().unwrap() = Some(token.clone());
                Ok(Response::new(AuthenticateResponse { token, ..Default::default() }))
            }

            $(async fn $name(&self, _: Request<$request>) -> Answer<$response> {
                Err(Status::unimplemented("not here"))
            })+
        }
    };
}

auth!(
    auth_enable AuthEnableRequest AuthEnableResponse,
    auth_disable AuthDisableRequest AuthDisableResponse,
    auth_status AuthStatusRequest AuthStatusResponse,
    user_add AuthUserAddRequest AuthUserAddResponse,
    user_get AuthUserGetRequest AuthUserGetResponse,
    user_list AuthUserListRequest AuthUserListResponse,
    user_delete AuthUserDeleteRequest AuthUserDeleteResponse,
    user_change_password AuthUserChangePasswordRequest AuthUserChangePasswordResponse,
    user_grant_role AuthUserGrantRoleRequest AuthUserGrantRoleResponse,
    user_revoke_role AuthUserRevokeRoleRequest AuthUserRevokeRoleResponse,
    role_add AuthRoleAddRequest AuthRoleAddResponse,
    role_get AuthRoleGetRequest AuthRoleGetResponse,
    role_list AuthRoleListRequest AuthRoleListResponse,
    role_delete AuthRoleDeleteRequest AuthRoleDeleteResponse,
    role_grant_permission AuthRoleGrantPermissionRequest AuthRoleGrantPermissionResponse,
    role_revoke_permission AuthRoleRevokePermissionRequest AuthRoleRevokePermissionResponse
);

#[tonic::async_trait]
impl Kv for Stub {
    type RangeStreamStream = tokio_stream::Empty<Result<RangeStreamResponse, Status>>;

    async fn range(&self, request: Request<RangeRequest>) -> Answer<RangeResponse> {
        self.check(&request)?;
        let RangeRequest { key, range_end, limit, revision, .. } = request.into_inner();
        let header = Some(ResponseHeader { revision: REVISION, ..Default::default() });
        if range_end.is_empty() {
            return Ok(Response::new(RangeResponse { header, count: 1, ..Default::default() }));
        }
        assert_eq!(revision, REVISION, "each page is of one moment");
        let mut found =
            (0..KEYS).map(|number| format!("k{number:04}")).skip_while(|name| *name < key);
        let record = |key: String| KeyValue { key: key.into(), ..Default::default() };
        let kvs = found.by_ref().take(limit as usize).map(record).collect();
        let more = found.next().is_some();
        Ok(Response::new(RangeResponse { header, kvs, more, count: 0 }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Answer<PutResponse> {
        self.check(&request)?;
        Ok(Response::new(PutResponse::default()))
    }

    async fn range_stream(&self, _: Request<RangeRequest>) -> Answer<Self::RangeStreamStream> {
        Err(Status::unimplemented("not here"))
    }

    async fn delete_range(&self, _: Request<DeleteRangeRequest>) -> Answer<DeleteRangeResponse> {
        Err(Status::permission_denied("etcdserver: permission denied"))
    }

    async fn txn(&self, _: Request<TxnRequest>) -> Answer<TxnResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Answer<CompactionResponse> {
        Err(Status::unimplemented("not here"))
    }
}
