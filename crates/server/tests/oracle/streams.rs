//! Messages of a stream, as they are compared.
//!
//! How a server cuts what it has to say into messages is its own business where the protocol leaves
//! it that: the chunks of a streamed range, the fragments of a long watch response. They are put
//! together again before they are compared. Progress is reported from time to time; being told the
//! same twice is being told once.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Whether only the whole stream means something.
pub(crate) fn is_one_answer(path: &str) -> bool {
    ["/etcdserverpb.KV/RangeStream", "/etcdserverpb.Maintenance/Snapshot"].contains(&path)
}

/// The parts of a streamed range as one: the records of all, and what the last one says of them.
pub(crate) fn whole_range(parts: &[Value]) -> Result<Value, String> {
    let mut whole = Map::new();
    let mut records = Vec::new();
    for (part, left) in parts.iter().zip((0..parts.len()).rev()) {
        let mut part = part["range_response"].as_object().cloned().unwrap_or_default();
        if let Some(Value::Array(found)) = part.remove("kvs") {
            records.extend(found);
        }
        if left > 0 && !part.is_empty() {
            return Err(format!("{left} parts before the last one: {}", Value::Object(part)));
        }
        whole.extend(part);
    }
    whole.insert("kvs".to_owned(), Value::Array(records));
    Ok(Value::Object(whole))
}

/// The messages of a watch stream, complete ones only, fragments joined, each progress told once.
///
/// `before` is the last message before these. They are in the order in which they came for one
/// watcher; watchers follow each other by their ids.
pub(crate) fn watch_responses(messages: &[Value], before: Option<&Value>) -> Vec<Value> {
    let mut parts: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut complete: Vec<Value> = Vec::new();
    for message in messages {
        let mut message = message.clone();
        let watcher = id_of(&message).to_string();
        let fields = message.as_object_mut().unwrap();
        if fields.remove("fragment").is_some() {
            parts.entry(watcher).or_default().extend(events(fields));
            continue;
        }
        if let Some(mut first) = parts.remove(&watcher) {
            first.extend(events(fields));
            fields.insert("events".to_owned(), Value::Array(first));
        }
        let told = complete.last().or(before);
        if !(is_progress(&message) && told == Some(&message)) {
            complete.push(message);
        }
    }
    complete.sort_by_key(id_of);
    complete
}

fn events(fields: &mut Map<String, Value>) -> Vec<Value> {
    match fields.remove("events") {
        Some(Value::Array(events)) => events,
        _ => Vec::new(),
    }
}

fn is_progress(message: &Value) -> bool {
    message.as_object().unwrap().keys().all(|name| name == "header" || name == "watch_id")
}

fn id_of(message: &Value) -> i64 {
    message.get("watch_id").map_or(0, |id| id.as_str().unwrap().parse().unwrap())
}
