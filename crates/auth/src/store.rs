//! What a member knows of users, roles and tokens: etcd's `authStore`.
//!
//! One thread, the apply loop, changes it: an entry's [`AuthChange`] is made in the store's write
//! transaction, and published when that has ended, before the request is answered. Every thread
//! reads it, through one pointer, and takes no lock but that of the simple tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use clearlane_contention::Registry;
use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::{InternalAuthenticateRequest, InternalRaftRequest};

use crate::changes::{self, ChangeError, TokenChange};
use crate::error::{AuthRejection, Result};
use crate::jwt::{JwtProvider, VerifiedTokens};
use crate::password::{BCRYPT_COST, PasswordCheck};
use crate::simple_tokens::SimpleTokens;
use crate::state::AuthState;

#[derive(Debug)]
pub enum TokenProvider {
    Simple(SimpleTokens),
    Jwt(VerifiedTokens),
}

#[derive(Clone, Debug)]
pub struct AuthConfig {
    pub tokens: TokenConfig,
    pub bcrypt_cost: u32,
}

#[derive(Clone, Debug)]
pub enum TokenConfig {
    Simple { ttl: Duration },
    Jwt(Arc<JwtProvider>),
}

impl Default for AuthConfig {
    /// etcd's.
    fn default() -> AuthConfig {
        let tokens = TokenConfig::Simple { ttl: Duration::from_secs(300) };
        AuthConfig { tokens, bcrypt_cost: BCRYPT_COST }
    }
}

#[derive(Debug)]
pub struct AuthStore {
    state: ArcSwap<AuthState>,
    /// That of the state, for requests that need nothing else.
    is_enabled: AtomicBool,
    tokens: TokenProvider,
    bcrypt_cost: u32,
}

/// A change that is in the store, and not yet published.
#[derive(Debug)]
pub struct AuthChange {
    state: AuthState,
    tokens: TokenChange,
}

impl AuthStore {
    /// Empty, until it is [restored](AuthStore::restore).
    pub fn new(config: AuthConfig, locks: &Registry) -> AuthStore {
        let AuthConfig { tokens, bcrypt_cost } = config;
        let tokens = match tokens {
            TokenConfig::Simple { ttl } => TokenProvider::Simple(SimpleTokens::new(ttl, locks)),
            TokenConfig::Jwt(provider) => TokenProvider::Jwt(VerifiedTokens::new(provider, locks)),
        };
        AuthStore {
            state: ArcSwap::from_pointee(AuthState { revision: 1, ..AuthState::default() }),
            is_enabled: AtomicBool::new(false),
            tokens,
            bcrypt_cost,
        }
    }

    /// Becomes what a store has: at the start, and when a copy of another member is installed. The
    /// entries that the copy covers may have ended tokens, so none stays.
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

    /// Without a reference of its own: for a look that is soon over.
    pub fn with_state<T>(&self, look: impl FnOnce(&AuthState) -> T) -> T {
        look(&self.state.load())
    }

    pub fn tokens(&self) -> &TokenProvider {
        &self.tokens
    }

    pub fn bcrypt_cost(&self) -> u32 {
        self.bcrypt_cost
    }

    /// Makes the change in the store. The permission for it was [checked](AuthState::check_entry).
    pub fn apply<A>(
        &self,
        txn: &mut (dyn WriteTxn<A> + '_),
        request: &InternalRaftRequest,
    ) -> std::result::Result<AuthChange, ChangeError> {
        let (state, tokens) = changes::apply(&self.state.load(), txn, request)?;
        Ok(AuthChange { state, tokens })
    }

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

    /// Forgets the simple tokens whose time is over.
    pub fn expire_tokens(&self, now: Duration) {
        if let TokenProvider::Simple(tokens) = &self.tokens {
            tokens.expire(now);
        }
    }

    /// Applies the entry `index`: the password was checked before it was proposed. Returns the
    /// token; an empty one if tokens are signed, which the member that was asked does.
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
            TokenProvider::Jwt(_) => String::new(),
        })
    }

    /// What is needed to check a password of this user, by a thread that has the time for it.
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
