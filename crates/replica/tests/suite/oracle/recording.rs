//! Reads a recording: its steps, and the types of the called methods.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost_reflect::{DescriptorPool, MethodDescriptor};
use serde_json::{Map, Value};

/// Fields in the header of a response that only a complete member knows.
const MEMBER_HEADER_FIELDS: [&str; 3] = ["cluster_id", "member_id", "raft_term"];

/// One step of a scenario.
pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) action: StepAction,
}

/// The action of a step.
pub(crate) enum StepAction {
    Call {
        method: String,
        request: Value,
        /// The response, or the message of the error.
        outcome: Result<Value, String>,
    },
    Restart,
}

pub(crate) fn pool() -> DescriptorPool {
    DescriptorPool::decode(clearlane_proto::DESCRIPTORS).unwrap()
}

/// Finds the input and output types of a method by its path, `/package.Service/Method`.
pub(crate) fn method(pool: &DescriptorPool, path: &str) -> MethodDescriptor {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap();
    let service = pool.get_service_by_name(service).unwrap();
    service.methods().find(|descriptor| descriptor.name() == method).unwrap()
}

/// Returns the steps of a scenario, without its header line.
pub(crate) fn read(scenario: &str) -> Vec<Step> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/oracle");
    let text = std::fs::read_to_string(folder.join(format!("{scenario}.jsonl"))).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let header = lines.next().unwrap();
    assert_eq!(header["header"]["extra_flags"], Value::Array(Vec::new()), "etcd's defaults");
    let steps: Vec<Step> = lines.map(step).collect();
    assert!(steps.iter().zip(1..).all(|(step, number)| step.number == number), "no step is lost");
    steps
}

fn step(line: Value) -> Step {
    let Value::Object(mut line) = line else { panic!("not a step: {line}") };
    let number = line.remove("step").unwrap().as_u64().unwrap();
    let taken = match line.remove("rpc") {
        Some(method) => call(method.as_str().unwrap(), &mut line),
        None => {
            assert_eq!(line.remove("action"), Some(Value::from("restart")));
            assert_eq!(line.remove("extra_flags"), Some(Value::Null));
            StepAction::Restart
        }
    };
    // Notes are remarks for readers. The metadata of a call is for the server, which is not part of
    // this test.
    line.retain(|name, _| !["scenario", "note", "metadata"].contains(&name.as_str()));
    assert!(line.is_empty(), "fields that this test does not know: {line:?}");
    Step { number, action: taken }
}

fn call(method: &str, line: &mut Map<String, Value>) -> StepAction {
    let mut request = line.remove("request").unwrap();
    write_out(&mut request);
    let outcome = match line.remove("error") {
        Some(error) => Err(error["message"].as_str().unwrap().to_owned()),
        None => Ok(without_members_own(line.remove("reply").unwrap())),
    };
    StepAction::Call { method: method.to_owned(), request, outcome }
}

fn without_members_own(mut reply: Value) -> Value {
    let header = reply["header"].as_object_mut().unwrap();
    for name in MEMBER_HEADER_FIELDS {
        assert!(header.remove(name).is_some(), "{name}");
    }
    reply
}

/// Restores long values, which are recorded as their length and the byte that they consist of.
fn write_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(len) = fields.get("bytes").and_then(Value::as_u64) {
                let byte = STANDARD.decode(fields["fill"].as_str().unwrap()).unwrap();
                *value = STANDARD.encode(byte.repeat(len as usize)).into();
            } else {
                fields.values_mut().for_each(write_out);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(write_out),
        _ => {}
    }
}
