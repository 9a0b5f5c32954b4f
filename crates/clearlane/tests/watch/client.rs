//! A client with watch streams.

use std::time::Duration;

use clearlane_mvcc::watch::WatchMetrics;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use clearlane_proto::mvccpb::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::support::{TestServer, put};

impl TestServer {
    pub(crate) async fn client(&self) -> Client {
        let channel = self.channel().await;
        // A message may be long, unless its watcher asks for fragments.
        let watch = WatchClient::new(channel.clone()).max_decoding_message_size(64 << 20);
        Client { kv: KvClient::new(channel), watch }
    }

    pub(crate) fn figures(&self) -> WatchMetrics {
        self.node.watch_server().metrics()
    }

    pub(crate) async fn until(&self, are: impl Fn(&WatchMetrics) -> bool) {
        while !are(&self.figures()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
}

impl Client {
    /// Puts a key. Returns the revision of the put.
    pub(crate) async fn put(&mut self, key: &str, value: impl Into<Vec<u8>>) -> i64 {
        self.kv.put(put(key, value.into())).await.unwrap().into_inner().header.unwrap().revision
    }

    pub(crate) async fn stream(&mut self) -> Stream {
        let (requests, receiver) = mpsc::unbounded_channel();
        let responses = self.watch.watch(UnboundedReceiverStream::new(receiver)).await.unwrap();
        Stream { requests, responses: responses.into_inner() }
    }

    /// Opens a stream and creates one watcher on it.
    pub(crate) async fn watcher(&mut self, create: WatchCreateRequest) -> Stream {
        let mut stream = self.stream().await;
        stream.create(create);
        assert!(stream.next().await.created);
        stream
    }
}

pub(crate) struct Stream {
    requests: mpsc::UnboundedSender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Stream {
    fn ask(&self, request: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(request) }).unwrap();
    }

    pub(crate) fn create(&self, create: WatchCreateRequest) {
        self.ask(RequestUnion::CreateRequest(create));
    }

    pub(crate) fn cancel(&self, watch_id: i64) {
        self.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    pub(crate) fn progress(&self) {
        self.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    }

    pub(crate) fn say_nothing(&self) {
        self.requests.send(WatchRequest { request_union: None }).unwrap();
    }

    /// Closes the client's side of the stream. The client can still read responses.
    pub(crate) fn half_close(mut self) -> Stream {
        self.requests = mpsc::unbounded_channel().0;
        self
    }

    pub(crate) async fn next(&mut self) -> WatchResponse {
        self.responses.message().await.unwrap().expect("the stream goes on")
    }

    pub(crate) async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.responses.message().await {
                return status;
            }
        }
    }

    /// Reads events up to the revision `up_to`. Each revision from `from` on must have one event,
    /// and the events must arrive in ascending order.
    pub(crate) async fn revisions(&mut self, from: i64, up_to: i64) {
        let mut next = from;
        while next <= up_to {
            for event in self.next().await.events {
                assert_eq!(event.kv.unwrap().mod_revision, next, "each revision once, in order");
                next += 1;
            }
        }
        assert_eq!(next, up_to + 1);
    }
}

/// Returns a request for a watcher of one key, from the current revision.
pub(crate) fn of_key(key: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.to_owned().into(), ..WatchCreateRequest::default() }
}

/// Returns a request for a watcher of all keys that start with this letter.
pub(crate) fn of_letter(letter: u8) -> WatchCreateRequest {
    let (key, range_end) = (vec![letter].into(), vec![letter + 1].into());
    WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() }
}

/// Formats events, each like `put a=1 @2 (was 0)`.
pub(crate) fn lines(events: &[Event]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let line = |event: &Event| {
        let kv = event.kv.as_ref().unwrap();
        let was = event.prev_kv.as_ref().map(|was| format!(" (was {})", text(&was.value)));
        let what = match event.r#type {
            0 => format!("put {}={}", text(&kv.key), text(&kv.value)),
            _ => format!("delete {}", text(&kv.key)),
        };
        format!("{what} @{}{}", kv.mod_revision, was.unwrap_or_default())
    };
    events.iter().map(line).collect()
}
