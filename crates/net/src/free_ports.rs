//! Free ports of 127.0.0.1, for tools and tests that must know a server's ports before it starts.
//!
//! A server binds its ports some time after `free_ports()` has found them, and again when it is
//! restarted. So the ports are below the range that the system assigns to outgoing connections,
//! where that is possible. Otherwise a connection of any program could take a port, and the server
//! could not listen until that connection had ended.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

const RANGE_OF_CONNECTIONS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// The lowest port that is tried. Well-known ports are below it.
const FIRST: u16 = 10_000;
/// Minimum number of ports between `FIRST` and the range of outgoing connections. If there are
/// fewer, the system chooses the ports.
const WIDTH_MIN: usize = 1000;

/// Distance between the first ports that are tried by two processes with neighbouring IDs.
const PORTS_OF_A_PROCESS: u32 = 64;

/// Number of ports that this process has tried. The process tries each port of the range once
/// before it tries a port again.
static TRIED: AtomicU32 = AtomicU32::new(0);

/// Returns `count` different ports on which nothing listens now. They are different because all of
/// them are bound before any is freed. Fails if there are not enough free ports.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners = match below_connections() {
        Some(range) => listeners_in(&range, count)?,
        None => (0..count).map(|_| listen_at(0)).collect::<io::Result<_>>()?,
    };
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn listen_at(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

fn below_connections() -> Option<Range<u16>> {
    let text = fs::read_to_string(RANGE_OF_CONNECTIONS).ok()?;
    let range = FIRST..text.split_whitespace().next()?.parse().ok()?;
    (range.len() >= WIDTH_MIN).then_some(range)
}

/// Binds `count` free ports of the range, or fails if there are not enough. The first port that is
/// tried depends on the process ID, so processes that run at the same time usually find different
/// ports.
fn listeners_in(range: &Range<u16>, count: usize) -> io::Result<Vec<TcpListener>> {
    let width = range.len() as u32;
    let start = process::id().wrapping_mul(PORTS_OF_A_PROCESS) % width;
    let place = || start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % width;
    let tried = (0..width).map(|_| listen_at(range.start + place() as u16));
    let listeners = tried.flatten().take(count).collect::<Vec<_>>();
    if listeners.len() == count { Ok(listeners) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_not_those_of_connections() {
        let mut ports = free_ports(20).expect("there are as many");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
        if let Some(range) = below_connections() {
            assert!(ports.iter().all(|port| range.contains(port)), "{range:?}: {ports:?}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_passed_over() {
        let port = free_ports(1).expect("there is one")[0];
        let taken = listen_at(port).expect("it is free");
        assert!(listeners_in(&(port..port + 1), 1).is_err());
        let found = listeners_in(&(port..port + 50), 1).expect("another is free");
        assert_ne!(found[0].local_addr().expect("it has one"), taken.local_addr().expect("too"));
    }
}
