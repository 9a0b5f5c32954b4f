//! Which thread has which connection?
//!
//! A few threads with a runtime each, and no task ever moves from one to another: what a connection
//! needs is in the cache of one core, and waking a task is a push on a list. Connections are dealt in
//! turn by the thread that accepts them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use clearlane_member::Handle;
use clearlane_member::node::Node;
use clearlane_member::requests::Limits;
use clearlane_proto::etcdserverpb::kv_server::KvServer;
use clearlane_proto::etcdserverpb::lease_server::LeaseServer;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server as Tonic;

use crate::kv::KvService;
use crate::lease::LeaseService;

/// A server on a port.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Listens, and answers from so many threads.
    pub fn start(
        node: &Arc<Node>,
        listen: SocketAddr,
        threads: usize,
        limits: Limits,
    ) -> io::Result<Server> {
        let (stop, stopped) = watch::channel(false);
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let mut dealt = Vec::new();
        let mut started = Vec::new();
        for number in 0..threads {
            let (deal, connections) = mpsc::unbounded_channel();
            dealt.push(deal);
            let member = Handle::new(node, limits);
            let stopped = stopped.clone();
            let thread = thread::Builder::new().name(format!("net-{number}"));
            started.push(thread.spawn(move || run(member, connections, stopped))?);
        }
        let thread = thread::Builder::new().name("accept".to_owned());
        started.push(thread.spawn(move || accept(listener, &dealt, stopped))?);
        Ok(Server { address, stop, threads: started })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops to accept, lets what is under way come to its end, and returns then.
    pub fn stop(mut self) -> io::Result<()> {
        let _ = self.stop.send(true);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| io::Error::other("a network thread has panicked"))??;
        }
        Ok(())
    }
}

/// Takes connections and deals them in turn.
fn accept(
    listener: std::net::TcpListener,
    dealt: &[mpsc::UnboundedSender<std::net::TcpStream>],
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        for deal in dealt.iter().cycle() {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((connection, _)) => drop(deal.send(connection.into_std()?)),
                    // Too many files are open, or the client has gone: the next one may do.
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
                },
                _ = stopped.changed() => break,
            }
        }
        Ok(())
    })
}

/// One network thread.
fn run(
    member: Handle,
    connections: mpsc::UnboundedReceiver<std::net::TcpStream>,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let desk = tokio::spawn(member.desk().clone().run());
        let incoming = UnboundedReceiverStream::new(connections).map(|connection| {
            connection.set_nodelay(true)?;
            TcpStream::from_std(connection)
        });
        let lease = LeaseServer::new(LeaseService::new(member.clone()));
        let kv = KvServer::new(KvService::new(member));
        let until = async move {
            let _ = stopped.changed().await;
        };
        let served = Tonic::builder().add_service(kv).add_service(lease).serve_with_incoming_shutdown(incoming, until);
        let served = served.await.map_err(io::Error::other);
        desk.abort();
        served
    })
}
