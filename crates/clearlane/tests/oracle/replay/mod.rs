//! Replays a recording step by step.
//!
//! The recorder waited after each step until no more messages arrived. The replay need not wait
//! like this, because it knows the expected messages: the next step starts when they have arrived.
//! An unexpected message is found when the next expected message is read, or at the end of its
//! stream.

mod stream_replay;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use self::stream_replay::OpenStream;
use crate::compare::{self, cut};
use crate::recording::{self, Action, Call, Failure, Head, Http, HttpAnswer, Outcome, Step};
use crate::served::{MemberSpec, RunningServer, ServerKind};
use crate::wire::{self, Methods, PATIENCE};
use crate::{accepted, etcd, http, names::Names};

/// How long a client waits for unexpected messages before it closes a stream.
const EXTRA_MESSAGE_WAIT: Duration = Duration::from_millis(50);

/// etcd's ids in the recordings.
const CLUSTER_ID: &str = "9735334494912078063";
const MEMBER_ID: &str = "12886971399916175087";
/// The placeholder for each token in the recordings.
const TOKEN_NAME: &str = "<token>";
/// The shortest TTL of tokens in all recordings: the value of `--auth-token-ttl` in 29-auth-expiry.
const SHORTEST_TIME_TO_LIVE: Duration = Duration::from_secs(2);
const TOKEN_USE_INTERVAL: Duration = Duration::from_millis(100);
const LEARNER_URL: &str = "http://127.0.0.1:27003";

#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) step: u64,
    pub(crate) what: String,
}

struct Pending {
    step: u64,
    call: Call,
    task: JoinHandle<Outcome>,
}

struct Replayer<'a> {
    scenario: &'a str,
    methods: Methods,
    names: Names,
    /// The last token of each user.
    tokens: BTreeMap<String, String>,
    /// If true, Clearlane is tested, not etcd. Then `accepted` also allows differences that only
    /// Clearlane may have.
    as_ours: bool,
    served: RunningServer,
    /// The second server. `None` in scenarios with only one server.
    learner: Option<RunningServer>,
    streams: BTreeMap<u64, OpenStream>,
    pending: Vec<Pending>,
    differences: Vec<Difference>,
}

pub(crate) async fn replay(scenario: &str, kind: ServerKind) -> Vec<Difference> {
    let recording = recording::read(scenario);
    let has_second = recording.steps.iter().any(|step| matches!(step.action, Action::StartLearner));
    let place = if has_second {
        MemberSpec::first(etcd::free_address())
    } else {
        MemberSpec::recorded_member()
    };
    let as_ours = matches!(kind, ServerKind::Clearlane(_));
    let served = match RunningServer::start(kind, place, recording.flags).await {
        Ok(served) => served,
        Err(what) => return vec![Difference { step: 0, what }],
    };
    let mut player = Replayer {
        scenario,
        methods: Methods::new(),
        names: Names::default(),
        tokens: BTreeMap::new(),
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
    while let Some(Step { number, action: taken }) = steps.next() {
        player = player.step(number, taken).await;
        if steps.peek().is_none_or(|next| next.number != number) {
            player.settle(number).await;
        }
    }
    player.end().await
}

impl Replayer<'_> {
    fn differs(&mut self, step: u64, what: impl Into<String>) {
        self.differences.push(Difference { step, what: what.into() });
    }

    /// Learns the ids of a cluster whose servers connect to each other. Their ids differ from the
    /// recorded ones, because they are derived from addresses, and these servers use free ports.
    async fn name_places(&mut self) {
        let header = &self.range(json!({"key": "AA=="})).await["header"];
        for (recorded, field) in [(CLUSTER_ID, "cluster_id"), (MEMBER_ID, "member_id")] {
            self.names.set(recorded, header[field].as_str().unwrap_or_default());
        }
        self.names.set("http://127.0.0.1:27001", &self.served.member_spec().peer_url);
        let learner = format!("http://{}", etcd::free_address());
        self.names.set(LEARNER_URL, &learner);
    }

    async fn start_learner(&mut self, number: u64) {
        let address = self.names.get(LEARNER_URL).trim_start_matches("http://").parse().unwrap();
        let place = MemberSpec::second(self.served.member_spec(), address);
        match RunningServer::start(self.served.kind().clone(), place, Vec::new()).await {
            Ok(served) => self.learner = Some(served),
            Err(what) => self.differs(number, what),
        }
        self.until_it_learns(number, true).await;
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

    async fn step(mut self, number: u64, taken: Action) -> Self {
        match taken {
            Action::Call(call) => self.call(number, call).await,
            Action::OpenStream(stream) => self.open(number, stream),
            Action::Send(stream, mut request) => {
                self.names.put_into(&mut request);
                if let Some(open) = self.streams.get_mut(&stream) {
                    open.send(&request);
                }
            }
            Action::HalfClose(stream) => {
                if let Some(open) = self.streams.get_mut(&stream) {
                    open.half_close();
                }
            }
            Action::Cancel(stream) => self.cancel(number, stream).await,
            Action::Http(http) => self.http(number, http).await,
            Action::Restart => self.served = self.served.restart().await.unwrap(),
            Action::Sleep(time) => {
                // If a stream expects a message after this step, its arrival shows that the time
                // has passed. Then the replay does not sleep.
                if !self.streams.values().any(|open| open.expects_message_after(number)) {
                    self.sleep(time).await;
                }
            }
            Action::StartLearner => self.start_learner(number).await,
            // The recorder checked whether etcd had crashed. Clearlane runs in this process, so
            // there is no process to inspect. The test notices a panic when it stops the server.
            Action::InspectServer => {}
        }
        self
    }

    async fn call(&mut self, number: u64, mut call: Call) {
        let Some(channel) = self.channel(&call.head) else {
            return self.differs(number, "there is no second server");
        };
        self.names.put_into(&mut call.request);
        let method = self.methods.get(&call.head.path);
        self.put_token_into(&mut call.head);
        let made = || {
            let (head, request) = (call.head.clone(), call.request.clone());
            wire::call(channel.clone(), head, method.clone(), request, call.deadline)
        };
        if call.answered_after.is_some() {
            // All recorded calls of this kind write a key and then wait. The next step starts after
            // that write.
            let before = self.revision().await;
            let task = tokio::spawn(made());
            self.until(number, before + 1).await;
            self.pending.push(Pending { step: number, call, task });
        } else if call.deadline.is_some() {
            // The call writes a key, which is removed when the client has given up.
            let before = self.revision().await;
            let ours = made().await;
            self.until(number, before + 2).await;
            self.compare(number, call, ours).await;
        } else {
            let since = Instant::now();
            let mut ours = made().await;
            while call.outcome.is_ok() && is_too_early(&ours) && since.elapsed() < PATIENCE {
                tokio::time::sleep(EXTRA_MESSAGE_WAIT).await;
                ours = made().await;
            }
            if call.head.path == "/etcdserverpb.KV/Compact" && ours.is_ok() {
                let revision = call.request["revision"].as_str().unwrap_or("0").parse().unwrap();
                self.served.wait_until_compacted(revision).await;
            }
            if call.head.path == "/etcdserverpb.Cluster/MemberPromote" && ours.is_ok() {
                self.until_it_learns(number, false).await;
            }
            self.compare(number, call, ours).await;
        }
    }

    /// Waits until the second server knows whether it is a learner. It may apply a change of its
    /// role later than the first server. If the wait takes too long, this is recorded as a
    /// difference.
    async fn until_it_learns(&mut self, number: u64, is_learner: bool) {
        let Some(learner) = self.learner.as_ref().map(RunningServer::channel) else { return };
        let heard = async {
            while wire::status(learner.clone()).await.get("isLearner").is_some() != is_learner {
                tokio::time::sleep(EXTRA_MESSAGE_WAIT).await;
            }
        };
        if tokio::time::timeout(PATIENCE, heard).await.is_err() {
            self.differs(number, "the learner does not hear what it is");
        }
    }

    /// Sleeps. During a sleep that is shorter than the TTL of tokens, the tokens are used
    /// repeatedly, so that they do not expire on a slow machine. During a longer sleep they are not
    /// used, so that they can expire.
    async fn sleep(&mut self, time: Duration) {
        if time >= SHORTEST_TIME_TO_LIVE {
            return tokio::time::sleep(time).await;
        }
        let end = Instant::now() + time;
        while Instant::now() < end {
            for token in self.tokens.values() {
                wire::auth_status(self.served.channel(), token).await;
            }
            tokio::time::sleep(TOKEN_USE_INTERVAL).await;
        }
    }

    fn put_token_into(&self, head: &mut Head) {
        if let Some(user) = &head.user {
            let token = self.tokens.get(user).cloned().unwrap_or_default();
            head.metadata.insert("token".to_owned(), token);
        }
    }

    /// Learns the token of a user from the reply, and replaces it in the reply by the recording's
    /// placeholder. Later requests of this user send the token.
    fn learn_token(&mut self, request: &Value, etcds: &Value, ours: &mut Value) {
        let Some(user) = request["name"].as_str() else { return };
        if etcds["token"] == TOKEN_NAME
            && let Some(Value::String(token)) = ours.get_mut("token")
        {
            let token = std::mem::replace(token, TOKEN_NAME.to_owned());
            self.tokens.insert(user.to_owned(), token);
        }
    }

    /// Returns the connection for a request. `None` if the request is for the second server and
    /// there is none.
    fn channel(&self, head: &Head) -> Option<Channel> {
        match head.to_learner {
            true => self.learner.as_ref().map(RunningServer::channel),
            false => Some(self.served.channel()),
        }
    }

    async fn revision(&self) -> u64 {
        let request = json!({"key": "AA==", "serializable": true, "count_only": true});
        let revision = self.range(request).await["header"]["revision"].clone();
        revision.as_str().map_or(0, |revision| revision.parse().unwrap())
    }

    async fn range(&self, request: Value) -> Value {
        let path = "/etcdserverpb.KV/Range".to_owned();
        let method = self.methods.get(&path);
        let head = Head { path, metadata: BTreeMap::new(), user: None, to_learner: false };
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
                self.learn_token(&request, &etcds, &mut ours);
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
            // The bodies are equal, except for the parts that may differ. So below, only the
            // status, the content type and a newline at the end are compared.
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

/// Returns whether a promotion came too early. A learner must first catch up, and nothing reports
/// when it has caught up.
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
