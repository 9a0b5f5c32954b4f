//! The description of a member in a configuration change, as JSON.
//!
//! Every member applies this text to its own table of members, so all members must read the same
//! description. The text is exactly the text that Go's encoder writes for etcd's structs. It has no
//! spaces, and the keys are in the order of the struct. An empty value is omitted if the struct
//! marks the field with `omitempty`. The characters `<`, `>`, `&`, U+2028 and U+2029 are written as
//! escapes such as `\u003c`.
//!
//! ```text
//!   a first member  {"id":7,"peerURLs":["http://a:2380"],"name":"a"}
//!   a new voter     {"id":7,"peerURLs":["http://a:2380"],"isPromote":false}
//!   a new learner   {"id":7,"peerURLs":["http://a:2380"],"isLearner":true,"isPromote":false}
//!   a promotion     {"id":7,"peerURLs":null,"isPromote":true}
//! ```
//!
//! The decoder ignores unknown keys, as Go does. A known key with the value `null` is read like an
//! absent key. A known key whose value has a wrong type is rejected.

use serde_json::{Map, Value};

use super::fields::DecodeError;

/// The member that a [`ConfChange`](super::ConfChange) describes, in its field `context`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberContext {
    pub id: u64,
    pub peer_urls: Vec<String>,
    pub is_learner: bool,
    /// The member's name. It is empty for a member that was added later and has not started yet.
    pub name: String,
    pub client_urls: Vec<String>,
    /// If `Some(true)`, the change promotes a learner. `None` if the text has no such key, because
    /// it describes only the member.
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
            _ => return Err(decode_error("not a JSON object")),
        };
        let boolean = |key| field(&object, key, Value::as_bool, "neither true nor false");
        Ok(MemberContext {
            id: field(&object, "id", Value::as_u64, "the id is not a number")?.unwrap_or_default(),
            peer_urls: list(&object, "peerURLs")?,
            is_learner: boolean("isLearner")?.unwrap_or_default(),
            name: field(&object, "name", text, NOT_A_STRING)?.unwrap_or_default(),
            client_urls: list(&object, "clientURLs")?,
            is_promote: boolean("isPromote")?,
        })
    }
}

const NOT_A_STRING: &str = "not a string";

/// Returns a value as JSON, with the escapes that Go writes.
fn go_json(value: &Value) -> String {
    let escape = |text: String, c| text.replace(c, &format!("\\u{:04x}", u32::from(c)));
    ['<', '>', '&', '\u{2028}', '\u{2029}'].into_iter().fold(value.to_string(), escape)
}

fn decode_error(what: &'static str) -> DecodeError {
    DecodeError { message: "description of a member", what }
}

/// Reads the value of a key. Returns `None` if there is no such key or its value is `null`. Fails
/// with the text `otherwise` if the value has another type.
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
    let list = field(object, key, Value::as_array, "the addresses are not a list")?;
    let texts =
        list.into_iter().flatten().map(|value| text(value).ok_or(decode_error(NOT_A_STRING)));
    texts.collect()
}
