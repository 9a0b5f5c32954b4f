//! Compares the responses of Clearlane and etcd. Parts that may differ are made equal first, on
//! both sides. All other parts must be equal.

use serde_json::Value;

/// Up to this number of records, etcd's sort keeps the order of records that compare equal.
const STABLE: usize = 12;

/// Maximum difference between the remaining seconds of a lease on the two sides.
const SECONDS_APART: i64 = 2;

/// Maximum length of a value in the description of a difference. Longer values are cut.
const SHOWN_MAX: usize = 120;

/// Removes or sorts, on both sides, all parts that depend on time, on the layout of files, or on
/// the order of a Go map.
pub(crate) fn level(method: &str, etcds: &mut Value, ours: &mut Value) {
    match method {
        "/etcdserverpb.Maintenance/Status" => {
            for name in ["dbSize", "dbSizeInUse"] {
                // The size fields are optional, because a store without writes has no size yet.
                for status in [&mut *etcds, &mut *ours] {
                    status.as_object_mut().map(|fields| fields.remove(name));
                }
            }
            one_space(etcds);
            one_space(ours);
            sort_both("errors", etcds, ours);
        }
        "/etcdserverpb.Maintenance/Hash" => take_from_both("hash", etcds, ours),
        "/etcdserverpb.Maintenance/Alarm" => sort_both("alarms", etcds, ours),
        _ => {}
    }
    for field in ["members", "keys"] {
        sort_both(field, etcds, ours);
    }
    if let Some((left, granted)) = seconds_left(etcds).zip(seconds_left(ours))
        && left.abs_diff(granted) <= SECONDS_APART as u64
    {
        take_from_both("TTL", etcds, ours);
    }
}

/// Removes a field from both sides, but only if both have it.
fn take_from_both(name: &str, etcds: &mut Value, ours: &mut Value) {
    if let (Value::Object(etcds), Value::Object(ours)) = (etcds, ours)
        && etcds.contains_key(name)
        && ours.contains_key(name)
    {
        etcds.remove(name);
        ours.remove(name);
    }
}

/// Sorts a list on both sides. Members are ordered by their ids, which depend on the time, and the
/// keys of a lease have no order.
fn sort_both(name: &str, etcds: &mut Value, ours: &mut Value) {
    for value in [etcds, ours] {
        if let Some(Value::Array(values)) = value.get_mut(name) {
            values.sort_by_key(Value::to_string);
        }
    }
}

/// Makes spaces in text equal. Go randomly separates the fields of a message by one space, two
/// spaces, or a no-break space, so that no client relies on it.
pub(crate) fn one_space(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace('\u{a0}', " ").replace("  ", " "),
        Value::Array(values) => values.iter_mut().for_each(one_space),
        Value::Object(fields) => fields.values_mut().for_each(one_space),
        _ => {}
    }
}

/// Returns the remaining seconds of a lease. Returns `None` if the reply has no granted TTL, or if
/// no time remains.
fn seconds_left(reply: &Value) -> Option<i64> {
    reply.get("grantedTTL")?;
    let left = reply.get("TTL")?.as_str()?.parse().ok()?;
    (left > 0).then_some(left)
}

/// Compares two replies of a range that is sorted by `target`. Returns `None` if they differ in the
/// values by which the records are sorted.
///
/// If there are more than [`STABLE`] records, records with equal sort values may be in any order.
/// Both replies are then sorted by key.
///
/// `value` returns the value of a key, because a reply may omit the values.
pub(crate) fn level_ties(
    target: &str,
    value: impl Fn(&Value) -> Value,
    etcds: &mut Value,
    ours: &mut Value,
) -> Option<()> {
    let sort_key = |record: &Value| match target {
        "VERSION" => record["version"].clone(),
        "CREATE" => record["create_revision"].clone(),
        "MOD" => record["mod_revision"].clone(),
        "VALUE" => value(&record["key"]),
        _ => record["key"].clone(),
    };
    let keys = |reply: &Value| records(reply).iter().map(sort_key).collect::<Vec<Value>>();
    if keys(etcds) != keys(ours) {
        return None;
    }
    if records(ours).len() > STABLE {
        for reply in [etcds, ours] {
            let records = reply["kvs"].as_array_mut().unwrap();
            records.sort_by(|a, b| a["key"].as_str().cmp(&b["key"].as_str()));
        }
    }
    Some(())
}

fn records(reply: &Value) -> &[Value] {
    reply.get("kvs").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the differences between two messages, one line for each.
pub(crate) fn differences(etcds: &Value, ours: &Value) -> Vec<String> {
    let mut found = Vec::new();
    find("", Some(etcds), Some(ours), &mut found);
    found
}

fn find(place: &str, etcds: Option<&Value>, ours: Option<&Value>, found: &mut Vec<String>) {
    match (etcds, ours) {
        (Some(Value::Object(etcds)), Some(Value::Object(ours))) => {
            let names = etcds.keys().chain(ours.keys().filter(|name| !etcds.contains_key(*name)));
            for name in names {
                find(&format!("{place}.{name}"), etcds.get(name), ours.get(name), found);
            }
        }
        (Some(Value::Array(etcds)), Some(Value::Array(ours))) => {
            for at in 0..etcds.len().max(ours.len()) {
                find(&format!("{place}[{at}]"), etcds.get(at), ours.get(at), found);
            }
        }
        (etcds, ours) if etcds == ours => {}
        (etcds, ours) => {
            found.push(format!("{place}: etcd {}, ours {}", shown(etcds), shown(ours)));
        }
    }
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    cut(&value.to_string())
}

pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}
