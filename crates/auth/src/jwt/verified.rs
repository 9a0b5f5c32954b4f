//! A cache of verified tokens. Verifying a signature takes about one microsecond with HMAC, and 50
//! to 1,500 microseconds with other methods. Without the cache, each request would verify a
//! signature.
//!
//! The cache maps the whole text of a token to its user and the time for which it is valid. Two
//! generations limit the memory. When the younger generation is full, it replaces the older. A
//! token that is found in the older generation moves to the younger.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use clearlane_contention::{Mutex, Registry};

use super::JwtProvider;
use crate::state::AuthInfo;

/// Maximum number of tokens in each generation.
const TOKENS_MAX: usize = 1024;
/// Maximum length of a cached token. A longer token is verified on each use.
const KEPT_TOKEN_BYTES_MAX: usize = 2048;

pub struct VerifiedTokens {
    provider: Arc<JwtProvider>,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    younger: HashMap<Box<str>, Verified>,
    older: HashMap<Box<str>, Verified>,
}

#[derive(Clone)]
struct Verified {
    user: AuthInfo,
    /// The first valid second, and the first second after the validity, both in seconds since 1970.
    good: (u64, u64),
}

/// The output omits the tokens.
impl fmt::Debug for VerifiedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedTokens").field("provider", &self.provider).finish_non_exhaustive()
    }
}

impl VerifiedTokens {
    pub(crate) fn new(provider: Arc<JwtProvider>, locks: &Registry) -> VerifiedTokens {
        let generations = Mutex::new(locks, "verifiedTokens", Generations::default());
        VerifiedTokens { provider, generations }
    }

    pub fn provider(&self) -> &JwtProvider {
        &self.provider
    }

    /// Returns the user of a token, or `None` if the token is not valid now. `now` is in seconds
    /// since 1970.
    pub fn user(&self, token: &str, now: u64) -> Option<AuthInfo> {
        let found = self.generations.lock().find(token);
        if let Some((found, _dropped)) = found {
            let (from, until) = found.good;
            return (from <= now && now < until).then_some(found.user);
        }
        let (claims, good) = self.provider.verify_for(token, now)?;
        let user = AuthInfo { username: claims.username.into(), revision: claims.revision };
        if token.len() <= KEPT_TOKEN_BYTES_MAX {
            let verified = Verified { user: user.clone(), good };
            let dropped = self.generations.lock().keep(token.into(), verified);
            drop(dropped);
        }
        Some(user)
    }
}

impl Generations {
    /// Finds a token, or returns `None`. Also returns the older generation if it is replaced, so
    /// that the caller drops it after releasing the lock.
    fn find(&mut self, token: &str) -> Option<(Verified, HashMap<Box<str>, Verified>)> {
        if let Some(found) = self.younger.get(token) {
            return Some((found.clone(), HashMap::new()));
        }
        let (token, found) = self.older.remove_entry(token)?;
        let dropped = self.keep(token, found.clone());
        Some((found, dropped))
    }

    /// Adds a token to the younger generation. Returns the older generation if it is replaced,
    /// otherwise an empty map.
    fn keep(&mut self, token: Box<str>, verified: Verified) -> HashMap<Box<str>, Verified> {
        let mut dropped = HashMap::new();
        if self.younger.len() == TOKENS_MAX {
            dropped = std::mem::replace(&mut self.older, std::mem::take(&mut self.younger));
        }
        self.younger.insert(token, verified);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;

    use super::*;

    fn tokens() -> VerifiedTokens {
        let read = |_: &str| Ok(b"a secret of some length, for a test".to_vec());
        let provider = JwtProvider::new("sign-method=HS256,priv-key=k,ttl=10s", &read).unwrap();
        VerifiedTokens::new(Arc::new(provider), &Registry::default())
    }

    fn sign(tokens: &VerifiedTokens, name: &str) -> String {
        tokens.provider().sign(name, 7, 100, &SystemRandom::new()).unwrap()
    }

    #[test]
    fn a_token_that_is_known_still_expires() {
        let tokens = tokens();
        let token = sign(&tokens, "alice");
        for now in [100, 109, 105] {
            let user = tokens.user(&token, now).unwrap();
            assert_eq!((&*user.username, user.revision), ("alice", 7));
        }
        assert_eq!(tokens.user(&token, 110), None);
        assert_eq!(tokens.generations.lock().younger.len(), 1);
        assert_eq!(tokens.user(&format!("{token}A"), 100), None);
        assert_eq!(tokens.generations.lock().younger.len(), 1);
    }

    #[test]
    fn as_many_are_kept_as_two_generations_hold() {
        let tokens = tokens();
        let used = sign(&tokens, "often used");
        for number in 0..3 * TOKENS_MAX {
            let token = sign(&tokens, &format!("user {number}"));
            assert!(tokens.user(&token, 100).is_some());
            assert!(tokens.user(&used, 100).is_some());
        }
        let generations = tokens.generations.lock();
        assert!(generations.younger.len() + generations.older.len() <= 2 * TOKENS_MAX);
        assert!(generations.younger.contains_key(&*used) || generations.older.contains_key(&*used));
    }
}
