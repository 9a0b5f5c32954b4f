//! A proxy that can cut the connections between a client and a server.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyState {
    Open,
    /// Forwards requests, but no responses.
    NoResponses,
    /// New connections are closed immediately, and open connections are closed.
    Cut,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    /// The state, and the number of cuts so far. The number ends a connection even if the proxy is
    /// already open again when the connection's task checks the state.
    state: Arc<watch::Sender<(ProxyState, u64)>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(endpoint: &str) -> Proxy {
        let target: SocketAddr = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new((ProxyState::Open, 0)));
        let task = tokio::spawn(serve(listener, target, Arc::clone(&state)));
        Proxy { address, state, task }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, cable: ProxyState) {
        self.state.send_modify(|(now, cuts)| {
            *now = cable;
            *cuts += u64::from(cable == ProxyState::Cut);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(ProxyState::Cut);
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    target: SocketAddr,
    state: Arc<watch::Sender<(ProxyState, u64)>>,
) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        if state.borrow().0 != ProxyState::Cut
            && let Ok(server) = TcpStream::connect(target).await
        {
            tokio::spawn(forward(client, server, state.subscribe()));
        }
    }
}

async fn forward(
    client: TcpStream,
    server: TcpStream,
    mut state: watch::Receiver<(ProxyState, u64)>,
) {
    let mut muted = state.clone();
    let before = state.borrow().1;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = async {
        let is_mute = tokio::select! {
            _ = copy(&mut from_server, &mut to_client) => false,
            _ = muted.wait_for(|(cable, _)| *cable == ProxyState::NoResponses) => true,
        };
        if is_mute {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        () = back => {}
        _ = state.wait_for(|(_, cuts)| *cuts > before) => {}
    }
}
