//! All auth data of a member: users, roles and tokens. In etcd: `authStore`.
//!
//! Only the apply loop changes users and roles. [`AuthStore::apply`] makes an entry's change in the
//! store's write transaction. The apply loop publishes the [`AuthChange`] after the transaction has
//! ended and before the request is answered.
//!
//! Every thread reads the state through one pointer without a lock. Only the tokens have a lock:
//! `simpleTokens` or `verifiedTokens`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use clearlane_contention::Registry;
use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::{InternalAuthenticateRequest, InternalRaftRequest};

use crate::changes::{self, ChangeError, TokenChange};
use crate::error::{AuthRejection, Result};
#[cfg(feature = "jwt")]
use crate::jwt::{JwtProvider, VerifiedTokens};
use crate::password::{BCRYPT_COST, PasswordCheck};
use crate::simple_tokens::SimpleTokens;
use crate::state::AuthState;

#[derive(Debug)]
pub enum TokenProvider {
    Simple(SimpleTokens),
    #[cfg(feature = "jwt")]
    Jwt(VerifiedTokens),
}

#[derive(Clone, Debug)]
pub struct AuthConfig {
    pub tokens: TokenConfig,
    pub bcrypt_cost: u32,
}

#[derive(Clone, Debug)]
pub enum TokenConfig {
    Simple {
        ttl: Duration,
    },
    #[cfg(feature = "jwt")]
    Jwt(Arc<JwtProvider>),
}

impl Default for AuthConfig {
    /// The defaults are etcd's.
    fn default() -> AuthConfig {
        let tokens = TokenConfig::Simple { ttl: Duration::from_secs(300) };
        AuthConfig { tokens, bcrypt_cost: BCRYPT_COST }
    }
}

#[derive(Debug)]
pub struct AuthStore {
    state: ArcSwap<AuthState>,
    /// A copy of `AuthState::enabled`, for callers that need no other part of the state.
    is_enabled: AtomicBool,
    tokens: TokenProvider,
    bcrypt_cost: u32,
}

/// A change that is written to a transaction of the store and not yet published.
#[derive(Debug)]
pub struct AuthChange {
    state: AuthState,
    tokens: TokenChange,
}

impl AuthStore {
    /// Creates an empty store. The caller must then [restore](AuthStore::restore) it.
    pub fn new(config: AuthConfig, locks: &Registry) -> AuthStore {
        let AuthConfig { tokens, bcrypt_cost } = config;
        let tokens = match tokens {
            TokenConfig::Simple { ttl } => TokenProvider::Simple(SimpleTokens::new(ttl, locks)),
            #[cfg(feature = "jwt")]
            TokenConfig::Jwt(provider) => TokenProvider::Jwt(VerifiedTokens::new(provider, locks)),
        };
        AuthStore {
            state: ArcSwap::from_pointee(AuthState { revision: 1, ..AuthState::default() }),
            is_enabled: AtomicBool::new(false),
            tokens,
            bcrypt_cost,
        }
    }

    /// Loads users and roles from a store: at startup, and when a raft snapshot is installed. Drops
    /// all simple tokens, because the entries that the raft snapshot covers may have ended some of
    /// them.
    pub fn restore(&self, read: &(dyn ReadTxn + '_)) -> Result<()> {
        self.set_state(AuthState::load(read)?);
        if let TokenProvider::Simple(tokens) = &self.tokens {
            tokens.drop_all();
        }
        Ok(())
    }

    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Acquire)
    }

    pub fn state(&self) -> Arc<AuthState> {
        self.state.load_full()
    }

    /// Runs `look` on the current state without cloning its `Arc`. `look` must return quickly.
    pub fn with_state<T>(&self, look: impl FnOnce(&AuthState) -> T) -> T {
        look(&self.state.load())
    }

    pub fn tokens(&self) -> &TokenProvider {
        &self.tokens
    }

    pub fn bcrypt_cost(&self) -> u32 {
        self.bcrypt_cost
    }

    /// Writes a change to the transaction `txn`. The caller must have
    /// [checked](AuthState::check_entry) the permission, and must publish the returned change.
    pub fn apply<A>(
        &self,
        txn: &mut (dyn WriteTxn<A> + '_),
        request: &InternalRaftRequest,
    ) -> std::result::Result<AuthChange, ChangeError> {
        let (state, tokens) = changes::apply(&self.state.load(), txn, request)?;
        Ok(AuthChange { state, tokens })
    }

    /// Makes a change visible. The apply loop does this before it applies the next entry. So no
    /// watcher receives an event of a later entry that its user may no longer read.
    pub fn publish(&self, change: AuthChange) {
        self.set_state(change.state);
        if let TokenProvider::Simple(tokens) = &self.tokens {
            match change.tokens {
                TokenChange::None => {}
                TokenChange::DropUser(name) => tokens.drop_user(&name),
                TokenChange::DropAll => tokens.drop_all(),
            }
        }
    }

    fn set_state(&self, state: AuthState) {
        let enabled = state.enabled;
        self.state.store(Arc::new(state));
        self.is_enabled.store(enabled, Ordering::Release);
    }

    /// Removes expired simple tokens.
    pub fn expire_tokens(&self, now: Duration) {
        if let TokenProvider::Simple(tokens) = &self.tokens {
            tokens.expire(now);
        }
    }

    /// Applies the authenticate request in the entry with this index. The password was checked
    /// before the entry was proposed. Returns the token. It is empty for signed tokens, because the
    /// member that received the request signs the token. Fails if authentication is disabled, if
    /// the user does not exist, or if the user was created without a password.
    pub fn authenticate(
        &self,
        request: &InternalAuthenticateRequest,
        index: u64,
    ) -> std::result::Result<String, AuthRejection> {
        let state = self.state.load();
        if !state.enabled {
            return Err(AuthRejection::NotEnabled);
        }
        let user = state.users.get(&request.name).ok_or(AuthRejection::AuthFailed)?;
        if user.has_no_password() {
            return Err(AuthRejection::AuthFailed);
        }
        Ok(match &self.tokens {
            TokenProvider::Simple(tokens) => {
                tokens.assign(&request.name, &request.simple_token, index)
            }
            #[cfg(feature = "jwt")]
            TokenProvider::Jwt(_) => String::new(),
        })
    }

    /// Returns the data needed to check a user's password, even if the user does not exist. Fails
    /// if authentication is disabled, or if the user was created without a password. The check is
    /// slow, so the caller runs it on a suitable thread.
    pub fn password_check(
        &self,
        username: &str,
    ) -> std::result::Result<PasswordCheck, AuthRejection> {
        let state = self.state.load();
        if !state.enabled {
            return Err(AuthRejection::NotEnabled);
        }
        let user = state.users.get(username);
        if user.is_some_and(|user| user.has_no_password()) {
            return Err(AuthRejection::NoPasswordUser);
        }
        let hash = user.map(|user| user.user.password.clone());
        Ok(PasswordCheck::new(hash, self.bcrypt_cost, state.revision))
    }
}
