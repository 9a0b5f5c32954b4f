//! Compares our answers with etcd's. What may differ is levelled first, on both sides; the rest
//! must be equal.

use serde_json::Value;

/// Number of records up to which etcd's sort leaves those that compare equal as they are.
const STABLE: usize = 12;

/// By how many seconds the rest of a lease may differ between the two sides.
const SECONDS_APART: i64 = 2;

/// Longer values are cut in the text of a difference.
const SHOWN_MAX: usize = 120;

/// Takes away what depends on time, on the layout of files, or on the order of a Go map.
pub(crate) fn level(method: &str, etcds: &mut Value, ours: &mut Value) {
    match method {
        "/etcdserverpb.Maintenance/Status" => {
            for name in ["dbSize", "dbSizeInUse"] {
                // A store that nothing is written to has none yet.
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

/// It must be there.
fn take_from_both(name: &str, etcds: &mut Value, ours: &mut Value) {
    if let (Value::Object(etcds), Value::Object(ours)) = (etcds, ours)
        && etcds.contains_key(name)
        && ours.contains_key(name)
    {
        etcds.remove(name);
        ours.remove(name);
    }
}

/// Members are sorted by their ids, which are made of the time; the keys of a lease not at all.
fn sort_both(name: &str, etcds: &mut Value, ours: &mut Value) {
    for value in [etcds, ours] {
        if let Some(Value::Array(values)) = value.get_mut(name) {
            values.sort_by_key(Value::to_string);
        }
    }
}

/// Go writes messages with one space between fields, or two, or one that does not break: no client
/// shall rely on it.
pub(crate) fn one_space(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace('\u{a0}', " ").replace("  ", " "),
        Value::Array(values) => values.iter_mut().for_each(one_space),
        Value::Object(fields) => fields.values_mut().for_each(one_space),
        _ => {}
    }
}

/// What is left of a lease of which the reply also says for how long it was granted.
fn seconds_left(reply: &Value) -> Option<i64> {
    reply.get("grantedTTL")?;
    let left = reply.get("TTL")?.as_str()?.parse().ok()?;
    (left > 0).then_some(left)
}

/// Records that compare equal in a sort may come in any order, if there are many. That they are in
/// the order of what is sorted by is told apart: `None` if not.
///
/// `value` knows the values of keys; a reply may have left them out.
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

/// Where two messages differ, one line for each place.
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
