//! One call and its first result: a reply, a message of a stream, or an error.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::bytes_codec::BytesCodec;

/// A call without a result after this time is reported as [`Outcome::Waits`]. The slowest result
/// takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

const PACKAGES: [(&str, &str); 9] = [
    ("KV", "etcdserverpb"),
    ("Watch", "etcdserverpb"),
    ("Lease", "etcdserverpb"),
    ("Cluster", "etcdserverpb"),
    ("Maintenance", "etcdserverpb"),
    ("Auth", "etcdserverpb"),
    ("Lock", "v3lockpb"),
    ("Election", "v3electionpb"),
    ("Health", "grpc.health.v1"),
];

/// Methods with streams. The tests send one request on a stream of requests, and read only the
/// first reply of a stream of replies.
const STREAMS: [&str; 6] = [
    "KV/RangeStream",
    "Watch/Watch",
    "Lease/LeaseKeepAlive",
    "Maintenance/Snapshot",
    "Election/Observe",
    "Health/Watch",
];

#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Service and method, such as `KV/Range`.
    pub(crate) method: &'static str,
    pub(crate) request: Bytes,
}

impl Call {
    pub(crate) fn new(method: &'static str, request: impl Message) -> Call {
        Call { method, request: request.encode_to_vec().into() }
    }

    fn path(&self) -> PathAndQuery {
        let (service, _) = self.method.split_once('/').unwrap();
        let packages: HashMap<_, _> = PACKAGES.into();
        PathAndQuery::from_str(&format!("/{}.{}", packages[service], self.method)).unwrap()
    }
}

/// The metadata entries of a call, in the order in which they are sent. A call without a token has
/// none.
#[derive(Clone, Debug)]
pub(crate) struct Token(Vec<(&'static str, String)>);

impl Token {
    pub(crate) fn none() -> Token {
        Token(Vec::new())
    }

    pub(crate) fn of(token: &str) -> Token {
        Token::metadata(&[("token", token)])
    }

    pub(crate) fn metadata(pairs: &[(&'static str, &str)]) -> Token {
        Token(pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
    }

    fn on<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        for (name, value) in &self.0 {
            let name = AsciiMetadataKey::from_str(name).unwrap();
            request.metadata_mut().append(name, MetadataValue::from_str(value).unwrap());
        }
        request
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Reply(Bytes),
    Failure {
        code: String,
        message: String,
    },
    /// A stream that ended without a message and without an error.
    Ended,
    Waits,
}

pub(crate) async fn call(channel: &Channel, asked: &Call, token: &Token) -> Outcome {
    let answered = async {
        let mut client = Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
        client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        if !STREAMS.contains(&asked.method) {
            let request = token.on(asked.request.clone());
            let reply = client.unary(request, asked.path(), BytesCodec).await?;
            return Ok(Some(reply.into_inner()));
        }
        // If both sides are streams, the client keeps its side open after the request.
        let first = stream::iter([asked.request.clone()]);
        let request = match is_bidirectional(asked.method) {
            true => token.on(first.chain(stream::pending()).boxed()),
            false => token.on(first.boxed()),
        };
        client.streaming(request, asked.path(), BytesCodec).await?.into_inner().message().await
    };
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Ok(Some(reply))) => Outcome::Reply(reply),
        Ok(Ok(None)) => Outcome::Ended,
        Ok(Err(status)) => failure(&status),
        Err(_) => Outcome::Waits,
    }
}

fn is_bidirectional(method: &str) -> bool {
    ["Watch/Watch", "Lease/LeaseKeepAlive"].contains(&method)
}

fn failure(status: &Status) -> Outcome {
    let code = match status.code() {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    Outcome::Failure { code, message: status.message().to_owned() }
}
