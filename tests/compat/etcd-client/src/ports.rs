//! Ports that no other program takes.
//!
//! Members must know each other's addresses before they start, so they cannot use port 0. A port
//! that was free a moment ago may already belong to an outgoing connection. The system chooses the
//! ports of outgoing connections from an upper range, so this module chooses ports below that
//! range: it counts up and checks whether a port is free. Two runs at the same time start at
//! different ports.

use std::net::TcpListener;
use std::sync::Mutex;

const FIRST: u16 = 12_000;
/// The end of the range, exclusive. On Linux, the ports of outgoing connections start at 32,768.
const END: u16 = 32_000;

/// The last port that was returned.
static LAST: Mutex<Option<u16>> = Mutex::new(None);

/// Returns a free port of the loopback address. This process returns no port twice before it has
/// used the whole range.
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

/// Returns the first port that this process tries.
fn start() -> u16 {
    let places = u32::from(END - FIRST);
    // Processes with neighbouring IDs start 211 ports apart, so they rarely try the same port at
    // the same time.
    let place = std::process::id().wrapping_mul(211) % places;
    FIRST + u16::try_from(place).expect("less than END")
}
