//! Proxies for all connections between members. They can cut a member off.
//!
//! Each member connects to the others through ports of this process, which forwards the
//! connections. A cut connection loses no data and delivers none. This resembles a cable that is
//! unplugged, and plugged in again before TCP gives up.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::program::{Program, ports, short_pause};

pub(crate) struct PeerProxies {
    /// The member whose connections are cut. `None` if no member is cut off.
    cut: watch::Sender<Option<usize>>,
    pids: Arc<Mutex<Vec<Option<u32>>>>,
}

impl PeerProxies {
    /// Starts the proxies. No member may be running yet.
    pub(crate) async fn new(members: &mut [Program]) -> PeerProxies {
        let (cut, cuts) = watch::channel(None);
        let pids = Arc::new(Mutex::new(vec![None; members.len()]));
        for (to, port) in ports(members.len()).into_iter().enumerate() {
            members[to].listen_peer = port;
            let listener = TcpListener::bind(("127.0.0.1", members[to].peer)).await.unwrap();
            let (pids, cuts) = (Arc::clone(&pids), cuts.clone());
            tokio::spawn(async move {
                while let Ok((stream, from)) = listener.accept().await {
                    tokio::spawn(forward_connection(
                        stream,
                        from.port(),
                        (to, port),
                        Arc::clone(&pids),
                        cuts.clone(),
                    ));
                }
            });
        }
        PeerProxies { cut, pids }
    }

    /// Starts a member. The proxies recognize its connections by its process.
    pub(crate) fn start(&self, at: usize, member: &mut Program) {
        member.start();
        self.pids.lock().unwrap()[at] = member.pid();
    }

    /// Cuts off this member, and reconnects all other members. If `member` is `None`, reconnects
    /// all members.
    pub(crate) fn cut(&self, member: Option<usize>) {
        self.cut.send_replace(member);
    }
}

async fn forward_connection(
    from: TcpStream,
    from_port: u16,
    (to, to_port): (usize, u16),
    pids: Arc<Mutex<Vec<Option<u32>>>>,
    mut cuts: watch::Receiver<Option<usize>>,
) {
    // If the process has ended, its socket is closed, and no owner is found.
    let Some(owner) = owner(from_port, &pids).await else { return };
    let ends = [owner, to];
    wait_until_not_cut(&mut cuts, ends).await;
    let Ok(to) = TcpStream::connect(("127.0.0.1", to_port)).await else { return };
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    tokio::select! {
        () = forward_bytes(from_read, to_write, cuts.clone(), ends) => {}
        () = forward_bytes(to_read, from_write, cuts, ends) => {}
    }
}

async fn forward_bytes(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut cuts: watch::Receiver<Option<usize>>,
    ends: [usize; 2],
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        wait_until_not_cut(&mut cuts, ends).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Returns once neither of these members is cut off.
async fn wait_until_not_cut(cuts: &mut watch::Receiver<Option<usize>>, ends: [usize; 2]) {
    let _ = cuts.wait_for(|cut| cut.is_none_or(|cut| !ends.contains(&cut))).await;
}

/// Returns the member whose process has a socket with this local port. Tries again for a while, and
/// then returns `None`.
async fn owner(port: u16, pids: &Mutex<Vec<Option<u32>>>) -> Option<usize> {
    for _ in 0..100 {
        let known = pids.lock().unwrap().clone();
        let has = |pid: &Option<u32>| pid.is_some_and(|pid| has_socket(pid, port).unwrap_or(false));
        if let Some(at) = known.iter().position(has) {
            return Some(at);
        }
        short_pause().await;
    }
    None
}

/// Returns whether a process has a socket with this local port, according to Linux.
fn has_socket(pid: u32, port: u16) -> std::io::Result<bool> {
    let local = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp")?;
    let inode = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&local.as_str())).then(|| fields.get(9).copied()).flatten()
    });
    let Some(inode) = inode else { return Ok(false) };
    let socket = format!("socket:[{inode}]");
    for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
        if fs::read_link(file?.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A member is stopped or cut off for this time, which is longer than an election.
pub(crate) const FAULT_DURATION: Duration = Duration::from_secs(2);
