//! Simple tokens: sixteen letters and the index of the entry that assigned them, as in `abc….17`.
//!
//! Each member that applies the entry has the token in memory. So every member that has applied the
//! entry knows the token, until the token is removed there. After a restart a member knows the
//! token only if the entry is applied again. A token that is not used for its TTL is removed. Each
//! member counts this time separately, from the first use or the first [`SimpleTokens::expire`].
//!
//! A token is found by its index, and its letters are compared in constant time. The lock
//! `simpleTokens` is held for one insertion or look-up. It is held for a walk over all tokens when
//! the tokens of one user are dropped, or when tokens expire.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clearlane_contention::{Mutex, Registry};
use subtle::ConstantTimeEq;

/// The number of letters before the index, as in etcd.
pub const LETTERS: usize = 16;
/// The letters of a token are drawn from this alphabet.
pub const ALPHABET: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A token as it is sent with a request.
#[derive(Clone, Copy)]
pub struct SimpleToken<'t> {
    letters: &'t str,
    /// The index of the entry that assigned the token. A member must apply this entry before it
    /// knows the token.
    pub index: u64,
}

/// The output omits the letters.
impl fmt::Debug for SimpleToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimpleToken").field("index", &self.index).finish_non_exhaustive()
    }
}

impl<'t> SimpleToken<'t> {
    /// Parses a token. Returns `None` if the text does not have the form of a simple token.
    pub fn parse(text: &'t str) -> Option<SimpleToken<'t>> {
        let (letters, index) = text.split_once('.')?;
        let number = index.parse::<u64>().ok()?;
        // Each token has exactly one valid text: the index has no sign and no leading zero.
        (number.to_string() == index).then_some(SimpleToken { letters, index: number })
    }
}

struct Assigned {
    letters: Box<str>,
    username: Arc<str>,
    /// The expiry on the caller's clock. `None` until the first use of the token or the first
    /// `expire`.
    expires: Option<Duration>,
}

pub struct SimpleTokens {
    ttl: Duration,
    by_index: Mutex<HashMap<u64, Assigned>>,
}

/// The output omits the tokens.
impl fmt::Debug for SimpleTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimpleTokens").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl SimpleTokens {
    pub fn new(ttl: Duration, locks: &Registry) -> SimpleTokens {
        SimpleTokens { ttl, by_index: Mutex::new(locks, "simpleTokens", HashMap::new()) }
    }

    /// Stores a token and returns its text.
    pub(crate) fn assign(&self, username: &str, letters: &str, index: u64) -> String {
        let assigned =
            Assigned { letters: letters.into(), username: username.into(), expires: None };
        self.by_index.lock().insert(index, assigned);
        format!("{letters}.{index}")
    }

    /// Returns the user of a token and restarts the token's TTL. Returns `None` if the token is
    /// unknown or has expired.
    pub fn use_token(&self, token: SimpleToken<'_>, now: Duration) -> Option<Arc<str>> {
        let mut by_index = self.by_index.lock();
        let assigned = by_index.get_mut(&token.index)?;
        let is_it = bool::from(assigned.letters.as_bytes().ct_eq(token.letters.as_bytes()));
        if !is_it || assigned.expires.is_some_and(|expires| expires <= now) {
            return None;
        }
        assigned.expires = Some(now.saturating_add(self.ttl));
        Some(Arc::clone(&assigned.username))
    }

    pub(crate) fn drop_user(&self, username: &str) {
        self.by_index.lock().retain(|_, assigned| &*assigned.username != username);
    }

    pub(crate) fn drop_all(&self) {
        let dropped = std::mem::take(&mut *self.by_index.lock());
        drop(dropped);
    }

    /// Removes expired tokens, and starts the TTL of tokens that were not used yet.
    pub fn expire(&self, now: Duration) {
        self.by_index.lock().retain(|_, assigned| {
            *assigned.expires.get_or_insert(now.saturating_add(self.ttl)) > now
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn tokens() -> SimpleTokens {
        SimpleTokens::new(at(10), &Registry::default())
    }

    fn used(tokens: &SimpleTokens, text: &str, now: u64) -> bool {
        let token = SimpleToken::parse(text).unwrap();
        tokens.use_token(token, at(now)).is_some_and(|name| &*name == "alice")
    }

    #[test]
    fn a_token_lives_for_its_ttl_after_each_use() {
        let tokens = tokens();
        let text = tokens.assign("alice", "abcdefghijklmnop", 17);
        assert_eq!(text, "abcdefghijklmnop.17");
        assert!(used(&tokens, &text, 100));
        assert!(used(&tokens, &text, 109));
        assert!(used(&tokens, &text, 118));
        assert!(!used(&tokens, &text, 128));
        tokens.expire(at(128));
        assert!(tokens.by_index.lock().is_empty());
    }

    #[test]
    fn a_token_that_is_not_used_expires() {
        let tokens = tokens();
        let text = tokens.assign("alice", "abcdefghijklmnop", 17);
        tokens.expire(at(5));
        tokens.expire(at(14));
        assert_eq!(tokens.by_index.lock().len(), 1);
        tokens.expire(at(15));
        assert!(!used(&tokens, &text, 15));
    }

    #[test]
    fn other_letters_and_other_indexes_are_refused() {
        let tokens = tokens();
        tokens.assign("alice", "abcdefghijklmnop", 17);
        for wrong in ["abcdefghijklmnoq.17", "abcdefghijklmnop.18", "a.17", ".17"] {
            assert!(!used(&tokens, wrong, 1), "{wrong}");
        }
        for malformed in [
            "",
            "abc",
            "abc.",
            "abc.x",
            "abc.+17",
            "abc.017",
            "abc.17.18",
            "a.99999999999999999999",
        ] {
            assert!(SimpleToken::parse(malformed).is_none(), "{malformed}");
        }
    }

    #[test]
    fn tokens_go_with_their_user() {
        let tokens = tokens();
        let alice = tokens.assign("alice", "abcdefghijklmnop", 17);
        tokens.assign("bob", "abcdefghijklmnop", 18);
        tokens.drop_user("bob");
        assert!(used(&tokens, &alice, 1));
        tokens.drop_user("alice");
        assert!(!used(&tokens, &alice, 1));
    }
}
