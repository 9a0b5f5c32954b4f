//! Streams and waiting calls: which messages must have arrived after a step.

use std::time::Duration;

use serde_json::Value;

use super::{EXTRA_MESSAGE_WAIT, Replayer, shown};
use crate::compare::{self, cut};
use crate::recording::Stream;
use crate::wire::{ClientStream, Event};
use crate::{accepted, streams};

/// Maximum time that the replay waits for an expected message of a stream.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct OpenStream {
    stream: Stream,
    conversation: ClientStream,
    /// The last received message. `None` before the first one.
    last: Option<Value>,
    is_cancelled: bool,
    /// If true, the stream has sent a wrong message or none, and the replay no longer waits for it.
    is_broken: bool,
}

impl OpenStream {
    pub(super) fn send(&mut self, request: &Value) {
        self.conversation.send(request);
    }

    pub(super) fn half_close(&mut self) {
        self.conversation.half_close();
    }

    /// Returns whether a message is expected after this step.
    pub(super) fn expects_message_after(&self, number: u64) -> bool {
        self.stream.out.iter().any(|(after, _)| *after == number)
    }
}

impl Replayer<'_> {
    pub(super) fn open(&mut self, number: u64, mut stream: Stream) {
        let Some(channel) = self.channel(&stream.head) else {
            return self.differs(number, "there is no second server");
        };
        let method = self.methods.get(&stream.head.path);
        self.put_token_into(&mut stream.head);
        let conversation = ClientStream::open(channel, &stream.head, method);
        let open =
            OpenStream { stream, conversation, last: None, is_cancelled: false, is_broken: false };
        self.streams.insert(number, open);
    }

    pub(super) async fn cancel(&mut self, number: u64, stream: u64) {
        let Some(open) = self.streams.get_mut(&stream) else { return };
        // All expected messages have arrived, so a message within this short wait is an error.
        let too_much = match open.is_broken {
            true => None,
            false => open.conversation.next(EXTRA_MESSAGE_WAIT).await,
        };
        open.conversation.cancel();
        open.is_cancelled = true;
        if let Some(event) = too_much {
            self.differs(number, format!("not expected: {}", cut(&format!("{event:?}"))));
        }
    }

    /// Waits until every message that etcd had sent by this step has arrived.
    pub(super) async fn settle(&mut self, number: u64) {
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
            if !open.is_broken {
                self.receive(number, &mut open).await;
            }
            if open.stream.ended.0 == number {
                self.check_end(number, open).await;
            } else {
                self.streams.insert(opened, open);
            }
        }
    }

    async fn receive(&mut self, number: u64, open: &mut OpenStream) {
        let OpenStream { stream, conversation, last, is_cancelled: cancelled, is_broken: broken } =
            open;
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
        while let Some(Event::Message(message)) = conversation.try_next() {
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

    async fn check_end(&mut self, number: u64, mut open: OpenStream) {
        let path = &open.stream.head.path;
        let etcds = open.stream.ended.1;
        if open.is_cancelled {
            let by_client = etcds.as_ref().is_err_and(|failure| failure.code == "Canceled");
            assert!(by_client, "{number}: etcd said {etcds:?}");
            return;
        }
        if open.is_broken {
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

    /// Reads a stream to its end, joins its messages, and compares the result with the joined
    /// messages of the recording.
    async fn whole_answer(&mut self, opened: u64, mut open: OpenStream) {
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
