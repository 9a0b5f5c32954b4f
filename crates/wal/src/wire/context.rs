//! The description of a member in a configuration change, as JSON.
//!
//! Every member applies this text to its own table of members, so all must read the same. The text
//! is what Go's encoder writes for etcd's structs: no spaces, keys in the order of the struct,
//! empty values left out or not as the struct says, and `<`, `>`, `&` as `\u003c`, `\u003e`,
//! `\u0026`.
//!
//! ```text
//!   a new voter     {"id":7,"peerURLs":["http://a:2380"],"name":"a"}
//!   a new learner   {"id":7,"peerURLs":["http://a:2380"],"isLearner":true}
//!   a promotion     {"id":7,"peerURLs":null,"isPromote":true}
//! ```
//!
//! The decoder ignores other keys, as Go does, and refuses a key whose value is
//! of another type.

use serde_json::{Map, Value};

use super::fields::DecodeError;

/// The context of a configuration change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberContext {
    pub id: u64,
    pub peer_urls: Vec<String>,
    pub is_learner: bool,
    /// Empty until the member has started.
    pub name: String,
    pub client_urls: Vec<String>,
    /// Whether a learner is promoted. Absent where etcd describes just the member.
    pub is_promote: Option<bool>,
}

impl MemberContext {
    pub fn encode(&self) -> String {
        let peer_urls = match &self.peer_urls[..] {
            [] => Value::Null,
            urls => urls.into(),
        };
        let mut fields = vec![("id", self.id.into()), ("peerURLs", peer_urls)];
        if self.is_learner {
            fields.push(("isLearner", true.into()));
        }
        if !self.name.is_empty() {
            fields.push(("name", self.name[..].into()));
        }
        if !self.client_urls.is_empty() {
            fields.push(("clientURLs", self.client_urls[..].into()));
        }
        if let Some(is_promote) = self.is_promote {
            fields.push(("isPromote", is_promote.into()));
        }
        let fields = fields.iter().map(|(key, value)| format!("\"{key}\":{}", go_json(value)));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    }

    pub fn decode(bytes: &[u8]) -> Result<MemberContext, DecodeError> {
        let object = match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => object,
            _ => return Err(decode_error("no JSON object")),
        };
        let boolean = |key| field(&object, key, Value::as_bool, "neither true nor false");
        Ok(MemberContext {
            id: field(&object, "id", Value::as_u64, "an id that is no number")?.unwrap_or_default(),
            peer_urls: list(&object, "peerURLs")?,
            is_learner: boolean("isLearner")?.unwrap_or_default(),
            name: field(&object, "name", text, NO_TEXT)?.unwrap_or_default(),
            client_urls: list(&object, "clientURLs")?,
            is_promote: boolean("isPromote")?,
        })
    }
}

const NO_TEXT: &str = "a text that is none";

/// With the escapes that Go writes.
fn go_json(value: &Value) -> String {
    let escape = |text: String, c| text.replace(c, &format!("\\u{:04x}", u32::from(c)));
    ['<', '>', '&', '\u{2028}', '\u{2029}'].into_iter().fold(value.to_string(), escape)
}

fn decode_error(what: &'static str) -> DecodeError {
    DecodeError { message: "description of a member", what }
}

/// `None` if there is no such key, or its value is `null`.
fn field<'a, T>(
    object: &'a Map<String, Value>,
    key: &str,
    read: impl Fn(&'a Value) -> Option<T>,
    otherwise: &'static str,
) -> Result<Option<T>, DecodeError> {
    let value = object.get(key).filter(|value| !value.is_null());
    value.map(|value| read(value).ok_or(decode_error(otherwise))).transpose()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn list(object: &Map<String, Value>, key: &str) -> Result<Vec<String>, DecodeError> {
    let list = field(object, key, Value::as_array, "addresses that are no list")?;
    let texts = list.into_iter().flatten().map(|value| text(value).ok_or(decode_error(NO_TEXT)));
    texts.collect()
}
