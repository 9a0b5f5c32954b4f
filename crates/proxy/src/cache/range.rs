//! Key ranges as owned values: of requests, of scopes and of watchers. There is one type for all of
//! them, so that a range means the same everywhere.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::watch::WatchedKeys;

/// A range of keys. `to` is `None` if it has no end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    pub from: Bytes,
    pub to: Option<Bytes>,
}

impl Span {
    /// The range of a request: without `range_end` it is one key, and an end of one NUL byte means
    /// that there is no end.
    pub fn of_request(key: &Bytes, range_end: &Bytes) -> Span {
        match &range_end[..] {
            [] => {
                let mut after = Vec::with_capacity(key.len() + 1);
                after.extend_from_slice(key);
                after.push(0);
                Span { from: key.clone(), to: Some(after.into()) }
            }
            [0] => Span { from: key.clone(), to: None },
            _ => Span { from: key.clone(), to: Some(range_end.clone()) },
        }
    }

    /// All keys that start with these bytes.
    pub fn of_prefix(prefix: &[u8]) -> Span {
        Span { from: prefix.to_vec().into(), to: end_of_prefix(prefix).map(Bytes::from) }
    }

    pub fn as_range(&self) -> KeyRange<'_> {
        KeyRange { from: &self.from, to: self.to.as_deref() }
    }

    pub fn is_empty(&self) -> bool {
        self.as_range().is_empty()
    }

    /// Returns true if every key of `other` is in this range.
    pub fn covers(&self, other: &Span) -> bool {
        let ends_later = match (&self.to, &other.to) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(its)) => own >= its,
        };
        self.from <= other.from && ends_later
    }

    /// Returns the key and the `range_end` with which a request names this range. etcd has no empty
    /// keys, so a range from the empty key starts at the key of one NUL byte.
    pub fn to_request(&self) -> (Bytes, Bytes) {
        let from = if self.from.is_empty() { Bytes::from_static(&[0]) } else { self.from.clone() };
        (from, self.to.clone().unwrap_or(Bytes::from_static(&[0])))
    }

    /// Returns the prefix that is cached for a request of this range: the longest common prefix of
    /// its keys, up to and including its last slash. All keys of a directory thus share one copy.
    pub fn scope_prefix(&self) -> Cow<'_, [u8]> {
        let common = match &self.to {
            None => &[][..],
            Some(to) => {
                let shared = self.from.iter().zip(to).take_while(|(a, b)| a == b).count();
                // The range of a prefix ends at the same bytes with the last one increased.
                let is_prefix = end_of_prefix(&self.from).as_deref() == Some(to);
                if is_prefix { &self.from[..] } else { &self.from[..shared] }
            }
        };
        let slash = common.iter().rposition(|byte| *byte == b'/');
        Cow::Borrowed(slash.map_or(&[][..], |at| &common[..=at]))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Some(to) => write!(f, "[{}, {})", self.from.escape_ascii(), to.escape_ascii()),
            None => write!(f, "[{}, the end)", self.from.escape_ascii()),
        }
    }
}

/// Returns the first key after all keys with this prefix. `None` if there is no such key.
pub fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The watched keys of a creation request. An empty key means the key of one NUL byte.
pub fn watched_keys(key: &Bytes, range_end: &Bytes) -> WatchedKeys {
    let key = if key.is_empty() { Bytes::from_static(&[0]) } else { key.clone() };
    match &range_end[..] {
        [] => WatchedKeys::Single(key),
        [0] => WatchedKeys::From(key),
        _ => WatchedKeys::Range(key, range_end.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: &'static str, end: &'static str) -> Span {
        Span::of_request(&key.into(), &end.into())
    }

    #[test]
    fn a_request_is_cached_by_its_directory() {
        for (span, prefix) in [
            (request("/a/b", ""), "/a/"),
            (request("/a/b/", ""), "/a/b/"),
            (request("/a/", "/a0"), "/a/"),
            (request("/a/b", "/a/c"), "/a/"),
            (request("/a/b", "/b"), "/"),
            (request("foo", ""), ""),
            (request("a", "\0"), ""),
            (request("\0", "\0"), ""),
        ] {
            assert_eq!(span.scope_prefix(), prefix.as_bytes(), "{span:?}");
            assert!(Span::of_prefix(prefix.as_bytes()).covers(&span), "{span:?}");
        }
    }

    #[test]
    fn ends_are_compared_as_ends() {
        let all = Span::of_prefix(b"");
        assert_eq!(all.to, None);
        assert!(all.covers(&request("a", "\0")));
        assert!(!request("a", "z").covers(&request("b", "\0")));
        assert!(request("a", "z").covers(&request("y", "")));
        assert!(!request("a", "z").covers(&request("z", "")));
        assert_eq!(end_of_prefix(&[1, 0xff]), Some(vec![2]));
        assert_eq!(end_of_prefix(&[0xff]), None);
        assert!(request("b", "a").is_empty());
    }
}
