//! A client that finds methods by their path and builds messages with their descriptors.
//!
//! No generated code of Clearlane is involved: JSON is converted to protobuf with the `.proto`
//! files, sent as bytes, and received bytes are converted back to JSON in the same way.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor, SerializeOptions};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::bytes_codec::BytesCodec;
use crate::recording::{Failure, Head, Outcome};

/// Time limit for a call. No server makes a request wait that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The methods of all services.
pub(crate) struct Methods(DescriptorPool);

impl Methods {
    pub(crate) fn new() -> Methods {
        Methods(DescriptorPool::decode(clearlane_proto::DESCRIPTORS).unwrap())
    }

    /// Returns the method with a path such as `/package.Service/Method`.
    pub(crate) fn get(&self, path: &str) -> MethodDescriptor {
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap();
        let service = self.0.get_service_by_name(service).unwrap();
        service.methods().find(|descriptor| descriptor.name() == method).unwrap()
    }
}

pub(crate) fn encode(method: &MethodDescriptor, json: &Value) -> Bytes {
    DynamicMessage::deserialize(method.input(), json).unwrap().encode_to_vec().into()
}

pub(crate) fn decode(method: &MethodDescriptor, bytes: &Bytes) -> Value {
    let message = DynamicMessage::decode(method.output(), bytes.clone()).unwrap();
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).unwrap()
}

/// Makes a call, with JSON on both sides.
pub(crate) async fn call(
    channel: Channel,
    head: Head,
    method: MethodDescriptor,
    request: Value,
    deadline: Option<Duration>,
) -> Outcome {
    let mut client = client(channel);
    let request = with_metadata(encode(&method, &request), &head.metadata);
    let answered = async {
        client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        client.unary(request, path(&head), BytesCodec).await
    };
    match tokio::time::timeout(deadline.unwrap_or(PATIENCE), answered).await {
        Ok(Ok(reply)) => Ok(decode(&method, reply.get_ref())),
        Ok(Err(status)) => Err(failure(&status)),
        // This is the message of Go's client.
        Err(_) if deadline.is_some() => Err(Failure {
            code: "DeadlineExceeded".to_owned(),
            message: "context deadline exceeded".to_owned(),
        }),
        Err(_) => Err(Failure {
            code: "none".to_owned(),
            message: format!("no answer within {} s", PATIENCE.as_secs()),
        }),
    }
}

/// Returns the status of a server, or null if the call fails.
pub(crate) async fn status(channel: Channel) -> Value {
    let path = "/etcdserverpb.Maintenance/Status".to_owned();
    let method = Methods::new().get(&path);
    let head = Head { path, metadata: BTreeMap::new(), user: None, to_learner: false };
    call(channel, head, method, Value::Object(Default::default()), None).await.unwrap_or_default()
}

/// Makes a call with a token. The call extends the token's lifetime, and changes nothing else.
pub(crate) async fn auth_status(channel: Channel, token: &str) {
    let path = "/etcdserverpb.Auth/AuthStatus".to_owned();
    let method = Methods::new().get(&path);
    let metadata = BTreeMap::from([("token".to_owned(), token.to_owned())]);
    let head = Head { path, metadata, user: None, to_learner: false };
    let _ = call(channel, head, method, Value::Object(Default::default()), None).await;
}

#[derive(Debug)]
pub(crate) enum Event {
    Message(Value),
    Ended(Result<(), Failure>),
}

pub(crate) struct ClientStream {
    /// The sender of requests. `None` once the client has closed its side.
    sends: Option<mpsc::UnboundedSender<Bytes>>,
    events: mpsc::UnboundedReceiver<Event>,
    task: JoinHandle<()>,
    method: MethodDescriptor,
}

impl ClientStream {
    pub(crate) fn open(channel: Channel, head: &Head, method: MethodDescriptor) -> ClientStream {
        let (sends, outgoing) = mpsc::unbounded_channel();
        let (incoming, events) = mpsc::unbounded_channel();
        let outgoing = UnboundedReceiverStream::new(outgoing);
        let request = with_metadata(outgoing, &head.metadata);
        let (path, output) = (path(head), method.clone());
        let task = tokio::spawn(async move {
            let ended = run_stream(channel, request, path, &output, &incoming).await;
            let ended = ended.map_err(|status| failure(&status));
            let _ = incoming.send(Event::Ended(ended));
        });
        ClientStream { sends: Some(sends), events, task, method }
    }

    pub(crate) fn send(&mut self, request: &Value) {
        // A closed stream accepts no message. Its end is reported as an event.
        let _ = self.sends.as_ref().unwrap().send(encode(&self.method, request));
        if !self.method.is_client_streaming() {
            self.half_close();
        }
    }

    pub(crate) fn half_close(&mut self) {
        self.sends = None;
    }

    pub(crate) fn cancel(&mut self) {
        self.task.abort();
    }

    pub(crate) async fn next(&mut self, patience: Duration) -> Option<Event> {
        tokio::time::timeout(patience, self.events.recv()).await.ok().flatten()
    }

    /// Returns the next event without waiting, or `None` if no event has arrived.
    pub(crate) fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run_stream(
    channel: Channel,
    request: Request<UnboundedReceiverStream<Bytes>>,
    path: PathAndQuery,
    method: &MethodDescriptor,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(), Status> {
    let mut client = client(channel);
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let mut incoming = client.streaming(request, path, BytesCodec).await?.into_inner();
    while let Some(message) = incoming.message().await? {
        let _ = events.send(Event::Message(decode(method, &message)));
    }
    Ok(())
}

fn client(channel: Channel) -> Grpc<Channel> {
    Grpc::new(channel).max_decoding_message_size(usize::MAX)
}

fn path(head: &Head) -> PathAndQuery {
    PathAndQuery::from_str(&head.path).unwrap()
}

fn with_metadata<T>(message: T, metadata: &BTreeMap<String, String>) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in metadata {
        let name = AsciiMetadataKey::from_str(name).unwrap();
        request.metadata_mut().insert(name, MetadataValue::from_str(value).unwrap());
    }
    request
}

fn failure(status: &Status) -> Failure {
    let code = match status.code() {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    Failure { code, message: status.message().to_owned() }
}
