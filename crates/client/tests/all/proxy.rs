//! A cable between a client and a server, which can be cut.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the cable does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cable {
    /// Carries everything.
    Whole,
    /// Carries what the client says; nothing comes back.
    Mute,
    /// No connection is taken, and none lives on.
    Cut,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    /// And how often it was cut: a connection ends with the cut that it lives to see, even if the
    /// cable is whole again by the time that anybody looks.
    state: Arc<watch::Sender<(Cable, u64)>>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of `http://host:port`.
    pub(crate) async fn before(endpoint: &str) -> Proxy {
        let target: SocketAddr = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new((Cable::Whole, 0)));
        let task = tokio::spawn(serve(listener, target, Arc::clone(&state)));
        Proxy { address, state, task }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn make(&self, cable: Cable) {
        self.state.send_modify(|(now, cuts)| {
            *now = cable;
            *cuts += u64::from(cable == Cable::Cut);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.make(Cable::Cut);
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, state: Arc<watch::Sender<(Cable, u64)>>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        if state.borrow().0 != Cable::Cut
            && let Ok(server) = TcpStream::connect(target).await
        {
            tokio::spawn(carry(client, server, state.subscribe()));
        }
    }
}

async fn carry(client: TcpStream, server: TcpStream, mut state: watch::Receiver<(Cable, u64)>) {
    let mut muted = state.clone();
    let before = state.borrow().1;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = async {
        let is_mute = tokio::select! {
            _ = copy(&mut from_server, &mut to_client) => false,
            _ = muted.wait_for(|(cable, _)| *cable == Cable::Mute) => true,
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
