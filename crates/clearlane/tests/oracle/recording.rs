//! Reads a recording and arranges it in the order of its steps.
//!
//! The recording has one line for a stream, at the step that opened it, with all messages in both
//! directions until its end. Here, each sent message becomes a separate step. Received messages
//! stay with the stream, with the number of the step after which they arrived:
//!
//! ```text
//!   recording:  line of step 4: Watch, in: [5: create, 7: cancel],
//!                                      out: [after 5: created, after 6: event]
//!               line of step 6: Put
//!
//!   actions:    4 OpenStream(Watch, out: [after 5: created, after 6: event])
//!               5 Send(4, create)
//!               6 Call(Put)
//!               7 Cancel(4)
//! ```
//!
//! An unknown field is an error, so that no part of a recording is silently ignored.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

pub(crate) type Outcome = Result<Value, Failure>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The code in Go's spelling, such as `InvalidArgument`.
    pub(crate) code: String,
    pub(crate) message: String,
}

pub(crate) struct Recording {
    /// The flags that differ from etcd's defaults.
    pub(crate) flags: Vec<String>,
    /// All actions, in their order. If a recorded step has several actions, they have the same
    /// number.
    pub(crate) steps: Vec<Step>,
}

pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    Call(Call),
    OpenStream(Stream),
    /// Sends a message on a stream. The number is the step that opened the stream.
    Send(u64, Value),
    /// Closes the client's side of a stream. The number is the step that opened the stream.
    HalfClose(u64),
    /// Cancels a stream. The number is the step that opened the stream.
    Cancel(u64),
    Http(Http),
    Restart,
    Sleep(Duration),
    StartLearner,
    InspectServer,
}

/// The head of a call or a stream.
#[derive(Clone)]
pub(crate) struct Head {
    /// The path, such as `/package.Service/Method`.
    pub(crate) path: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// The user whose last token is sent. `None` if no token is sent.
    pub(crate) user: Option<String>,
    /// If true, the request goes to the second server.
    pub(crate) to_learner: bool,
}

/// A call with one response.
pub(crate) struct Call {
    pub(crate) head: Head,
    pub(crate) request: Value,
    pub(crate) outcome: Outcome,
    /// If set, the response did not arrive during the call's own step, but after the step with this
    /// number.
    pub(crate) answered_after: Option<u64>,
    /// The client gives up after this time. `None` if it waits for the response.
    pub(crate) deadline: Option<Duration>,
}

pub(crate) struct Stream {
    pub(crate) head: Head,
    /// The received messages, each with the number of the step after which it arrived.
    pub(crate) out: Vec<(u64, Value)>,
    /// The number of the step after which the stream ended, and the result of the stream.
    pub(crate) ended: (u64, Result<(), Failure>),
}

pub(crate) struct Http {
    /// Method and path.
    pub(crate) line: String,
    pub(crate) body: String,
    pub(crate) answer: HttpAnswer,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: String,
}

pub(crate) fn read(scenario: &str) -> Recording {
    let file = folder().join(format!("{scenario}.jsonl"));
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let header = lines.next().unwrap();
    let flags = serde_json::from_value(header["header"]["extra_flags"].clone()).unwrap();
    let mut steps: Vec<Step> = lines.flat_map(steps_of).collect();
    steps.sort_by_key(|step| step.number);
    let mut last = 0;
    for step in &steps {
        assert!(step.number == last || step.number == last + 1, "step {} is lost", last + 1);
        last = step.number;
    }
    Recording { flags, steps }
}

pub(crate) fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/oracle")
}

fn steps_of(line: Value) -> Vec<Step> {
    let mut line = Fields::of(line);
    // A note is a remark for readers. The notes of some calls also contain a time-out, which `call`
    // reads.
    let note = line.text("note").unwrap_or_default();
    line.take("scenario");
    let number = line.number("step");
    let steps = match (line.text("rpc"), line.text("http"), line.text("action")) {
        (Some(path), None, None) if line.has("stream_in") => stream(number, path, &mut line),
        (Some(path), None, None) => {
            vec![Step { number, action: Action::Call(call(number, path, &note, &mut line)) }]
        }
        (None, Some(request), None) => {
            vec![Step { number, action: Action::Http(http(request, &mut line)) }]
        }
        (None, None, Some(action)) => {
            vec![Step { number, action: parse_action(&action, &mut line) }]
        }
        _ => panic!("step {number} is not one thing"),
    };
    line.assert_empty(number);
    steps
}

fn parse_action(action: &str, line: &mut Fields) -> Action {
    match action {
        "restart" => {
            // A restart has the same flags as the start, which are in the header.
            line.take("extra_flags");
            Action::Restart
        }
        "sleep" => Action::Sleep(Duration::from_millis(line.number("ms"))),
        "start second server as the learner" => Action::StartLearner,
        "look at the server process" => {
            line.take("observed");
            Action::InspectServer
        }
        other => panic!("no action {other}"),
    }
}

fn head(path: String, line: &mut Fields) -> Head {
    let metadata = line.take("metadata").map(|value| serde_json::from_value(value).unwrap());
    let mut metadata: BTreeMap<String, String> = metadata.unwrap_or_default();
    if let Some(token) = line.text("raw_token") {
        metadata.insert("token".to_owned(), token);
    }
    let server = line.text("server");
    assert!(server.as_deref().is_none_or(|name| name == "m1"), "{server:?}");
    Head { path, metadata, user: line.text("as"), to_learner: server.is_some() }
}

fn call(number: u64, path: String, note: &str, line: &mut Fields) -> Call {
    let head = head(path, line);
    let mut request = line.take("request").unwrap();
    write_out(&mut request);
    let outcome = match failure(line) {
        Some(failure) => Err(failure),
        None => {
            let mut reply = line.take("reply").unwrap();
            write_out(&mut reply);
            Ok(reply)
        }
    };
    // Durations are not compared.
    line.take("elapsed_s");
    let answered_after = line.take("returned_after_step").map(|step| step.as_u64().unwrap());
    // If the response belongs to the call's own step, the client gave up. The note then contains
    // the time-out.
    let deadline = answered_after.filter(|step| *step == number).map(|_| {
        let (_, behind) = note.split_once('(').unwrap();
        let (millis, _) = behind.split_once(" ms)").unwrap();
        Duration::from_millis(millis.parse().unwrap())
    });
    let answered_after = answered_after.filter(|step| *step != number);
    Call { head, request, outcome, answered_after, deadline }
}

fn stream(number: u64, path: String, line: &mut Fields) -> Vec<Step> {
    let head = head(path, line);
    let mut steps = Vec::new();
    for sent in line.list("stream_in") {
        let mut sent = Fields::of(sent);
        let at = sent.number("step");
        sent.take("note");
        // This field means that the stream had already ended.
        sent.take("send_failed");
        let is_true = |value: Option<Value>| value.is_some_and(|value| value == true);
        let taken = if is_true(sent.take("client_cancel")) {
            Action::Cancel(number)
        } else if is_true(sent.take("half_close")) {
            Action::HalfClose(number)
        } else {
            let mut request = sent.take("request").unwrap();
            write_out(&mut request);
            Action::Send(number, request)
        };
        sent.assert_empty(at);
        steps.push(Step { number: at, action: taken });
    }
    let out = line.list("stream_out").into_iter().map(|message| {
        let mut message = Fields::of(message);
        let after = message.number("after_step");
        let mut reply = message.take("reply").unwrap();
        write_out(&mut reply);
        message.assert_empty(after);
        (after, reply)
    });
    let out = out.collect();
    let mut ended = Fields::of(line.take("ended").unwrap());
    let after = ended.number("after_step");
    let how = match (ended.text("how").unwrap().as_str(), failure(line)) {
        ("server closed the stream with status OK", None) => Ok(()),
        ("stream ended with the error below", Some(failure)) => Err(failure),
        other => panic!("step {number} ends like {other:?}"),
    };
    let stream = Stream { head, out, ended: (after, how) };
    steps.insert(0, Step { number, action: Action::OpenStream(stream) });
    steps
}

fn http(request: String, line: &mut Fields) -> Http {
    let answer = HttpAnswer {
        status: line.number("status").try_into().unwrap(),
        content_type: line.text("content_type").unwrap(),
        body: line.text("body").unwrap(),
    };
    Http { line: request, body: line.text("request_body").unwrap_or_default(), answer }
}

fn failure(line: &mut Fields) -> Option<Failure> {
    let mut error = Fields::of(line.take("error")?);
    Some(Failure { code: error.text("code").unwrap(), message: error.text("message").unwrap() })
}

/// Restores long values, which are recorded as their length and the byte that they consist of.
fn write_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let len = fields.get("bytes").and_then(Value::as_u64);
            if let (Some(len), Some(fill)) = (len, fields.get("fill")) {
                let byte = STANDARD.decode(fill.as_str().unwrap()).unwrap();
                *value = STANDARD.encode(byte.repeat(len as usize)).into();
            } else {
                fields.values_mut().for_each(write_out);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(write_out),
        _ => {}
    }
}

/// The fields of a line. The code takes each field that it knows. A field that remains is unknown,
/// which is an error.
struct Fields(Map<String, Value>);

impl Fields {
    fn of(value: Value) -> Fields {
        let Value::Object(fields) = value else { panic!("not an object: {value}") };
        Fields(fields)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.take(name).map(|value| value.as_str().unwrap().to_owned())
    }

    fn number(&mut self, name: &str) -> u64 {
        self.take(name).unwrap().as_u64().unwrap()
    }

    fn list(&mut self, name: &str) -> Vec<Value> {
        self.take(name).unwrap().as_array().unwrap().clone()
    }

    fn assert_empty(&self, step: u64) {
        assert!(self.0.is_empty(), "step {step} has fields that are not read: {:?}", self.0);
    }
}
