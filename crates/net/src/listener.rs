//! Where do connections come from? Ports, and sockets in the file system.
//!
//! A listener is bound before anything else is opened: a second server on a port in use
//! fails at once, and no data was touched.
//!
//! A port may have connections with [TLS](crate::tls) and without, as in etcd. Their first byte
//! tells: TLS begins with 0x16, and neither HTTP/1.1 nor HTTP/2 does.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::tls::TlsAcceptor;

pub const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);
/// How many connections may wait to be accepted, if the system allows as many
/// (`net.core.somaxconn`). std's 128 are few when all clients of a member that is gone come at
/// once: the system answers the others late, or not at all.
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
    /// On one port both can be had: the first byte tells them apart.
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
    /// Its first byte decides.
    PlainOrTls(Arc<TlsAcceptor>),
}

#[derive(Debug)]
enum BoundSocket {
    Tcp(std::net::TcpListener),
    /// The file is removed before the socket is closed. Afterwards another process may already
    /// have its own socket at this path.
    Unix(Arc<SocketFile>, unix::UnixListener),
}

/// Dropping it removes the file.
#[derive(Debug)]
struct SocketFile(PathBuf);

#[derive(Debug)]
pub enum Connection {
    Tcp(std::net::TcpStream),
    Unix(unix::UnixStream),
}

pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

impl Listener {
    pub fn bind(at: &BindAddress) -> io::Result<Listener> {
        let socket = match at {
            BindAddress::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                SockRef::from(&listener).listen(BACKLOG)?;
                BoundSocket::Tcp(listener)
            }
            BindAddress::Unix(path) => {
                remove_stale_socket(path)?;
                let listener = unix::UnixListener::bind(path)?;
                SockRef::from(&listener).listen(BACKLOG)?;
                BoundSocket::Unix(Arc::new(SocketFile(path.clone())), listener)
            }
        };
        Ok(Listener { socket, security: TransportSecurity::Plain })
    }

    /// With `is_plain_too` the first byte of a connection decides.
    pub fn with_tls(self, tls: Arc<TlsAcceptor>, is_plain_too: bool) -> Listener {
        let security = if is_plain_too {
            TransportSecurity::PlainOrTls(tls)
        } else {
            TransportSecurity::Tls(tls)
        };
        Listener { security, ..self }
    }

    /// The actual port, if port 0 was bound.
    pub fn listen_address(&self) -> io::Result<ListenAddress> {
        let address = match &self.socket {
            BoundSocket::Tcp(listener) => listener.local_addr().map(BindAddress::Tcp)?,
            BoundSocket::Unix(file, _) => BindAddress::Unix(file.0.clone()),
        };
        let is_plain = !matches!(self.security, TransportSecurity::Tls(_));
        let is_secure = !matches!(self.security, TransportSecurity::Plain);
        Ok(ListenAddress { address, is_plain, is_secure })
    }

    /// Returns a second handle of the same socket. Both accept its connections, and it stays bound
    /// until both are dropped.
    pub fn try_clone(&self) -> io::Result<Listener> {
        let socket = match &self.socket {
            BoundSocket::Tcp(listener) => BoundSocket::Tcp(listener.try_clone()?),
            BoundSocket::Unix(file, listener) => {
                BoundSocket::Unix(Arc::clone(file), listener.try_clone()?)
            }
        };
        Ok(Listener { socket, security: self.security.clone() })
    }

    /// Must be called on a runtime.
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
    /// Without TLS.
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
    /// Waits until there is a connection, `what` by its name in the log. Too many files may be
    /// open, or the other side may have gone: the next one may do.
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

    /// Reads no bytes: the handshake is for another task.
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

/// Removes the socket of a process that was killed. A socket at which a process answers stays, and
/// so does what is no socket.
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
        // No process listens behind it any more; if it stays, the next one removes it.
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
        // Beyond the bound, the system answers no client before one is accepted, and none is.
        let connect = |_| {
            let patience = Duration::from_secs(30);
            std::net::TcpStream::connect_timeout(&address, patience).unwrap()
        };
        let clients: Vec<_> = (0..allowed.min(500)).map(connect).collect();
        drop(clients);
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
