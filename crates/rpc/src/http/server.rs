//! A listener for HTTP/1.1 only, on a separate port, with or without TLS.
//!
//! The port serves metrics that must not be on the client port. Everything runs on the runtime that
//! polls [`serve`]. A connection that sends no request for [`REQUEST_HEAD_TIMEOUT`] is closed, and
//! so is a connection above [`METRICS_CONNECTIONS_MAX`].

use std::convert::Infallible;
use std::sync::Arc;

use clearlane_net::connection_limit::ConnectionLimit;
use clearlane_net::departed_client::DepartedClient;
use clearlane_net::listener::ACCEPT_RETRY_DELAY;
use clearlane_net::tls::TlsAcceptor;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::{EncryptedConnection, HttpService};
use crate::serve::REQUEST_HEAD_TIMEOUT;

/// Maximum number of connections of a port. Few clients request metrics and health.
pub const METRICS_CONNECTIONS_MAX: usize = 64;

/// Serves a listener. Does not return.
pub async fn serve(listener: TcpListener, tls: Option<Arc<TlsAcceptor>>, endpoints: HttpService) {
    let mut connections = tokio::task::JoinSet::new();
    let limit = ConnectionLimit::new("the port for metrics", METRICS_CONNECTIONS_MAX);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _)) => {
                    let Some(permit) = limit.admit() else { continue };
                    let (tls, endpoints) = (tls.clone(), endpoints.clone());
                    connections.spawn(async move {
                        serve_connection(connection, tls, endpoints).await;
                        drop(permit);
                    });
                }
                // Too many files are open, or the client has left. The next connection may succeed.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves a connection. Its errors are not reported.
async fn serve_connection(
    connection: TcpStream,
    tls: Option<Arc<TlsAcceptor>>,
    endpoints: HttpService,
) {
    let Some(tls) = tls else { return serve_http1(connection, false, endpoints).await };
    let Ok(remote) = connection.peer_addr() else { return };
    if let Some((stream, _)) = tls.accept(connection, Some(remote), || ()).await {
        serve_http1(stream, true, endpoints).await;
    }
}

async fn serve_http1<C>(connection: C, is_secure: bool, endpoints: HttpService)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = http1::Builder::new();
    // A client that closes its sending half may still wait for a response, or may have left. For a
    // single response this does not matter, but a stream without a reader must end.
    let has_streams = endpoints.gateway.is_some();
    http.timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD_TIMEOUT)
        .half_close(!has_streams);
    let answer = service_fn(|mut request| {
        let endpoints = endpoints.clone();
        if is_secure {
            request.extensions_mut().insert(EncryptedConnection);
        }
        async move { Ok::<_, Infallible>(endpoints.handle(request).await) }
    });
    let connection = TokioIo::new(DepartedClient::new(connection));
    let _ = http.serve_connection(connection, answer).await;
}
