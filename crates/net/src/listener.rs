//! Listeners: ports, and sockets in the file system.
//!
//! Listeners are bound before the server opens its data for writing. So a server that finds its
//! port in use fails early and changes no data. Only the version of the store is checked before
//! that.
//!
//! A TCP port can accept both connections with [TLS](crate::tls) and connections without, as in
//! etcd. The first byte of a connection distinguishes them: TLS starts with 0x16, and neither
//! HTTP/1.1 nor HTTP/2 does.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::tls::TlsAcceptor;

pub const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);
/// Maximum number of connections that wait to be accepted, if the system allows that many
/// (`net.core.somaxconn`). std's default of 128 is too small when all clients of a failed member
/// connect at the same time: the system then responds late to the clients above the limit, or not
/// at all.
const BACKLOG: i32 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    pub address: BindAddress,
    pub is_plain: bool,
    /// If true, connections use TLS. If `is_plain` is also true, the port accepts both kinds, and
    /// the first byte of a connection distinguishes them. A Unix socket then accepts only TLS.
    pub is_secure: bool,
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindAddress::Tcp(address) => write!(f, "{address}"),
            BindAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Debug)]
pub struct Listener {
    socket: BoundSocket,
    security: TransportSecurity,
}

#[derive(Clone, Debug)]
pub enum TransportSecurity {
    Plain,
    Tls(Arc<TlsAcceptor>),
    /// The first byte of a connection shows whether it uses TLS. A connection over a Unix socket
    /// must use TLS.
    PlainOrTls(Arc<TlsAcceptor>),
}

#[derive(Debug)]
enum BoundSocket {
    Tcp(std::net::TcpListener),
    /// The file is removed before the socket is closed, because fields are dropped in this order.
    /// After the close, another process may already have its own socket at this path.
    Unix(Arc<SocketFile>, unix::UnixListener),
}

/// The path of a socket. Dropping it removes the file.
#[derive(Debug)]
struct SocketFile(PathBuf);

#[derive(Debug)]
pub enum Connection {
    Tcp(std::net::TcpStream),
    Unix(unix::UnixStream),
}

impl Connection {
    /// Ends the connection if the other end does not acknowledge written data within `timeout`.
    /// Does nothing for a Unix socket, and on systems other than Linux.
    pub fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Connection::Tcp(stream) => set_write_timeout(SockRef::from(stream), timeout),
            Connection::Unix(_) => Ok(()),
        }
    }
}

#[cfg(target_os = "linux")]
pub(crate) fn set_write_timeout(socket: SockRef<'_>, timeout: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(timeout))
}

/// Does nothing: systems other than Linux have their own limit.
#[cfg(not(target_os = "linux"))]
pub(crate) fn set_write_timeout(_socket: SockRef<'_>, _timeout: Duration) -> io::Result<()> {
    Ok(())
}

pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Listens on a port, even if old connections of the port are in state TIME_WAIT. See
/// [`Listener::bind_port`] for `is_shared`.
pub fn bind_tcp(address: SocketAddr, is_shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if is_shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Listener {
    pub fn bind(at: &BindAddress) -> io::Result<Listener> {
        Listener::bind_port(at, false)
    }

    /// Binds an address. If `is_shared` is true, other sockets that are also shared can listen on
    /// the same port. A Unix socket is never shared. If a killed process has left a socket file at
    /// the path, the file is removed first.
    pub fn bind_port(at: &BindAddress, is_shared: bool) -> io::Result<Listener> {
        let socket = match at {
            BindAddress::Tcp(address) => BoundSocket::Tcp(bind_tcp(*address, is_shared)?),
            BindAddress::Unix(path) => {
                remove_stale_socket(path)?;
                let listener = unix::UnixListener::bind(path)?;
                SockRef::from(&listener).listen(BACKLOG)?;
                BoundSocket::Unix(Arc::new(SocketFile(path.clone())), listener)
            }
        };
        Ok(Listener { socket, security: TransportSecurity::Plain })
    }

    /// Adds TLS. If `is_plain_too` is true, the first byte of a connection decides whether it uses
    /// TLS.
    pub fn with_tls(self, tls: Arc<TlsAcceptor>, is_plain_too: bool) -> Listener {
        let security = if is_plain_too {
            TransportSecurity::PlainOrTls(tls)
        } else {
            TransportSecurity::Tls(tls)
        };
        Listener { security, ..self }
    }

    /// Returns the bound address. If port 0 was bound, the result has the actual port.
    pub fn listen_address(&self) -> io::Result<ListenAddress> {
        let address = match &self.socket {
            BoundSocket::Tcp(listener) => listener.local_addr().map(BindAddress::Tcp)?,
            BoundSocket::Unix(file, _) => BindAddress::Unix(file.0.clone()),
        };
        let is_plain = !matches!(self.security, TransportSecurity::Tls(_));
        let is_secure = !matches!(self.security, TransportSecurity::Plain);
        Ok(ListenAddress { address, is_plain, is_secure })
    }

    /// Returns a second handle of the same socket. Both handles accept connections, and the socket
    /// stays bound until both are dropped.
    pub fn try_clone(&self) -> io::Result<Listener> {
        let socket = match &self.socket {
            BoundSocket::Tcp(listener) => BoundSocket::Tcp(listener.try_clone()?),
            BoundSocket::Unix(file, listener) => {
                BoundSocket::Unix(Arc::clone(file), listener.try_clone()?)
            }
        };
        Ok(Listener { socket, security: self.security.clone() })
    }

    /// Registers the socket with the current runtime. Must be called on a runtime.
    pub fn into_async(self) -> io::Result<AsyncListener> {
        let socket = match self.socket {
            BoundSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                AsyncSocket::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            BoundSocket::Unix(file, listener) => {
                listener.set_nonblocking(true)?;
                AsyncSocket::Unix(file, tokio::net::UnixListener::from_std(listener)?)
            }
        };
        Ok(AsyncListener { socket, security: self.security })
    }
}

impl From<std::net::TcpListener> for Listener {
    /// Returns a listener without TLS.
    fn from(listener: std::net::TcpListener) -> Listener {
        Listener { socket: BoundSocket::Tcp(listener), security: TransportSecurity::Plain }
    }
}

#[derive(Debug)]
pub struct AsyncListener {
    socket: AsyncSocket,
    security: TransportSecurity,
}

#[derive(Debug)]
enum AsyncSocket {
    Tcp(tokio::net::TcpListener),
    Unix(
        #[expect(dead_code, reason = "dropped first, as above")] Arc<SocketFile>,
        tokio::net::UnixListener,
    ),
}

impl AsyncListener {
    /// Waits for the next connection and accepts it. `what` names the connection in the log. After
    /// an error it waits for [`ACCEPT_RETRY_DELAY`] and tries again: too many files may be open, or
    /// the client may have left. Only the first error of a call is logged.
    pub async fn accept(&self, what: &str) -> (Connection, TransportSecurity) {
        let mut has_failed = false;
        loop {
            match self.try_accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    if !has_failed {
                        tracing::warn!(%error, "failed to accept {what}");
                    }
                    has_failed = true;
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Accepts a connection, and reads nothing from it. The handshake thread performs the
    /// handshake.
    async fn try_accept(&self) -> io::Result<(Connection, TransportSecurity)> {
        let connection = match &self.socket {
            AsyncSocket::Tcp(listener) => Connection::Tcp(listener.accept().await?.0.into_std()?),
            AsyncSocket::Unix(_, listener) => {
                Connection::Unix(listener.accept().await?.0.into_std()?)
            }
        };
        Ok((connection, self.security.clone()))
    }
}

/// Removes the socket of a process that was killed. Keeps a socket on which a process listens, and
/// a file that is not a socket.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    match unix::UnixStream::connect(path) {
        Err(error) if is_socket && error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path)
        }
        _ => Ok(()),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // An error is ignored. If the file stays, the next process that binds this path removes it.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hundreds_may_wait_to_be_accepted() {
        let allowed = fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
        let allowed = allowed.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let listener = Listener::bind(&BindAddress::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let BindAddress::Tcp(address) = listener.listen_address().unwrap().address else {
            unreachable!("it is bound to a port");
        };
        // If the backlog were full, the system would answer no further client before a connection
        // is accepted. This test accepts none.
        let connect = |_| {
            let patience = Duration::from_secs(30);
            std::net::TcpStream::connect_timeout(&address, patience).unwrap()
        };
        let clients: Vec<_> = (0..allowed.min(500)).map(connect).collect();
        drop(clients);
    }

    #[test]
    fn a_port_has_one_owner_unless_it_is_shared() {
        let any = BindAddress::Tcp(([127, 0, 0, 1], 0).into());
        for is_shared in [false, true] {
            let first = Listener::bind_port(&any, is_shared).unwrap();
            let at = first.listen_address().unwrap().address;
            assert_eq!(Listener::bind_port(&at, is_shared).is_ok(), is_shared);
            assert_eq!(Listener::bind(&at).unwrap_err().kind(), ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn a_socket_has_one_owner_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = BindAddress::Unix(dir.path().join("socket"));
        let first = Listener::bind(&at).unwrap();
        assert_eq!(first.listen_address().unwrap().address, at);
        assert_eq!(Listener::bind(&at).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_process_has_left_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(unix::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        Listener::bind(&BindAddress::Unix(path)).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "of another program").unwrap();
        assert!(Listener::bind(&BindAddress::Unix(file.clone())).is_err());
        assert_eq!(fs::read_to_string(file).unwrap(), "of another program");
    }
}
