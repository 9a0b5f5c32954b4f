//! Converts the messages of a stream to the form that is compared.
//!
//! The protocol leaves open how a server divides a response into messages: the chunks of a streamed
//! range, and the fragments of a long watch response. These are joined before they are compared.
//! Progress is reported repeatedly, so equal reports count as one.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Returns whether the stream is compared as a whole.
pub(crate) fn is_one_answer(path: &str) -> bool {
    ["/etcdserverpb.KV/RangeStream", "/etcdserverpb.Maintenance/Snapshot"].contains(&path)
}

pub(crate) fn whole(path: &str, parts: &[Value]) -> Value {
    match path {
        "/etcdserverpb.KV/RangeStream" => whole_range(parts),
        _ => whole_snapshot(parts),
    }
}

/// Joins a streamed range: the records of all chunks and the fields of the last one. Fields of
/// earlier chunks are under `early`.
fn whole_range(parts: &[Value]) -> Value {
    let mut whole = Map::new();
    let mut records = Vec::new();
    let mut early = Vec::new();
    for (part, left) in parts.iter().zip((0..parts.len()).rev()) {
        let mut part = part["range_response"].as_object().cloned().unwrap_or_default();
        if let Some(Value::Array(found)) = part.remove("kvs") {
            records.extend(found);
        }
        if left == 0 {
            whole.extend(part);
        } else if !part.is_empty() {
            early.push(Value::Object(part));
        }
    }
    whole.insert("kvs".to_owned(), Value::Array(records));
    whole.insert("early".to_owned(), Value::Array(early));
    Value::Object(whole)
}

/// Each server's snapshot of the store differs, so only these properties are compared:
///
/// * each part has the version of the store,
/// * each part has the number of bytes after it, without the hash at the end,
/// * the hash is the hash of all bytes before it.
///
/// The recorded snapshot itself was not kept. Another call to etcd confirmed that etcd has these
/// properties.
fn whole_snapshot(parts: &[Value]) -> Value {
    let versions: BTreeSet<String> =
        parts.iter().map(|part| part["version"].as_str().unwrap_or("none").to_owned()).collect();
    let mut blobs: Vec<Vec<u8>> = parts.iter().filter_map(blob).collect();
    if blobs.len() < parts.len() {
        return json!({"versions": versions, "adds_up": true, "hash_is_right": true});
    }
    let hash = blobs.pop().unwrap_or_default();
    let mut left: usize = blobs.iter().map(Vec::len).sum();
    let mut adds_up = left > 0;
    for (part, blob) in parts.iter().zip(&blobs) {
        left -= blob.len();
        let reported = part.get("remaining_bytes").map_or(Some("0"), Value::as_str);
        adds_up &= reported == Some(&left.to_string());
    }
    let hash_is_right = Sha256::digest(blobs.concat())[..] == hash[..];
    json!({"versions": versions, "adds_up": adds_up, "hash_is_right": hash_is_right})
}

/// Returns the bytes of a part. `None` if only their length was recorded.
fn blob(part: &Value) -> Option<Vec<u8>> {
    STANDARD.decode(part["blob"].as_str()?).ok()
}

/// Returns the complete messages of a watch stream: fragments are joined, and a progress report
/// that equals the message before it is omitted.
///
/// `before` is the message that arrived before `messages`. The messages are ordered by watcher id,
/// and for each watcher in the order of their arrival.
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
        let reported = complete.last().or(before);
        if !(is_progress(&message) && reported == Some(&message)) {
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

/// Joins consecutive responses that contain events of the same watcher and have the same header.
pub(crate) fn joined(responses: Vec<Value>) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::new();
    for mut response in responses {
        if let Some(last) = joined.last_mut()
            && id_of(last) == id_of(&response)
            && last["header"] == response["header"]
            && let Some(Value::Array(before)) = last.get_mut("events")
            && let Some(Value::Array(events)) = response.get_mut("events")
        {
            before.append(events);
        } else {
            joined.push(response);
        }
    }
    joined
}

pub(crate) fn events_in(responses: &[Value]) -> usize {
    responses.iter().filter_map(|response| response["events"].as_array()).map(Vec::len).sum()
}
