//! Doing what a recording did, step by step.
//!
//! The recorder waited for silence behind every step. Nothing is waited for here that way: it is
//! known what has to come, and the next step begins when it has come. What should not come is found
//! when something else was expected, or at the end of its stream.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::compare::{self, cut};
use crate::recording::{self, Call, Failure, Head, Http, HttpAnswer, Outcome, Step, Stream, Taken};
use crate::served::{Place, Served, Whose};
use crate::wire::{self, Conversation, Event, Methods, PATIENCE};
use crate::{accepted, etcd, http, names::Names, streams};

/// How long a stream may take to say what is expected of it.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);

/// A client listens for so long to what nobody expects, before it goes away.
const LISTENING: Duration = Duration::from_millis(50);

/// In the recordings.
const CLUSTER_ID: &str = "9735334494912078063";
const MEMBER_ID: &str = "12886971399916175087";
const LEARNER_URL: &str = "http://127.0.0.1:27003";

/// Something that etcd did in another way.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) step: u64,
    pub(crate) what: String,
}

/// A call that is not answered at once.
struct Pending {
    step: u64,
    call: Call,
    task: JoinHandle<Outcome>,
}

/// A stream under way.
struct Open {
    stream: Stream,
    conversation: Conversation,
    /// The last message that came.
    last: Option<Value>,
    /// The client has gone away.
    cancelled: bool,
    /// It said other things than expected, or nothing: it is not waited for any longer.
    broken: bool,
}

/// A scenario being replayed.
struct Player<'a> {
    scenario: &'a str,
    methods: Methods,
    names: Names,
    /// Whether what we do in another way is expected.
    as_ours: bool,
    served: Served,
    /// The second one, of the scenarios that have it.
    learner: Option<Served>,
    streams: BTreeMap<u64, Open>,
    pending: Vec<Pending>,
    differences: Vec<Difference>,
}

/// Replays a scenario to its end, or to where something differs if that is enough.
pub(crate) async fn replay(scenario: &str, whose: Whose, to_the_end: bool) -> Vec<Difference> {
    let recording = recording::read(scenario);
    let has_second = recording.steps.iter().any(|step| matches!(step.taken, Taken::StartLearner));
    let place = if has_second { Place::first(etcd::free_address()) } else { Place::alone() };
    let as_ours = matches!(whose, Whose::Ours(_));
    let served = match Served::start(whose, place, recording.flags).await {
        Ok(served) => served,
        Err(what) => return vec![Difference { step: 0, what }],
    };
    let mut player = Player {
        scenario,
        methods: Methods::new(),
        names: Names::default(),
        as_ours,
        served,
        learner: None,
        streams: BTreeMap::new(),
        pending: Vec::new(),
        differences: Vec::new(),
    };
    if has_second {
        player.name_places().await;
    }
    let mut steps = recording.steps.into_iter().peekable();
    while let Some(Step { number, taken }) = steps.next() {
        player = player.step(number, taken).await;
        if steps.peek().is_none_or(|next| next.number != number) {
            player.settle(number).await;
        }
        if !to_the_end && !player.differences.is_empty() {
            break;
        }
    }
    player.end().await
}

impl Player<'_> {
    fn differs(&mut self, step: u64, what: impl Into<String>) {
        self.differences.push(Difference { step, what: what.into() });
    }

    /// Where servers have to reach each other, they are where there is room, and have other ids.
    async fn name_places(&mut self) {
        let header = &self.range(json!({"key": "AA=="})).await["header"];
        for (recorded, field) in [(CLUSTER_ID, "cluster_id"), (MEMBER_ID, "member_id")] {
            self.names.set(recorded, header[field].as_str().unwrap_or_default());
        }
        self.names.set("http://127.0.0.1:27001", &self.served.place().peer_url);
        let learner = format!("http://{}", etcd::free_address());
        self.names.set(LEARNER_URL, &learner);
    }

    async fn start_learner(&mut self, number: u64) {
        let address = self.names.get(LEARNER_URL).trim_start_matches("http://").parse().unwrap();
        let place = Place::second(self.served.place(), address);
        match Served::start(self.served.whose().clone(), place, Vec::new()).await {
            Ok(served) => self.learner = Some(served),
            Err(what) => self.differs(number, what),
        }
    }

    async fn end(mut self) -> Vec<Difference> {
        self.streams.clear();
        for pending in self.pending.drain(..) {
            pending.task.abort();
        }
        for served in self.learner.into_iter().chain([self.served]) {
            if let Err(failure) = served.stop().await {
                self.differences.push(Difference { step: u64::MAX, what: failure });
            }
        }
        self.differences
    }

    async fn step(mut self, number: u64, taken: Taken) -> Self {
        match taken {
            Taken::Call(call) => self.call(number, call).await,
            Taken::Open(stream) => self.open(number, stream),
            Taken::Send(stream, mut request) => {
                self.names.put_into(&mut request);
                if let Some(open) = self.streams.get_mut(&stream) {
                    open.conversation.send(&request);
                }
            }
            Taken::HalfClose(stream) => {
                if let Some(open) = self.streams.get_mut(&stream) {
                    open.conversation.half_close();
                }
            }
            Taken::Cancel(stream) => self.cancel(number, stream).await,
            Taken::Http(http) => self.http(number, http).await,
            Taken::Restart => self.served = self.served.restart().await.unwrap(),
            Taken::Sleep(time) => {
                // A stream that has something to say tells when the time is over.
                let told = |open: &Open| open.stream.out.iter().any(|(after, _)| *after == number);
                if !self.streams.values().any(told) {
                    tokio::time::sleep(time).await;
                }
            }
            Taken::StartLearner => self.start_learner(number).await,
            // It is in this process; a panic is found when it is stopped.
            Taken::LookAtServer => {}
        }
        self
    }

    async fn call(&mut self, number: u64, mut call: Call) {
        let Some(channel) = self.channel(&call.head) else {
            return self.differs(number, "there is no second server");
        };
        self.names.put_into(&mut call.request);
        let method = self.methods.get(&call.head.path);
        let made = || {
            let (head, request) = (call.head.clone(), call.request.clone());
            wire::call(channel.clone(), head, method.clone(), request, call.deadline)
        };
        if call.answered_after.is_some() {
            // All that are recorded write a key, and wait then. The next step comes behind that.
            let before = self.revision().await;
            let task = tokio::spawn(made());
            self.until(number, before + 1).await;
            self.pending.push(Pending { step: number, call, task });
        } else if call.deadline.is_some() {
            // A key is written, and removed when the client gave up.
            let before = self.revision().await;
            let ours = made().await;
            self.until(number, before + 2).await;
            self.compare(number, call, ours).await;
        } else {
            let since = Instant::now();
            let mut ours = made().await;
            while call.outcome.is_ok() && is_too_early(&ours) && since.elapsed() < PATIENCE {
                tokio::time::sleep(LISTENING).await;
                ours = made().await;
            }
            self.compare(number, call, ours).await;
        }
    }

    /// To the server that is asked.
    fn channel(&self, head: &Head) -> Option<Channel> {
        match head.to_learner {
            true => self.learner.as_ref().map(Served::channel),
            false => Some(self.served.channel()),
        }
    }

    /// The revision of the store.
    async fn revision(&self) -> u64 {
        let request = json!({"key": "AA==", "serializable": true, "count_only": true});
        let revision = self.range(request).await["header"]["revision"].clone();
        revision.as_str().map_or(0, |revision| revision.parse().unwrap())
    }

    async fn range(&self, request: Value) -> Value {
        let path = "/etcdserverpb.KV/Range".to_owned();
        let method = self.methods.get(&path);
        let head = Head { path, metadata: BTreeMap::new(), to_learner: false };
        wire::call(self.served.channel(), head, method, request, None).await.unwrap_or_default()
    }

    async fn until(&mut self, number: u64, revision: u64) {
        let written = async {
            while self.revision().await < revision {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(PATIENCE, written).await.is_err() {
            self.differs(number, format!("revision {revision} is not reached"));
        }
    }

    async fn compare(&mut self, number: u64, call: Call, ours: Outcome) {
        let Call { head, request, outcome, .. } = call;
        match (accepted::expected(self.scenario, number, outcome, &ours, self.as_ours), ours) {
            (Ok(mut etcds), Ok(mut ours)) => {
                self.names.learn(&etcds, &ours);
                self.names.put_into(&mut etcds);
                compare::level(&head.path, &mut etcds, &mut ours);
                accepted::level(self.scenario, number, &mut etcds, &mut ours);
                if self.level_ties(&request, &mut etcds, &mut ours).await.is_none() {
                    self.differs(number, format!("{}: in another order", head.path));
                }
                for difference in compare::differences(&etcds, &ours) {
                    self.differs(number, format!("{}{difference}", head.path));
                }
            }
            (Err(etcds), Err(ours)) if etcds == ours => {}
            (etcds, ours) => {
                let (etcds, ours) = (shown(&etcds), shown(&ours));
                self.differs(number, format!("{}: etcd {etcds}, ours {ours}", head.path));
            }
        }
    }

    async fn level_ties(&self, request: &Value, etcds: &mut Value, ours: &mut Value) -> Option<()> {
        let Some(target) = request.get("sort_target").and_then(Value::as_str) else {
            return Some(());
        };
        let all = json!({"key": "AA==", "range_end": "AA=="});
        let all = if target == "VALUE" { self.range(all).await } else { Value::Null };
        let all: BTreeMap<String, Value> = all["kvs"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|record| (record["key"].to_string(), record["value"].clone()))
            .collect();
        let value = |key: &Value| all.get(&key.to_string()).cloned().unwrap_or_default();
        compare::level_ties(target, value, etcds, ours)
    }

    async fn http(&mut self, number: u64, http: Http) {
        match http::ask(self.served.address(), &http.line, &http.body).await {
            Ok(ours) => {
                for difference in self.http_differences(number, http.answer, ours, &http.line) {
                    self.differs(number, format!("{} {difference}", http.line));
                }
            }
            Err(error) => self.differs(number, format!("{}: {error}", http.line)),
        }
    }

    fn http_differences(
        &mut self,
        number: u64,
        mut etcds: HttpAnswer,
        mut ours: HttpAnswer,
        line: &str,
    ) -> Vec<String> {
        if line.ends_with("?verbose") {
            for answer in [&mut etcds, &mut ours] {
                let mut lines: Vec<&str> = answer.body.split_inclusive('\n').collect();
                lines.sort_unstable();
                answer.body = lines.concat();
            }
        }
        let parsed = |answer: &HttpAnswer| serde_json::from_str::<Value>(&answer.body).ok();
        if let (Some(mut etcds), Some(mut ours)) = (parsed(&etcds), parsed(&ours)) {
            self.names.learn(&etcds, &ours);
            self.names.put_into(&mut etcds);
            compare::one_space(&mut etcds);
            compare::one_space(&mut ours);
            compare::level(line, &mut etcds, &mut ours);
            accepted::level(self.scenario, number, &mut etcds, &mut ours);
            let found = compare::differences(&etcds, &ours);
            if !found.is_empty() {
                return found;
            }
            // Equal, though spaces and the last digit of a time need not be.
            ours.clone_into(&mut etcds);
        } else if etcds.body != ours.body {
            return vec![format!("body: etcd {:?}, ours {:?}", etcds.body, ours.body)];
        }
        let shape = |answer: &HttpAnswer| {
            (answer.status, answer.content_type.clone(), answer.body.ends_with('\n'))
        };
        let (etcds, ours) = (shape(&etcds), shape(&ours));
        if etcds == ours { vec![] } else { vec![format!("etcd {etcds:?}, ours {ours:?}")] }
    }
}

/// A learner is promoted when it has caught up, and nothing tells when that is.
fn is_too_early(outcome: &Outcome) -> bool {
    let words = "etcdserver: can only promote a learner member which is in sync with leader";
    outcome.as_ref().is_err_and(|failure| failure.message == words)
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Ok(reply) => cut(&reply.to_string()),
        Err(Failure { code, message }) => format!("{code}: {message}"),
    }
}

/// Streams, and calls that wait.
impl Player<'_> {
    fn open(&mut self, number: u64, stream: Stream) {
        let Some(channel) = self.channel(&stream.head) else {
            return self.differs(number, "there is no second server");
        };
        let method = self.methods.get(&stream.head.path);
        let conversation = Conversation::open(channel, &stream.head, method);
        let open = Open { stream, conversation, last: None, cancelled: false, broken: false };
        self.streams.insert(number, open);
    }

    async fn cancel(&mut self, number: u64, stream: u64) {
        let Some(open) = self.streams.get_mut(&stream) else { return };
        // Not a wait for luck: what is expected has come, and what comes now is too much.
        let too_much = match open.broken {
            true => None,
            false => open.conversation.next(LISTENING).await,
        };
        open.conversation.cancel();
        open.cancelled = true;
        if let Some(event) = too_much {
            self.differs(number, format!("nobody expected {}", cut(&format!("{event:?}"))));
        }
    }

    /// Behind a step: all that etcd had said by then must be said.
    async fn settle(&mut self, number: u64) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.call.answered_after == Some(number) {
                let ours = pending.task.await.unwrap();
                self.compare(pending.step, pending.call, ours).await;
                continue;
            }
            if pending.task.is_finished() {
                self.differs(pending.step, format!("is answered after step {number} already"));
            }
            self.pending.push(pending);
        }
        let open: Vec<u64> = self.streams.keys().copied().collect();
        for opened in open {
            let mut open = self.streams.remove(&opened).unwrap();
            if streams::is_one_answer(&open.stream.head.path) {
                if open.stream.ended.0 == number {
                    self.whole_answer(opened, open).await;
                } else {
                    self.streams.insert(opened, open);
                }
                continue;
            }
            if !open.broken {
                self.hear(number, &mut open).await;
            }
            if open.stream.ended.0 == number {
                self.ended(number, open).await;
            } else {
                self.streams.insert(opened, open);
            }
        }
    }

    /// What came of a stream after a step.
    async fn hear(&mut self, number: u64, open: &mut Open) {
        let Open { stream, conversation, last, cancelled, broken } = open;
        if *cancelled {
            return;
        }
        let after = |(after, message): &(u64, Value)| (*after == number).then(|| message.clone());
        let etcds: Vec<Value> = stream.out.iter().filter_map(after).collect();
        let is_watch = stream.head.path == "/etcdserverpb.Watch/Watch";
        let joined = accepted::is_joined(self.scenario, number);
        let complete = |messages: &[Value], before: Option<&Value>| match (is_watch, joined) {
            (true, true) => streams::joined(streams::watch_responses(messages, before)),
            (true, false) => streams::watch_responses(messages, before),
            (false, _) => messages.to_vec(),
        };
        let etcds = complete(&etcds, None);
        let mut messages = Vec::new();
        let mut end = None;
        let size = |responses: &[Value]| responses.len() + streams::events_in(responses);
        while size(&complete(&messages, last.as_ref())) < size(&etcds) {
            match conversation.next(STREAM_PATIENCE).await {
                Some(Event::Message(message)) => messages.push(message),
                Some(Event::Ended(how)) => end = Some(how),
                None => end = Some(Ok(())),
            }
            if end.is_some() {
                break;
            }
        }
        while let Some(Event::Message(message)) = conversation.at_hand() {
            messages.push(message);
        }
        let ours = complete(&messages, last.as_ref());
        *broken = end.is_some();
        if let Some(message) = messages.pop() {
            *last = Some(message);
        }
        let (mut etcds, mut ours) = (Value::Array(etcds), Value::Array(ours));
        self.names.learn(&etcds, &ours);
        self.names.put_into(&mut etcds);
        accepted::level(self.scenario, number, &mut etcds, &mut ours);
        for difference in compare::differences(&etcds, &ours) {
            self.differs(number, format!("{}{difference}", stream.head.path));
        }
        if let Some(how) = end {
            self.differs(number, format!("{} is silent: {how:?}", stream.head.path));
        }
    }

    /// How a stream ended.
    async fn ended(&mut self, number: u64, mut open: Open) {
        let path = &open.stream.head.path;
        let etcds = open.stream.ended.1;
        if open.cancelled {
            let by_client = etcds.as_ref().is_err_and(|failure| failure.code == "Canceled");
            assert!(by_client, "{number}: etcd said {etcds:?}");
            return;
        }
        if open.broken {
            return;
        }
        match open.conversation.next(STREAM_PATIENCE).await {
            Some(Event::Ended(ours)) if ours == etcds => {}
            other => {
                let other = cut(&format!("{other:?}"));
                self.differs(number, format!("{path}: end: etcd {etcds:?}, ours {other}"));
            }
        }
    }

    /// A stream that only means something as a whole.
    async fn whole_answer(&mut self, opened: u64, mut open: Open) {
        let path = &open.stream.head.path;
        let mut messages = Vec::new();
        let ours = loop {
            match open.conversation.next(STREAM_PATIENCE).await {
                Some(Event::Message(message)) => messages.push(message),
                Some(Event::Ended(Ok(()))) => break Ok(streams::whole(path, &messages)),
                Some(Event::Ended(Err(failure))) => break Err(failure),
                None => panic!("step {opened}: the stream does not end"),
            }
        };
        let recorded: Vec<Value> = open.stream.out.into_iter().map(|(_, reply)| reply).collect();
        let etcds = open.stream.ended.1.map(|()| streams::whole(path, &recorded));
        match (accepted::expected(self.scenario, opened, etcds, &ours, self.as_ours), ours) {
            (Ok(mut etcds), Ok(ours)) => {
                self.names.put_into(&mut etcds);
                for difference in compare::differences(&etcds, &ours) {
                    self.differs(opened, format!("{path}{difference}"));
                }
            }
            (Err(etcds), Err(ours)) if etcds == ours => {}
            (etcds, ours) => {
                let (etcds, ours) = (shown(&etcds), shown(&ours));
                self.differs(opened, format!("{path}: etcd {etcds}, ours {ours}"));
            }
        }
    }
}
