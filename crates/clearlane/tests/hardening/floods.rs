//! Tests of HTTP/2 frames that cost the server more than the client. The server limits this cost or
//! ends the connection, and serves other clients.

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use crate::frames::{PREFACE, frame, headers_of_put};
use crate::member::{HardenedMember, ended};
use crate::program::TIMEOUT;

const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Writes until the server closes the connection. Returns the data that the server has sent, except
/// data that the operating system has dropped because of the close.
fn flood(mut stream: TcpStream, mut next: impl FnMut(u32) -> Vec<u8>) -> String {
    stream.write_all(PREFACE).unwrap();
    let (begin, mut said) = (Instant::now(), Vec::new());
    for number in 0.. {
        assert!(begin.elapsed() < TIMEOUT, "it is open still");
        let bytes: Vec<u8> = (0..500).flat_map(|at| next(number * 500 + at)).collect();
        let written = stream.write_all(&bytes);
        stream.set_nonblocking(true).unwrap();
        let end = read_some(&mut stream, &mut said);
        stream.set_nonblocking(false).unwrap();
        if written.is_err() || end {
            break;
        }
    }
    said.extend(ended(&mut stream).unwrap_or_default());
    String::from_utf8_lossy(&said).into_owned()
}

/// Reads available data. Returns true if the connection has ended.
fn read_some(stream: &mut TcpStream, said: &mut Vec<u8>) -> bool {
    use std::io::{ErrorKind, Read};
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(length) => said.extend(&buffer[..length]),
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn frames_that_ask_for_nothing_end_their_connection() {
    let member = HardenedMember::start(&[]);
    let settings = frame(4, 0, 0, &[]);
    flood(member.connect(), |_| settings.clone());
    let priority = frame(2, 0, 1, &[0, 0, 0, 0, 7]);
    flood(member.connect(), |_| priority.clone());
    member.others_are_served();
    let ping = frame(6, 0, 0, b"12345678");
    flood(member.connect(), |_| ping.clone());
    member.others_are_served();
}

#[test]
fn empty_pieces_of_a_request_end_its_connection() {
    let member = HardenedMember::start(&[]);
    let head = frame(HEADERS, END_HEADERS, 1, &headers_of_put(&[]));
    let empty = frame(0, 0, 1, &[]);
    flood(member.connect(), |number| if number == 0 { head.clone() } else { empty.clone() });
    member.others_are_served();
}

/// Streams that are opened and immediately reset, as in CVE-2023-44487. The connection may stay
/// open, but its streams take turns with the streams of other connections. So other clients must be
/// served during the attack. The library h2 limits how many streams may be reset before they are
/// processed, and closes the connection above this limit.
#[test]
fn streams_that_are_reset_at_once_hold_up_no_other() {
    let member = HardenedMember::start(&[]);
    let block = headers_of_put(&[]);
    let mut stream = member.connect();
    stream.write_all(PREFACE).unwrap();
    let mut bytes = Vec::new();
    for number in 0..20_000_u32 {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &block));
        bytes.extend(frame(3, 0, 2 * number + 1, &[0, 0, 0, 8]));
    }
    let flood = std::thread::spawn(move || {
        // The server may close the connection before all bytes are sent.
        let _ = stream.write_all(&bytes);
    });
    member.others_are_served();
    flood.join().unwrap();
    member.others_are_served();
}

/// A list of headers that never ends, as in CVE-2024-27316. The server must close the connection.
#[test]
fn headers_without_an_end_end_their_connection() {
    let member = HardenedMember::start(&[]);
    let block = headers_of_put(&[]);
    let begin = frame(HEADERS, 0, 1, &block);
    let continuation = frame(9, 0, 1, &[0, 1, b'a', 1, b'b']);
    flood(
        member.connect(),
        |number| if number == 0 { begin.clone() } else { continuation.clone() },
    );
    member.others_are_served();
    // The connection also ends if the frames are empty.
    let empty = frame(9, 0, 1, &[]);
    flood(member.connect(), |number| if number == 0 { begin.clone() } else { empty.clone() });
    member.others_are_served();
}

/// Sends only empty settings frames, and checks the reason that the client receives when the
/// connection is closed. Legitimate clients do not reach the limit, because each response resets
/// the count of empty frames.
#[test]
fn what_is_said_about_it() {
    let member = HardenedMember::start(&[]);
    let settings = frame(4, 0, 0, &[]);
    let said = flood(member.connect(), |_| settings.clone());
    // If more of the flood arrives after the server has closed the connection, the operating system
    // may drop the server's last data. So a short answer without the reason is accepted.
    assert!(said.contains("too_many_empty_frames") || said.len() < 100_000, "{said}");
}
