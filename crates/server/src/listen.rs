//! Where do connections come from? Ports, and sockets in the file system.
//!
//! A listener is bound before anything else is opened: who starts a second server on a port in use
//! is told so at once, and no data was touched.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};

use crate::config::address::Listen;

/// What hears of connections.
#[derive(Debug)]
pub enum Listener {
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
pub enum Connection {
    /// From a network.
    Tcp(std::net::TcpStream),
    /// From this machine.
    Unix(unix::UnixStream),
}

impl Listener {
    /// Begins to listen.
    pub fn bind(at: &Listen) -> io::Result<Listener> {
        Ok(match at {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener)
            }
            Listen::Unix(path) => {
                remove_abandoned(path)?;
                let listener = unix::UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Listener::Unix(Socket { listener, path: path.clone() })
            }
        })
    }

    /// Where it listens: the port, also if any was wanted.
    pub fn place(&self) -> io::Result<Listen> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Listener::Unix(socket) => Ok(Listen::Unix(socket.path.clone())),
        }
    }

    /// For a thread with a runtime.
    pub(crate) fn into_waiting(self) -> io::Result<Waiting> {
        Ok(match self {
            Listener::Tcp(listener) => Waiting::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Listener::Unix(socket) => {
                let listener = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
                Waiting::Unix(listener, socket)
            }
        })
    }
}

/// A listener on a runtime.
#[derive(Debug)]
pub(crate) enum Waiting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener, #[expect(dead_code, reason = "its name goes with it")] Socket),
}

impl Waiting {
    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Waiting::Tcp(listener) => Connection::Tcp(listener.accept().await?.0.into_std()?),
            Waiting::Unix(listener, _) => Connection::Unix(listener.accept().await?.0.into_std()?),
        })
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
        assert_eq!(first.place().unwrap(), at);
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
