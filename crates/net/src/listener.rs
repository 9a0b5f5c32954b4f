//! Where do connections come from? Ports, and sockets in the file system.
//!
//! A listener is bound before anything else is opened: a second server on a port in use
//! fails at once, and no data was touched.
//!
//! A listener also knows how its connections speak: plainly, with [TLS](crate::tls), or either.
//! etcd lets one port have both kinds. There the first byte tells: a TLS connection begins with
//! 0x16, and neither HTTP/1.1 nor HTTP/2 does.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::tls::TlsAcceptor;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// On a port.
    Tcp(SocketAddr),
    /// In the file system.
    Unix(PathBuf),
}

/// A place to listen, and what is spoken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// Where.
    pub address: BindAddress,
    /// Without TLS.
    pub is_plain: bool,
    /// With TLS. On one port both can be had: the first byte tells them apart.
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

/// A bound listener, and whether its connections speak TLS.
#[derive(Debug)]
pub struct Listener {
    socket: BoundSocket,
    security: TransportSecurity,
}

/// How a connection speaks.
#[derive(Clone, Debug)]
pub enum TransportSecurity {
    /// Without TLS.
    Plain,
    /// With TLS.
    Tls(Arc<TlsAcceptor>),
    /// Its first byte decides.
    PlainOrTls(Arc<TlsAcceptor>),
}

/// The bound socket.
#[derive(Debug)]
enum BoundSocket {
    /// On a port.
    Tcp(std::net::TcpListener),
    /// In the file system.
    Unix(UnixSocketFile),
}

/// A socket in the file system. Its name goes with it.
#[derive(Debug)]
struct UnixSocketFile {
    listener: unix::UnixListener,
    path: PathBuf,
}

/// An accepted connection.
#[derive(Debug)]
pub enum Connection {
    /// From a network.
    Tcp(std::net::TcpStream),
    /// From this machine.
    Unix(unix::UnixStream),
}

/// A stream of bytes in both directions, over whatever it goes.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

impl Listener {
    /// Begins to listen.
    pub fn bind(at: &BindAddress) -> io::Result<Listener> {
        let bound = match at {
            BindAddress::Tcp(address) => BoundSocket::Tcp(std::net::TcpListener::bind(address)?),
            BindAddress::Unix(path) => {
                remove_stale_socket(path)?;
                let listener = unix::UnixListener::bind(path)?;
                BoundSocket::Unix(UnixSocketFile { listener, path: path.clone() })
            }
        };
        Ok(Listener { socket: bound, security: TransportSecurity::Plain })
    }

    /// It speaks TLS, and on a port perhaps without as well.
    pub fn with_tls(self, tls: Arc<TlsAcceptor>, is_plain_too: bool) -> Listener {
        let speech = if is_plain_too {
            TransportSecurity::PlainOrTls(tls)
        } else {
            TransportSecurity::Tls(tls)
        };
        Listener { security: speech, ..self }
    }

    /// Where it listens: the port, also if any was wanted.
    pub fn listen_address(&self) -> io::Result<ListenAddress> {
        let at = match &self.socket {
            BoundSocket::Tcp(listener) => listener.local_addr().map(BindAddress::Tcp)?,
            BoundSocket::Unix(socket) => BindAddress::Unix(socket.path.clone()),
        };
        let is_plain = !matches!(self.security, TransportSecurity::Tls(_));
        let is_secure = !matches!(self.security, TransportSecurity::Plain);
        Ok(ListenAddress { address: at, is_plain, is_secure })
    }

    /// For a thread with a runtime.
    pub fn into_async(self) -> io::Result<AsyncListener> {
        let hears = match self.socket {
            BoundSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                AsyncSocket::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            BoundSocket::Unix(socket) => {
                socket.listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
                AsyncSocket::Unix(listener, socket)
            }
        };
        Ok(AsyncListener { socket: hears, security: self.security })
    }
}

impl From<std::net::TcpListener> for Listener {
    /// On a port that is bound already, without TLS.
    fn from(listener: std::net::TcpListener) -> Listener {
        Listener { socket: BoundSocket::Tcp(listener), security: TransportSecurity::Plain }
    }
}

/// A listener on a runtime.
#[derive(Debug)]
pub struct AsyncListener {
    socket: AsyncSocket,
    security: TransportSecurity,
}

#[derive(Debug)]
enum AsyncSocket {
    Tcp(tokio::net::TcpListener),
    Unix(
        tokio::net::UnixListener,
        #[expect(dead_code, reason = "its name goes with it")] UnixSocketFile,
    ),
}

impl AsyncListener {
    /// The next connection. No bytes are read yet: a handshake is for another task.
    pub async fn accept(&self) -> io::Result<(Connection, TransportSecurity)> {
        let connection = match &self.socket {
            AsyncSocket::Tcp(listener) => Connection::Tcp(listener.accept().await?.0.into_std()?),
            AsyncSocket::Unix(listener, _) => {
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

impl Drop for UnixSocketFile {
    fn drop(&mut self) {
        // No process listens behind it any more; if it stays, the next one removes it.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
