//! Ports that no other program takes.
//!
//! Members must know each other's addresses before they start, so port 0 will not do, and a port
//! that was free a moment ago may belong to an outgoing connection now. Those come from the upper
//! range that the system keeps for them; so we choose below it, count up, and look whether the port
//! is free. Two runs at the same time begin at different places.

use std::net::TcpListener;
use std::sync::Mutex;

const FIRST: u16 = 12_000;
/// Behind the last one; outgoing connections begin at 32,768 on Linux.
const END: u16 = 32_000;

/// The last one given out.
static LAST: Mutex<Option<u16>> = Mutex::new(None);

/// A port on the loopback address, given out once in this process.
pub(crate) fn free() -> u16 {
    let mut last = LAST.lock().expect("no thread panics while looking for a port");
    let mut port = last.unwrap_or_else(start);
    for _ in FIRST..END {
        port = if port + 1 < END { port + 1 } else { FIRST };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            *last = Some(port);
            return port;
        }
    }
    panic!("no port between {FIRST} and {END} is free");
}

/// Where this process begins to look.
fn start() -> u16 {
    let places = u32::from(END - FIRST);
    // A process starts some hundreds of servers at most: neighbours in the list of processes keep
    // apart.
    let place = std::process::id().wrapping_mul(211) % places;
    FIRST + u16::try_from(place).expect("less than END")
}
