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

use std::fmt::Write;

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
        let mut out = format!("{{\"id\":{},\"peerURLs\":", self.id);
        if self.peer_urls.is_empty() {
            out.push_str("null")
        } else {
            put_list(&mut out, &self.peer_urls)
        }
        if self.is_learner {
            out.push_str(",\"isLearner\":true");
        }
        if !self.name.is_empty() {
            out.push_str(",\"name\":");
            put_text(&mut out, &self.name);
        }
        if !self.client_urls.is_empty() {
            out.push_str(",\"clientURLs\":");
            put_list(&mut out, &self.client_urls);
        }
        if let Some(is_promote) = self.is_promote {
            out.push_str(if is_promote { ",\"isPromote\":true" } else { ",\"isPromote\":false" });
        }
        out.push('}');
        out
    }

    pub fn decode(text: &[u8]) -> Result<MemberContext, DecodeError> {
        let object = match serde_json::from_slice(text) {
            Ok(Value::Object(object)) => object,
            _ => return Err(decode_error("no JSON object")),
        };
        Ok(MemberContext {
            id: number(&object, "id")?,
            peer_urls: list(&object, "peerURLs")?,
            is_learner: boolean(&object, "isLearner")?.unwrap_or_default(),
            name: text_field(&object, "name")?,
            client_urls: list(&object, "clientURLs")?,
            is_promote: boolean(&object, "isPromote")?,
        })
    }
}

fn put_list(out: &mut String, list: &[String]) {
    out.push('[');
    for (at, text) in list.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        put_text(out, text);
    }
    out.push(']');
}

/// A string with the escapes that Go writes.
fn put_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..'\u{20}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(out, "\\u{:04x}", u32::from(c)).expect("a string takes all that is written");
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn decode_error(what: &'static str) -> DecodeError {
    DecodeError { message: "description of a member", what }
}

/// `null` is as good as none.
fn get<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn number(object: &Map<String, Value>, key: &str) -> Result<u64, DecodeError> {
    let number =
        |value: &Value| value.as_u64().ok_or_else(|| decode_error("an id that is no number"));
    get(object, key).map_or(Ok(0), number)
}

fn boolean(object: &Map<String, Value>, key: &str) -> Result<Option<bool>, DecodeError> {
    let truth =
        |value: &Value| value.as_bool().ok_or_else(|| decode_error("neither true nor false"));
    get(object, key).map(truth).transpose()
}

fn text(value: &Value) -> Result<String, DecodeError> {
    value.as_str().map(str::to_owned).ok_or_else(|| decode_error("a text that is none"))
}

fn text_field(object: &Map<String, Value>, key: &str) -> Result<String, DecodeError> {
    get(object, key).map_or(Ok(String::new()), text)
}

fn list(object: &Map<String, Value>, key: &str) -> Result<Vec<String>, DecodeError> {
    let Some(value) = get(object, key) else { return Ok(Vec::new()) };
    let list = value.as_array().ok_or_else(|| decode_error("addresses that are no list"))?;
    list.iter().map(text).collect()
}
