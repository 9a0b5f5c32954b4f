//! A server of Clearlane or etcd in a separate process, with the users, roles, keys and leases of
//! the tables.
//!
//! ```text
//!   user     role    permission
//!   none     -
//!   ro       ro      READ       k/ .. k0
//!   wo       wo      WRITE      k/ .. k0
//!   exact    exact   READWRITE  k/ .. k0      equals the range of most requests
//!   narrow   narrow  READWRITE  k/1 .. k/2    a part of the range of most requests
//!   all      all     READWRITE  \0 .. \0      all keys, but not an administrator
//!   root     root
//!   admin    root    an administrator with another name
//!   spare    spare   READ       s             the target of other users' requests
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clearlane_net::free_ports;
use clearlane_proto::authpb::Permission;
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserGrantRoleRequest, AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest,
    PutRequest,
};
use prost::Message;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::call::{Call, Outcome, Token, call};
use crate::program_process::{RunningProgram, member};

/// The password of all users.
pub(crate) const PASSWORD: &str = "pw";

/// A lease without keys.
pub(crate) const LEASE_FREE: i64 = 100;
/// The lease of the key `k/1-lease`. The user `narrow` also has a permission for this key.
pub(crate) const LEASE_NARROW: i64 = 101;
/// The lease of the key `k/3-lease`. The user `exact` has a permission for this key, and `narrow`
/// has none.
pub(crate) const LEASE_EXACT: i64 = 102;
/// The lease of the key `z-lease`, which is outside the range `k/ .. k0`.
pub(crate) const LEASE_OUTSIDE: i64 = 103;
/// The TTL of the leases. It is so long that none expires during a test.
pub(crate) const LEASE_SECONDS: i64 = 100_000;

const PERMISSIONS: [(&str, Type, &str, &str); 6] = [
    ("ro", Type::Read, "k/", "k0"),
    ("wo", Type::Write, "k/", "k0"),
    ("exact", Type::Readwrite, "k/", "k0"),
    ("narrow", Type::Readwrite, "k/1", "k/2"),
    ("all", Type::Readwrite, "\0", "\0"),
    ("spare", Type::Read, "s", ""),
];

const ROLES: [(&str, &str); 9] = [
    ("none", ""),
    ("ro", "ro"),
    ("wo", "wo"),
    ("exact", "exact"),
    ("narrow", "narrow"),
    ("all", "all"),
    ("root", "root"),
    ("admin", "root"),
    ("spare", "spare"),
];

#[derive(Clone, Debug)]
pub(crate) enum Program {
    Clearlane,
    Etcd(PathBuf),
}

impl Program {
    fn command(&self, dir: &TempDir, flags: &[&str]) -> Command {
        let ours = member(dir.path(), flags);
        match self {
            Program::Clearlane => ours,
            Program::Etcd(program) => {
                let mut etcd = Command::new(program);
                // etcd's gateway calls the port in the flag, so the port in the flag must not be 0.
                let free = free_ports(1).unwrap()[0];
                let urls = format!("--listen-client-urls=http://127.0.0.1:{free}");
                etcd.args(ours.get_args()).arg(urls);
                etcd
            }
        }
    }
}

pub(crate) struct Server {
    address: String,
    channel: Channel,
    tokens: RefCell<BTreeMap<String, String>>,
    _process: RunningProgram,
    _dir: TempDir,
}

impl Server {
    /// Starts a server with authentication enabled, and a token for each user.
    pub(crate) async fn start(program: &Program, flags: &[&str]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let flags = [&["--bcrypt-cost=4"], flags].concat();
        let mut process = RunningProgram::start(&mut program.command(&dir, &flags));
        let address = process.ready();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let tokens = RefCell::default();
        let server = Server { address, channel, tokens, _process: process, _dir: dir };
        server.set_up().await;
        server
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    async fn set_up(&self) {
        for (role, kind, key, range_end) in PERMISSIONS {
            self.must("Auth/RoleAdd", AuthRoleAddRequest { name: role.to_owned() }).await;
            let (key, range_end) = (key.into(), range_end.into());
            let perm = Some(Permission { perm_type: kind as i32, key, range_end });
            let granted = AuthRoleGrantPermissionRequest { name: role.to_owned(), perm };
            self.must("Auth/RoleGrantPermission", granted).await;
        }
        self.must("Auth/RoleAdd", AuthRoleAddRequest { name: "root".to_owned() }).await;
        for (user, role) in ROLES {
            self.add_user(user, role).await;
        }
        for id in [LEASE_FREE, LEASE_NARROW, LEASE_EXACT, LEASE_OUTSIDE] {
            let granted = LeaseGrantRequest { id, ttl: LEASE_SECONDS };
            self.must("Lease/LeaseGrant", granted).await;
        }
        for (key, lease) in [
            ("k/1", 0),
            ("k/2", 0),
            ("z", 0),
            ("k/1-lease", LEASE_NARROW),
            ("k/3-lease", LEASE_EXACT),
            ("z-lease", LEASE_OUTSIDE),
        ] {
            let put =
                PutRequest { key: key.into(), value: "1".into(), lease, ..Default::default() };
            self.must("KV/Put", put).await;
        }
        self.must("Auth/AuthEnable", AuthEnableRequest {}).await;
        self.log_in_all().await;
    }

    /// Adds a user. `role` may be empty.
    pub(crate) async fn add_user(&self, name: &str, role: &str) {
        let (name, password) = (name.to_owned(), PASSWORD.to_owned());
        let user = AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
        self.must("Auth/UserAdd", user).await;
        if !role.is_empty() {
            let role = AuthUserGrantRoleRequest { user: name, role: role.to_owned() };
            self.must("Auth/UserGrantRole", role).await;
        }
    }

    pub(crate) async fn log_in_all(&self) {
        for (user, _) in ROLES {
            self.log_in(user).await;
        }
    }

    pub(crate) async fn log_in(&self, user: &str) -> String {
        let token = self.token(user, PASSWORD).await.unwrap_or_else(|outcome| {
            panic!("{user} cannot log in: {outcome:?}");
        });
        self.tokens.borrow_mut().insert(user.to_owned(), token.clone());
        token
    }

    async fn token(&self, user: &str, password: &str) -> Result<String, Outcome> {
        let (name, password) = (user.to_owned(), password.to_owned());
        let asked = Call::new("Auth/Authenticate", AuthenticateRequest { name, password });
        let reply = match call(&self.channel, &asked, &Token::none()).await {
            Outcome::Reply(reply) => reply,
            failed => return Err(failed),
        };
        Ok(AuthenticateResponse::decode(reply).unwrap().token)
    }

    /// Returns the last token of a user, or empty text if there is none.
    pub(crate) fn token_of(&self, user: &str) -> String {
        self.tokens.borrow().get(user).cloned().unwrap_or_default()
    }

    pub(crate) async fn call(&self, asked: &Call, token: &Token) -> Outcome {
        call(&self.channel, asked, token).await
    }

    /// Makes a call as root. Logs in again if an earlier step has invalidated root's token.
    pub(crate) async fn as_root(&self, asked: &Call) -> Outcome {
        for _ in 0..2 {
            let token = self.tokens.borrow().get("root").cloned();
            let token = token.map_or(Token::none(), |token| Token::of(&token));
            match self.call(asked, &token).await {
                Outcome::Failure { code, .. } if code == "Unauthenticated" => {}
                other => return other,
            }
            self.log_in("root").await;
        }
        panic!("root's token is not accepted for {}", asked.method);
    }

    pub(crate) async fn must<M: Message>(&self, method: &'static str, request: M) {
        let outcome = self.as_root(&Call::new(method, request)).await;
        assert!(matches!(outcome, Outcome::Reply(_)), "{method}: {outcome:?}");
    }

    /// Returns an expired token of `user`. If the token is still valid when it is used, this use
    /// renews it, so the function starts again with a new token.
    pub(crate) async fn expired_token(&self, user: &str, time_to_live: Duration) -> String {
        let asked = Call::new("Auth/AuthStatus", AuthEnableRequest {});
        loop {
            let token = self.log_in(user).await;
            // The server looks for expired tokens once a second.
            tokio::time::sleep(time_to_live + Duration::from_secs(1)).await;
            match self.call(&asked, &Token::of(&token)).await {
                Outcome::Failure { code, .. } if code == "Unauthenticated" => return token,
                _ => {}
            }
        }
    }
}
