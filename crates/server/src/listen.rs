//! Where do connections come from? Ports, and sockets in the file system.
//!
//! A listener is bound before anything else is opened: who starts a second server on a port in use
//! is told so at once, and no data was touched.
//!
//! A listener also knows how its connections speak: plainly, with [TLS](crate::tls), or either. etcd
//! lets one port have both kinds. There the first byte tells: a TLS connection begins with 0x16, and
//! neither HTTP/1.1 nor HTTP/2 does.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::address::{Entrance, Listen};
use crate::tls::Incoming;

/// What hears of connections, and how they speak.
#[derive(Debug)]
pub struct Listener {
    bound: Bound,
    speech: Speech,
}

/// How a connection speaks.
#[derive(Clone, Debug)]
pub(crate) enum Speech {
    Plain,
    Secure(Arc<Incoming>),
    /// Its first byte says which.
    Either(Arc<Incoming>),
}

/// What hears of connections.
#[derive(Debug)]
enum Bound {
    /// On a port.
    Tcp(std::net::TcpListener),
    /// In the file system.
    Unix(Socket),
}

/// A socket in the file system. Its name goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: unix::UnixListener,
    path: PathBuf,
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Connection {
    /// From a network.
    Tcp(std::net::TcpStream),
    /// From this machine.
    Unix(unix::UnixStream),
}

/// A stream of bytes in both directions, over whatever it goes.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Listener {
    /// Begins to listen.
    pub fn bind(at: &Listen) -> io::Result<Listener> {
        let bound = match at {
            Listen::Tcp(address) => Bound::Tcp(std::net::TcpListener::bind(address)?),
            Listen::Unix(path) => {
                remove_abandoned(path)?;
                let listener = unix::UnixListener::bind(path)?;
                Bound::Unix(Socket { listener, path: path.clone() })
            }
        };
        Ok(Listener { bound, speech: Speech::Plain })
    }

    /// It speaks TLS, and on a port perhaps without as well.
    pub fn secured(self, tls: Arc<Incoming>, is_plain_too: bool) -> Listener {
        let speech = if is_plain_too { Speech::Either(tls) } else { Speech::Secure(tls) };
        Listener { speech, ..self }
    }

    /// Where it listens: the port, also if any was wanted.
    pub fn place(&self) -> io::Result<Entrance> {
        let at = match &self.bound {
            Bound::Tcp(listener) => listener.local_addr().map(Listen::Tcp)?,
            Bound::Unix(socket) => Listen::Unix(socket.path.clone()),
        };
        let is_plain = !matches!(self.speech, Speech::Secure(_));
        let is_secure = !matches!(self.speech, Speech::Plain);
        Ok(Entrance { at, is_plain, is_secure })
    }

    /// For a thread with a runtime.
    pub(crate) fn into_waiting(self) -> io::Result<Waiting> {
        let hears = match self.bound {
            Bound::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Hears::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            Bound::Unix(socket) => {
                socket.listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
                Hears::Unix(listener, socket)
            }
        };
        Ok(Waiting { hears, speech: self.speech })
    }
}

impl From<std::net::TcpListener> for Listener {
    /// On a port that is bound already, without TLS.
    fn from(listener: std::net::TcpListener) -> Listener {
        Listener { bound: Bound::Tcp(listener), speech: Speech::Plain }
    }
}

/// A listener on a runtime.
#[derive(Debug)]
pub(crate) struct Waiting {
    hears: Hears,
    speech: Speech,
}

#[derive(Debug)]
enum Hears {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener, #[expect(dead_code, reason = "its name goes with it")] Socket),
}

impl Waiting {
    /// The next connection. Nobody is listened to yet: a handshake is for another task.
    pub(crate) async fn accept(&self) -> io::Result<(Connection, Speech)> {
        let connection = match &self.hears {
            Hears::Tcp(listener) => Connection::Tcp(listener.accept().await?.0.into_std()?),
            Hears::Unix(listener, _) => Connection::Unix(listener.accept().await?.0.into_std()?),
        };
        Ok((connection, self.speech.clone()))
    }
}

/// Takes away what a process has left that was killed. A socket at which somebody answers stays, and
/// so does what is no socket.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    match unix::UnixStream::connect(path) {
        Err(error) if is_socket && error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path)
        }
        _ => Ok(()),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Nobody listens behind it any more; if it stays, the next one takes it away.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_one_owner_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = Listen::Unix(dir.path().join("socket"));
        let first = Listener::bind(&at).unwrap();
        assert_eq!(first.place().unwrap().at, at);
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
        Listener::bind(&Listen::Unix(path)).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "somebody's").unwrap();
        assert!(Listener::bind(&Listen::Unix(file.clone())).is_err());
        assert_eq!(fs::read_to_string(file).unwrap(), "somebody's");
    }
}
