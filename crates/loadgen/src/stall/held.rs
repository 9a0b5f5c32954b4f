//! Connections, watches and puts that are opened at once, by the thousand, and stay open.
//!
//! They use h2 itself: of tonic's channels and tasks, as many would take the driver longer than the
//! server. What is opened is recorded with the time from when it was tried until the server has
//! answered it; of a put whose end does not come, until its first half could be sent.

use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_net::CONNECTION_WINDOW_BYTES;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Uri;
use http::uri::Authority;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout_at};
use tonic::transport::Endpoint;

use super::plan::{self, HeldKind};
use super::{SharedMetrics, no_answer};
use crate::class_metrics::CompletedRequest;
use crate::connection::with_grpc_headers;
use crate::keys::KeySpace;
use crate::requests::Call;
use crate::response_scanner::{ResponseStats, Scanner};
use crate::run::DRAIN;

/// Etcd and Clearlane allow any number of streams on a connection by default; h2 takes many small
/// unread frames on one for an attack, so puts that do not end are spread.
const CONNECTIONS_OF_PUTS: u64 = 10;

pub(super) struct Crowd {
    authority: Option<Authority>,
    call: Call,
    kind: HeldKind,
    count: u64,
}

/// What would be closed if it were dropped: a connection, or both halves of a stream.
type Kept = Box<dyn Send>;

type Opened<T> = std::result::Result<T, String>;

impl Crowd {
    pub(super) fn new(endpoint: &Endpoint, space: &KeySpace, kind: HeldKind, count: u64) -> Crowd {
        let call = match kind {
            HeldKind::Connections => plan::get(space),
            HeldKind::Watches => plan::watch_of_one_key(),
            HeldKind::HalfOpenPuts => plan::half_put(),
        };
        Crowd { authority: endpoint.uri().authority().cloned(), call, kind, count }
    }

    /// Opens all at once, and keeps them until the end of the window.
    pub(super) async fn hold(self, start: Instant, window: Duration, metrics: &SharedMetrics) {
        let mut opening = JoinSet::new();
        let connections = match self.kind {
            HeldKind::Connections => 0,
            HeldKind::Watches => 1,
            HeldKind::HalfOpenPuts => CONNECTIONS_OF_PUTS,
        };
        let mut shared = Vec::new();
        for _ in 0..connections {
            match connect(self.authority.as_ref()).await {
                Ok(connection) => shared.push(connection),
                Err(text) => return metrics.lock().add_failures(text, self.count),
            }
        }
        for number in 0..self.count {
            let shared = shared.get((number % connections.max(1)) as usize).cloned();
            let (authority, call, kind) = (self.authority.clone(), self.call.clone(), self.kind);
            opening.spawn(async move {
                let sent = start.elapsed();
                let opened = open(kind, shared, authority, &call).await;
                (sent, start.elapsed(), opened)
            });
        }
        let deadline = start + window + DRAIN;
        let mut kept = Vec::new();
        while let Ok(Some(opened)) = timeout_at(deadline.into(), opening.join_next()).await {
            let (sent, answered, opened) = opened.expect("it neither panics nor is stopped");
            let result = opened.map(|(held, stats)| {
                kept.push(held);
                stats
            });
            metrics.lock().add(CompletedRequest { due: sent, sent, answered, result });
        }
        if !opening.is_empty() {
            metrics.lock().add_failures(no_answer(), opening.len() as u64);
        }
        sleep(window.saturating_sub(start.elapsed())).await;
    }
}

async fn open(
    kind: HeldKind,
    shared: Option<SendRequest<Bytes>>,
    authority: Option<Authority>,
    call: &Call,
) -> Opened<(Kept, ResponseStats)> {
    let connection = match shared {
        Some(connection) => connection,
        None => connect(authority.as_ref()).await?,
    };
    match kind {
        HeldKind::Connections => get(connection, authority, call).await,
        HeldKind::Watches => watch(connection, authority, call).await,
        HeldKind::HalfOpenPuts => begin_put(connection, authority, call).await,
    }
}

async fn connect(authority: Option<&Authority>) -> Opened<SendRequest<Bytes>> {
    let address = authority.map_or("", Authority::as_str);
    let socket = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES).enable_push(false);
    let (requests, connection) = builder.handshake(socket).await.map_err(text)?;
    // It ends when nothing of it is kept any more; an error is told to its streams.
    tokio::spawn(connection);
    Ok(requests)
}

fn text(error: h2::Error) -> String {
    error.to_string()
}

/// Sends the head of a call, and its message, behind which more may come.
async fn begin(
    connection: SendRequest<Bytes>,
    authority: Option<Authority>,
    call: &Call,
    is_whole: bool,
) -> Opened<(SendRequest<Bytes>, SendStream<Bytes>, ResponseFuture)> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(authority.map_or_else(String::new, |host| host.to_string()));
    let uri = uri.path_and_query(call.path).build().map_err(|error| error.to_string())?;
    let mut connection = connection.ready().await.map_err(text)?;
    let request = with_grpc_headers(uri, ());
    let (response, mut body) = connection.send_request(request, false).map_err(text)?;
    body.send_data(call.body.clone(), is_whole).map_err(text)?;
    Ok((connection, body, response))
}

async fn get(
    connection: SendRequest<Bytes>,
    authority: Option<Authority>,
    call: &Call,
) -> Opened<(Kept, ResponseStats)> {
    let (connection, _, response) = begin(connection, authority, call, true).await?;
    let mut body = response.await.map_err(text)?.into_body();
    let mut scanner = Scanner::new(call.answer);
    while let Some(data) = body.data().await {
        let data = data.map_err(text)?;
        scanner.feed(&data)?;
        body.flow_control().release_capacity(data.len()).map_err(text)?;
    }
    Ok((Box::new(connection), scanner.finish()?))
}

/// Until it is told that the watch is there.
async fn watch(
    connection: SendRequest<Bytes>,
    authority: Option<Authority>,
    call: &Call,
) -> Opened<(Kept, ResponseStats)> {
    let (_, sender, response) = begin(connection, authority, call, false).await?;
    let mut body = response.await.map_err(text)?.into_body();
    let data = body.data().await.ok_or("the watch was refused")?.map_err(text)?;
    body.flow_control().release_capacity(data.len()).map_err(text)?;
    let stats = ResponseStats { keys: 0, bytes: data.len() as u64 };
    Ok((Box::new((sender, body)), stats))
}

/// Until the stream is open: a server may limit how many are.
async fn begin_put(
    connection: SendRequest<Bytes>,
    authority: Option<Authority>,
    call: &Call,
) -> Opened<(Kept, ResponseStats)> {
    let (connection, sender, response) = begin(connection, authority, call, false).await?;
    connection.ready().await.map_err(text)?;
    Ok((Box::new((sender, response)), ResponseStats::default()))
}
