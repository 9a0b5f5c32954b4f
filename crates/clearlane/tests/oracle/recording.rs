//! A recording, read and laid out in the order in which things were done.
//!
//! A line of a stream stands where the stream was opened, with all that went in and came out until
//! its end. Here each thing that went in becomes a step of its own; what came out stays with the
//! stream, under the step after which it came:
//!
//! ```text
//!   line 4: Watch, in: [5: create, 7: cancel], out: [after 5: created, after 6: event]
//!   line 6: Put                                                ┌ expected of the stream
//!   ─────────────────────────────────────────────────────      │
//!   4 Open(Watch) · 5 Send(to 4, create) · 6 Call(Put) · 7 Cancel(4)
//! ```
//!
//! A field that this does not know is an error: nothing that was recorded is passed over in
//! silence.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

pub(crate) type Outcome = Result<Value, Failure>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// As Go writes it: `InvalidArgument`.
    pub(crate) code: String,
    pub(crate) message: String,
}

pub(crate) struct Recording {
    /// Beside etcd's defaults.
    pub(crate) flags: Vec<String>,
    /// In their order. What is done in one step has one number.
    pub(crate) steps: Vec<Step>,
}

pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    Call(Call),
    OpenStream(Stream),
    /// On the stream of that step.
    Send(u64, Value),
    /// The client's side of that stream.
    HalfClose(u64),
    /// That stream.
    Cancel(u64),
    Http(Http),
    Restart,
    Sleep(Duration),
    StartLearner,
    InspectServer,
}

/// Of a call or a stream.
#[derive(Clone)]
pub(crate) struct Head {
    /// `/package.Service/Method`
    pub(crate) path: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// It carries the last token of that user.
    pub(crate) user: Option<String>,
    /// It goes to the second server.
    pub(crate) to_learner: bool,
}

/// With one answer.
pub(crate) struct Call {
    pub(crate) head: Head,
    pub(crate) request: Value,
    pub(crate) outcome: Outcome,
    /// It was answered only when that step had been done.
    pub(crate) answered_after: Option<u64>,
    /// The client gives up then.
    pub(crate) deadline: Option<Duration>,
}

pub(crate) struct Stream {
    pub(crate) head: Head,
    /// Each message with the step after which it came.
    pub(crate) out: Vec<(u64, Value)>,
    /// After which step, and how.
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
    // Remarks.
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
            // A restart has the flags of the start, and the header has those.
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
    // How long it took is not compared.
    line.take("elapsed_s");
    let answered_after = line.take("returned_after_step").map(|step| step.as_u64().unwrap());
    // Answered in its own step: it was the client that did not wait any longer, for so long:
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
        // The stream had ended before.
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

/// Long values are recorded as their length and the byte that they consist of.
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

/// Each is taken once: what is left over is unknown.
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
