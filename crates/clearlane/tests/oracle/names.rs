//! Names for values that cannot be the same here as in the recording.
//!
//! Ids that a server chooses were recorded as `<lease:1>` or `<member:2>`. When such a name first
//! occurs in a reply, the test learns the id at the same place in the reply of the tested server.
//! After that, the test expects this id wherever the recording has the name, and replaces the name
//! by the id in requests.
//!
//! A key may contain such an id in hex: `{"text":"name/<hex of lease:1>"}`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Maps names in the recording to values of the tested server.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, String>);

impl Names {
    pub(crate) fn set(&mut self, recorded: &str, ours: &str) {
        self.0.insert(recorded.to_owned(), ours.to_owned());
    }

    pub(crate) fn get(&self, recorded: &str) -> &str {
        &self.0[recorded]
    }

    /// Learns the ids of the names that occur in `recorded` for the first time.
    pub(crate) fn learn(&mut self, recorded: &Value, ours: &Value) {
        match (recorded, ours) {
            (Value::String(name), Value::String(id)) if is_id(name) => {
                let id_is_one = id.parse::<i128>().is_ok_and(|id| id > 0);
                if id_is_one && !self.0.contains_key(name) {
                    self.set(name, id);
                }
            }
            (Value::Object(fields), Value::String(key)) => {
                if let Some((name, id)) = in_key(fields.get("text"), key)
                    && !self.0.contains_key(&name)
                {
                    self.set(&name, &id);
                }
            }
            (Value::Object(fields), Value::Object(ours)) => {
                for (name, recorded) in fields {
                    if let Some(ours) = ours.get(name) {
                        self.learn(recorded, ours);
                    }
                }
            }
            (Value::Array(recorded), Value::Array(ours)) => {
                recorded.iter().zip(ours).for_each(|(recorded, ours)| self.learn(recorded, ours));
            }
            _ => {}
        }
    }

    /// Replaces names by the values of the tested server.
    pub(crate) fn put_into(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(ours) = self.0.get(text) {
                    ours.clone_into(text);
                }
            }
            Value::Object(fields) => match fields.get("text").and_then(|text| self.key(text)) {
                Some(key) => *value = key,
                None => fields.values_mut().for_each(|value| self.put_into(value)),
            },
            Value::Array(values) => values.iter_mut().for_each(|value| self.put_into(value)),
            _ => {}
        }
    }

    /// Returns the key for a text, with the id in place of the name. Returns `None` if the text
    /// contains no name with a known id.
    fn key(&self, text: &Value) -> Option<Value> {
        let (prefix, name) = split(text.as_str()?)?;
        let id: i64 = self.0.get(&name)?.parse().ok()?;
        Some(STANDARD.encode(format!("{prefix}{id:x}")).into())
    }
}

fn is_id(text: &str) -> bool {
    text.starts_with("<lease:") || text.starts_with("<member:")
}

/// Splits `a/<hex of lease:1>` into `a/` and `<lease:1>`. Returns `None` if the text has no such
/// part.
fn split(text: &str) -> Option<(&str, String)> {
    let (prefix, name) = text.split_once("<hex of ")?;
    Some((prefix, format!("<{name}")))
}

/// Returns the name in a recorded key, and the id in the key of the tested server. Returns `None`
/// if the recorded key contains no name, or if the tested server's key does not match.
fn in_key(text: Option<&Value>, ours: &str) -> Option<(String, String)> {
    let (prefix, name) = split(text?.as_str()?)?;
    let ours = String::from_utf8(STANDARD.decode(ours).ok()?).ok()?;
    let id = i64::from_str_radix(ours.strip_prefix(prefix)?, 16).ok()?;
    Some((name, id.to_string()))
}
