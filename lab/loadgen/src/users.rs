//! Users of a load: the token that a user's requests carry, and the switch of authentication.
//!
//! ```text
//!   requests of all classes ── token ──▶ server
//!            ▲   refused ──▶ one of them authenticates, the others wait for its token
//! ```

use std::fmt;
use std::str::FromStr;

use clearlane_proto::authpb::{Permission, UserAddOptions, permission};
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest, AuthUserAddRequest, AuthUserDeleteRequest,
    AuthUserGrantRoleRequest, AuthenticateRequest,
};
use http::HeaderValue;
use parking_lot::Mutex;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::connection::Connection;
use crate::requests::Call;
use crate::response_scanner::ResponseStats;
use crate::{Error, Result, connection};

pub(crate) const TOKEN: &str = "token";
/// etcd's range of all keys.
const ALL_KEYS: &[u8] = &[0];
/// A token that has expired, or that is older than a change of users.
const REFUSED_TOKEN: [&str; 2] =
    ["Unauthenticated: ", "InvalidArgument: etcdserver: revision of auth store is old"];
const NOT_ENABLED: &str = "authentication is not enabled";

#[derive(Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub password: String,
}

/// Without the password.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<User, String> {
        match text.split_once(':') {
            Some((name, password)) if !name.is_empty() && !password.is_empty() => {
                Ok(User { name: name.to_owned(), password: password.to_owned() })
            }
            _ => Err("it must be NAME:PASSWORD".to_owned()),
        }
    }
}

impl User {
    /// One that may read and write all keys, once authentication is [on](enable).
    pub fn of_load() -> User {
        User { name: "load".to_owned(), password: "load-password".to_owned() }
    }

    fn root() -> User {
        User { name: "root".to_owned(), password: "root-password".to_owned() }
    }

    pub(crate) fn authenticate_request(&self) -> AuthenticateRequest {
        AuthenticateRequest { name: self.name.clone(), password: self.password.clone() }
    }

    async fn authenticate(&self, channel: Channel) -> std::result::Result<HeaderValue, Status> {
        let answer = AuthClient::new(channel).authenticate(self.authenticate_request()).await?;
        let token = HeaderValue::from_str(&answer.into_inner().token);
        let mut token = token.map_err(|_| Status::internal("the token is no value of a header"))?;
        token.set_sensitive(true);
        Ok(token)
    }
}

/// A user with a token, which is renewed when the server refuses it.
#[derive(Debug)]
pub struct Session {
    user: User,
    /// For logins.
    channel: Channel,
    token: Mutex<HeaderValue>,
    /// By one request, while the others that were refused wait.
    renewing: tokio::sync::Mutex<()>,
}

impl Session {
    pub async fn open(channel: Channel, user: User) -> Result<Session> {
        let token = user.authenticate(channel.clone()).await.map_err(|status| {
            let why = status.message();
            Error::Server(format!("user {} could not be authenticated: {why}", user.name))
        })?;
        let (token, renewing) = (Mutex::new(token), tokio::sync::Mutex::default());
        Ok(Session { user, channel, token, renewing })
    }

    pub(crate) fn user(&self) -> &User {
        &self.user
    }

    pub(crate) async fn call(
        &self,
        connection: &Connection,
        call: &Call,
    ) -> std::result::Result<ResponseStats, String> {
        let token = self.token.lock().clone();
        let of_user = |token| Call { token: Some(token), ..call.clone() };
        let result = connection.call(&of_user(token.clone())).await;
        match &result {
            Err(text) if REFUSED_TOKEN.iter().any(|refused| text.starts_with(refused)) => {
                let token = self.renew(&token).await?;
                connection.call(&of_user(token)).await
            }
            _ => result,
        }
    }

    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        with_token(message, &self.token.lock())
    }

    /// With the token of the user, if there is one.
    pub(crate) fn request_of<T>(session: Option<&Session>, message: T) -> Request<T> {
        match session {
            Some(session) => session.request(message),
            None => Request::new(message),
        }
    }

    async fn renew(&self, refused: &HeaderValue) -> std::result::Result<HeaderValue, String> {
        let _alone = self.renewing.lock().await;
        let present = self.token.lock().clone();
        if present != *refused {
            return Ok(present);
        }
        let token = self.user.authenticate(self.channel.clone()).await;
        let token = token.map_err(connection::text)?;
        *self.token.lock() = token.clone();
        Ok(token)
    }
}

fn with_token<T>(message: T, token: &HeaderValue) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().as_mut().insert(TOKEN, token.clone());
    request
}

/// Adds `root` and the [user of a load](User::of_load), and enables authentication. Does nothing if
/// that was done before.
pub async fn enable(channel: Channel) -> Result<()> {
    match User::root().authenticate(channel.clone()).await {
        Ok(_) => return Ok(()),
        Err(status) if status.message().contains(NOT_ENABLED) => {}
        Err(status) => return Err(failed("on")(status)),
    }
    let mut client = AuthClient::new(channel);
    for user in [User::root(), User::of_load()] {
        // The role has the user's name; etcd wants it so of root.
        add_user(&mut client, user).await.map_err(failed("on"))?;
    }
    client.auth_enable(AuthEnableRequest {}).await.map_err(failed("on"))?;
    Ok(())
}

async fn add_user(client: &mut AuthClient<Channel>, user: User) -> std::result::Result<(), Status> {
    let User { name, password } = user;
    let options = Some(UserAddOptions { no_password: false });
    let add = AuthUserAddRequest { name: name.clone(), password, options, ..Default::default() };
    client.user_add(add).await?;
    client.role_add(AuthRoleAddRequest { name: name.clone() }).await?;
    let all = Permission {
        perm_type: permission::Type::Readwrite as i32,
        key: ALL_KEYS.into(),
        range_end: ALL_KEYS.into(),
    };
    let grant = AuthRoleGrantPermissionRequest { name: name.clone(), perm: Some(all) };
    client.role_grant_permission(grant).await?;
    client.user_grant_role(AuthUserGrantRoleRequest { user: name.clone(), role: name }).await?;
    Ok(())
}

/// Disables authentication, and deletes what [`enable`] has added.
pub async fn disable(channel: Channel) -> Result<()> {
    let token = User::root().authenticate(channel.clone()).await.map_err(failed("off"))?;
    let mut client = AuthClient::new(channel);
    let disable = with_token(AuthDisableRequest {}, &token);
    client.auth_disable(disable).await.map_err(failed("off"))?;
    for User { name, .. } in [User::of_load(), User::root()] {
        client
            .user_delete(AuthUserDeleteRequest { name: name.clone() })
            .await
            .map_err(failed("off"))?;
        client.role_delete(AuthRoleDeleteRequest { role: name }).await.map_err(failed("off"))?;
    }
    Ok(())
}

fn failed(to: &str) -> impl Fn(Status) -> Error {
    move |status| {
        let why = status.message();
        Error::Server(format!("authentication could not be switched {to}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_and_a_password() {
        let user = User { name: "a".to_owned(), password: "b:c".to_owned() };
        assert_eq!("a:b:c".parse(), Ok(user.clone()));
        for wrong in ["", "a", "a:", ":b"] {
            assert_eq!(wrong.parse::<User>(), Err("it must be NAME:PASSWORD".to_owned()));
        }
        assert_eq!(format!("{user:?}"), "User { name: \"a\", .. }");
    }
}
