//! A listener for HTTP/1.1 and nothing else, on a port of its own, with TLS or without.
//!
//! It is for metrics that shall not be on the port of the clients. Everything runs on the
//! runtime that polls it; a connection that asks nothing for a while is closed, and so is one
//! beyond a fixed number.

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

/// Of a port. Of those that ask for metrics and health there are few.
pub const METRICS_CONNECTIONS_MAX: usize = 64;

/// Does not return.
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
                // Too many files are open, or the client has gone: the next one may do.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Errors of the connection are not reported.
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
    // A client that closes its half may still wait for an answer, or may be gone. For one answer it
    // does not matter; a stream without a reader must end.
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
