//! Asserts that our response equals etcd's response. Only two things may differ: the remaining time
//! of a lease, and the order of records that compare equal, if there are more than twelve records.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::oracle::member::{CallResult, ReplayMember};

/// Maximum number of records for which etcd's sort is stable: it does not change the order of
/// records that compare equal.
const STABLE_SORT_MAX: usize = 12;

pub(crate) fn assert_same(
    member: &ReplayMember,
    method: &str,
    request: &Value,
    mut ours: CallResult,
    mut etcds: CallResult,
    place: &str,
) {
    if let ("/etcdserverpb.Lease/LeaseTimeToLive", Ok(etcds)) = (method, &mut etcds) {
        let left = etcds.as_object_mut().unwrap().remove("TTL").unwrap();
        assert!(left.as_str().unwrap().parse::<i64>().unwrap() > 0, "{place}");
    }
    let sorted_by = request.get("sort_target").and_then(Value::as_str);
    if let (Some(target), Ok(ours), Ok(etcds)) = (sorted_by, &mut ours, &mut etcds) {
        let keys = |reply: &Value| -> Vec<Value> {
            records(reply).iter().map(|record| sort_key(member, target, record)).collect()
        };
        assert_eq!(keys(ours), keys(etcds), "{place}: {method}, in the order of {target}");
        if records(ours).len() > STABLE_SORT_MAX {
            sort_by_key(ours);
            sort_by_key(etcds);
        }
    }
    assert_eq!(ours, etcds, "{place}: {method}");
}

fn records(reply: &Value) -> &[Value] {
    reply.get("kvs").map_or(&[], |records| records.as_array().unwrap())
}

fn sort_key(member: &ReplayMember, target: &str, record: &Value) -> Value {
    match target {
        "VERSION" => record["version"].clone(),
        "CREATE" => record["create_revision"].clone(),
        "MOD" => record["mod_revision"].clone(),
        // If the response has keys only, the value is read from the store at its current revision.
        // That is correct, because the only scenario with ties to decide reads only at the current
        // revision.
        "VALUE" if record.get("value").is_none() => {
            let key = STANDARD.decode(record["key"].as_str().unwrap()).unwrap();
            STANDARD.encode(member.value(&key)).into()
        }
        "VALUE" => record["value"].clone(),
        "KEY" => record["key"].clone(),
        other => panic!("no target {other}"),
    }
}

fn sort_by_key(reply: &mut Value) {
    let records = reply["kvs"].as_array_mut().unwrap();
    records.sort_by(|a, b| a["key"].as_str().cmp(&b["key"].as_str()));
}
