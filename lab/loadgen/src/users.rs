//! The users of a load: the token that a user's requests carry, and how authentication is switched
//! on and off.
//!
//! ```text
//!   requests of all classes ── token ──▶ server
//!      ▲                                   │ token rejected
//!      └── new token ── one request authenticates, the other requests wait for its token
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
use crate::{Error, Result, TextResult, connection};

pub(crate) const TOKEN: &str = "token";
/// One zero byte. If both the key and the range end have this value, the range has all keys.
const ALL_KEYS: &[u8] = &[0];
/// The errors for a rejected token start with one of these strings. The token has expired, or it is
/// older than a change of users.
const REFUSED_TOKEN: [&str; 2] =
    ["Unauthenticated: ", "InvalidArgument: etcdserver: revision of auth store is old"];
const NOT_ENABLED: &str = "authentication is not enabled";

#[derive(Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub password: String,
}

/// Shows the user without the password.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> TextResult<User> {
        match text.split_once(':') {
            Some((name, password)) if !name.is_empty() && !password.is_empty() => {
                Ok(User { name: name.to_owned(), password: password.to_owned() })
            }
            _ => Err("must be NAME:PASSWORD".to_owned()),
        }
    }
}

impl User {
    /// Returns the user that may read and write all keys, once authentication is [on](enable).
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
        let mut token =
            token.map_err(|_| Status::internal("the token cannot be sent in a header"))?;
        token.set_sensitive(true);
        Ok(token)
    }
}

/// A user with a token. The token is renewed when the server rejects it.
#[derive(Debug)]
pub struct Session {
    user: User,
    /// The channel for logins.
    channel: Channel,
    token: Mutex<HeaderValue>,
    /// Held by the request that renews the token, while the other rejected requests wait.
    renewing: tokio::sync::Mutex<()>,
}

impl Session {
    pub async fn open(channel: Channel, user: User) -> Result<Session> {
        let token = user.authenticate(channel.clone()).await.map_err(|status| {
            let why = status.message();
            Error::Server(format!("cannot log in as user {}: {why}", user.name))
        })?;
        let (token, renewing) = (Mutex::new(token), tokio::sync::Mutex::default());
        Ok(Session { user, channel, token, renewing })
    }

    pub(crate) fn user(&self) -> &User {
        &self.user
    }

    /// Makes a call. If there is a session, the call has the token of its user. If the server
    /// rejects the token, the session gets a new token, and the call is made again once.
    pub(crate) async fn call(
        session: Option<&Session>,
        connection: &Connection,
        call: &Call,
    ) -> TextResult<ResponseStats> {
        let Some(session) = session else { return connection.call(call).await };
        let token = session.token.lock().clone();
        let of_user = |token| Call { token: Some(token), ..call.clone() };
        let result = connection.call(&of_user(token.clone())).await;
        match &result {
            Err(text) if REFUSED_TOKEN.iter().any(|refused| text.starts_with(refused)) => {
                let token = session.renew(&token).await?;
                connection.call(&of_user(token)).await
            }
            _ => result,
        }
    }

    /// Creates a request, with the token of the user if there is one.
    pub(crate) fn request_of<T>(session: Option<&Session>, message: T) -> Request<T> {
        match session {
            Some(session) => with_token(message, &session.token.lock()),
            None => Request::new(message),
        }
    }

    async fn renew(&self, refused: &HeaderValue) -> TextResult<HeaderValue> {
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
/// an earlier call has enabled it.
pub async fn enable(channel: Channel) -> Result<()> {
    let enabled = add_users_and_enable(channel).await;
    enabled.map_err(connection::error("cannot enable authentication"))
}

/// Disables authentication, and deletes the users and roles that [`enable`] has added.
pub async fn disable(channel: Channel) -> Result<()> {
    let disabled = disable_and_delete_users(channel).await;
    disabled.map_err(connection::error("cannot disable authentication"))
}

async fn add_users_and_enable(channel: Channel) -> std::result::Result<(), Status> {
    match User::root().authenticate(channel.clone()).await {
        Err(status) if status.message().contains(NOT_ENABLED) => {}
        other => return other.map(drop),
    }
    let mut client = AuthClient::new(channel);
    for user in [User::root(), User::of_load()] {
        // Each role has the name of its user. For root, etcd requires this name.
        add_user(&mut client, user).await?;
    }
    client.auth_enable(AuthEnableRequest {}).await.map(drop)
}

async fn disable_and_delete_users(channel: Channel) -> std::result::Result<(), Status> {
    let token = User::root().authenticate(channel.clone()).await?;
    let mut client = AuthClient::new(channel);
    client.auth_disable(with_token(AuthDisableRequest {}, &token)).await?;
    for User { name, .. } in [User::of_load(), User::root()] {
        client.user_delete(AuthUserDeleteRequest { name: name.clone() }).await?;
        client.role_delete(AuthRoleDeleteRequest { role: name }).await?;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_and_a_password() {
        let user = User { name: "a".to_owned(), password: "b:c".to_owned() };
        assert_eq!("a:b:c".parse(), Ok(user.clone()));
        for wrong in ["", "a", "a:", ":b"] {
            assert_eq!(wrong.parse::<User>(), Err("must be NAME:PASSWORD".to_owned()));
        }
        assert_eq!(format!("{user:?}"), "User { name: \"a\", .. }");
    }
}
