//! Reads a recording: its steps, and the fields of their requests.
//!
//! The caller takes the fields one by one. After it has taken all fields that it knows, it calls
//! `assert_empty`, which fails if a field is left. So the test finds fields that no code handles.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Header fields of a reply that a store does not know, because they belong to a complete member.
const MEMBERS_OWN: [&str; 3] = ["cluster_id", "member_id", "raft_term"];

pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    Call {
        method: String,
        request: Fields,
        /// The reply, or the code and the message of the error.
        outcome: Result<Value, Value>,
    },
    Restart,
}

pub(crate) fn read(path: &Path) -> Vec<Step> {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines().map(|line| Fields::of(serde_json::from_str(line).unwrap()));
    let mut header = lines.next().unwrap().message("header").unwrap();
    assert_eq!(header.take("extra_flags"), Some(Value::Array(Vec::new())), "etcd's defaults");
    let steps: Vec<Step> = lines.map(step).collect();
    assert!(steps.iter().zip(1..).all(|(step, number)| step.number == number), "no step is lost");
    steps
}

fn step(mut line: Fields) -> Step {
    let number = line.take("step").unwrap().as_u64().unwrap();
    line.take("scenario");
    line.take("note");
    let taken = match line.take("rpc") {
        Some(method) => Action::Call {
            method: method.as_str().unwrap().to_owned(),
            request: line.message("request").unwrap(),
            outcome: match line.take("error") {
                Some(error) => Err(error),
                None => Ok(without_members_own(line.take("reply").unwrap())),
            },
        },
        None => {
            assert_eq!(line.take("action"), Some(Value::from("restart")));
            assert_eq!(line.take("extra_flags"), Some(Value::Null));
            Action::Restart
        }
    };
    line.assert_empty();
    Step { number, action: taken }
}

fn without_members_own(mut reply: Value) -> Value {
    if let Some(header) = reply.get_mut("header") {
        let header = header.as_object_mut().unwrap();
        for name in MEMBERS_OWN {
            header.remove(name);
        }
    }
    reply
}

/// The fields of a message that have not been taken yet. An absent field has its default value.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    fn of(message: Value) -> Fields {
        match message {
            Value::Object(fields) => Fields(fields),
            other => panic!("not a message: {other}"),
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    pub(crate) fn bytes(&mut self, name: &str) -> Vec<u8> {
        self.take(name).map_or(Vec::new(), |text| STANDARD.decode(text.as_str().unwrap()).unwrap())
    }

    pub(crate) fn number(&mut self, name: &str) -> i64 {
        self.take(name).map_or(0, |text| text.as_str().unwrap().parse().unwrap())
    }

    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|flag| flag.as_bool().unwrap())
    }

    pub(crate) fn message(&mut self, name: &str) -> Option<Fields> {
        self.take(name).map(Fields::of)
    }

    pub(crate) fn messages(&mut self, name: &str) -> Vec<Fields> {
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(messages)) => messages.into_iter().map(Fields::of).collect(),
            Some(other) => panic!("{name} is no list: {other}"),
        }
    }

    pub(crate) fn assert_empty(self) {
        assert!(self.0.is_empty(), "fields that this test does not know: {:?}", self.0);
    }
}
