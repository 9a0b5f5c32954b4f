//! Tests of the limits on the number of connections, on the time for a handshake and a head, and on
//! the size of a head.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::frames::{PREFACE, frame, headers_of_put};
use crate::member::{HardenedMember, PAUSE, end, ended, trickle};
use crate::program::TIMEOUT;

/// A time limit for tests that wait until it has passed. No test waits for the limits in
/// `LONG_LIMITS`.
const SHORT: Duration = Duration::from_secs(5);
const SHORT_LIMITS: [&str; 2] = ["--tls-handshake-timeout=5s", "--request-head-timeout=5s"];
const LONG_LIMITS: [&str; 2] = ["--tls-handshake-timeout=1h", "--request-head-timeout=1h"];

/// The first bytes of a TLS connection: the headers of a handshake record with a client hello of
/// 512 bytes. The hello itself is missing.
const HELLO: [u8; 9] = [0x16, 3, 1, 2, 4, 1, 0, 2, 0];

#[test]
fn a_handshake_that_takes_too_long_ends() {
    let member = HardenedMember::start(&SHORT_LIMITS);
    let begin = Instant::now();
    let mut silent = member.connect_secure();
    let mut half = member.connect_secure();
    half.write_all(&HELLO).unwrap();
    let slow = member.connect_secure();
    let slow = std::thread::spawn(move || trickle(slow, &HELLO));
    member.others_are_served();
    end(&mut silent);
    end(&mut half);
    assert!(begin.elapsed() >= SHORT);
    slow.join().unwrap();
    member.others_are_served();
}

#[test]
fn a_head_that_takes_too_long_ends() {
    let member = HardenedMember::start(&SHORT_LIMITS);
    let head = headers_of_put(&[]);
    let after_settings = |more: &[u8]| [PREFACE, more].concat();
    let beginnings = [
        Vec::new(),
        PREFACE[..5].to_vec(),
        PREFACE[..24].to_vec(),
        b"GET /version HT".to_vec(),
        b"GET /version HTTP/1.1\r\nhost: here\r\n".to_vec(),
        after_settings(&frame(1, 4, 1, &head)[..30]),
        after_settings(&frame(1, 0, 1, &head)),
    ];
    let begin = Instant::now();
    let mut open = Vec::new();
    for beginning in &beginnings {
        let mut stream = member.connect();
        stream.write_all(beginning).unwrap();
        open.push(stream);
    }
    let slow: Vec<_> = [PREFACE, b"GET /version HTTP/1.1\r\na: bcdefghijk"]
        .into_iter()
        .map(|bytes| {
            let stream = member.connect();
            std::thread::spawn(move || trickle(stream, bytes))
        })
        .collect();
    // The server also closes a connection that completes its TLS handshake and then sends an
    // incomplete preface.
    let mut secure = member.handshake().unwrap();
    secure.write_all(&PREFACE[..7]).unwrap();
    member.others_are_served();
    open.iter_mut().for_each(end);
    assert!(begin.elapsed() >= SHORT);
    slow.into_iter().for_each(|slow| slow.join().unwrap());
    end(&mut secure.sock);
    member.others_are_served();
}

#[test]
fn a_connection_between_two_requests_stays() {
    let member = HardenedMember::start(&SHORT_LIMITS);
    let mut idle = member.connect();
    idle.write_all(PREFACE).unwrap();
    // A call without its message also stays open, because a client may stream messages.
    let mut call = member.connect();
    call.write_all(&[PREFACE, &frame(1, 4, 1, &headers_of_put(&[]))].concat()).unwrap();
    let mut later = member.connect();
    end(&mut later);
    for stream in [&mut idle, &mut call] {
        assert!(ended(stream).is_none());
        // The connection still works: the server responds to a ping.
        stream.write_all(&frame(6, 0, 0, b"12345678")).unwrap();
        let (begin, mut came) = (Instant::now(), Vec::<u8>::new());
        while !came.windows(8).any(|bytes| bytes == b"12345678") {
            assert!(begin.elapsed() < TIMEOUT, "{came:?}");
            let mut buffer = [0; 100];
            let read = stream.read(&mut buffer).unwrap_or(0);
            came.extend(&buffer[..read]);
        }
    }
}

#[test]
fn one_connection_more_than_may_be_is_closed_at_once() {
    let mut member = HardenedMember::start(&["--max-connections=3", LONG_LIMITS[1]]);
    let open = [member.connect(), member.connect_secure(), member.connect()];
    // Connections are accepted in order on each port, but there are two ports. So a new connection
    // may be accepted before the open ones, and the test tries again.
    let begin = Instant::now();
    while ended(&mut member.connect()).is_none() {
        assert!(begin.elapsed() < TIMEOUT);
    }
    let line = member.program.json("the limit of --max-connections is reached");
    assert_eq!((&line["level"], &line["max"]), (&"warn".into(), &3.into()));
    drop(open);
    // A closed connection counts towards the limit until the server notices that it was closed.
    let begin = Instant::now();
    loop {
        let mut stream = member.connect();
        let asked = stream.write_all(b"GET /version HTTP/1.0\r\n\r\n");
        if asked.is_ok() && ended(&mut stream).is_some_and(|answer| !answer.is_empty()) {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(PAUSE);
    }
}

/// 40 clients connect and send nothing, but only 8 connections may be in a handshake. The time
/// limit of a handshake, one hour, does not pass during the test. The silent clients must not keep
/// other clients out.
#[test]
fn silent_clients_do_not_keep_others_out() {
    let flags = ["--max-pending-handshakes=8", "--net-threads=1", LONG_LIMITS[0], LONG_LIMITS[1]];
    let mut member = HardenedMember::start(&flags);
    let mut silent: Vec<_> = (0..40).map(|_| member.connect_secure()).collect();
    // The server closes the oldest connections first.
    let end_of_newest = silent.split_off(silent.len() - 8);
    silent.iter_mut().for_each(end);
    let line = member.program.json("closed the oldest connection without a handshake");
    assert_eq!((&line["level"], &line["max"]), (&"warn".into(), &8.into()));
    member.others_are_served();
    assert!(end_of_newest.into_iter().any(|mut stream| ended(&mut stream).is_none()));
}

/// Half of the slots are reserved for clients that have sent their hello. So silent clients must
/// not end the handshakes of these clients.
#[test]
fn silent_clients_do_not_end_a_handshake_that_has_begun() {
    let flags = ["--max-pending-handshakes=8", "--net-threads=1", LONG_LIMITS[0], LONG_LIMITS[1]];
    let member = HardenedMember::start(&flags);
    let dialer = member.dialer();
    let mut begun: Vec<_> = (0..4).map(|_| dialer.begin()).collect();
    let mut silent: Vec<_> = (0..40).map(|_| member.connect_secure()).collect();
    silent[..36].iter_mut().for_each(end);
    for client in &mut begun {
        client.conn.complete_io(&mut client.sock).unwrap();
        assert!(!client.conn.is_handshaking());
    }
    member.others_are_served();
}

/// Only half of the slots are reserved for clients that have sent their hello. Other clients still
/// get the other half.
#[test]
fn handshakes_that_do_not_go_on_do_not_keep_others_out() {
    let flags = ["--max-pending-handshakes=8", "--net-threads=1", LONG_LIMITS[0], LONG_LIMITS[1]];
    let member = HardenedMember::start(&flags);
    let dialer = member.dialer();
    let mut begun: Vec<_> = (0..20).map(|_| dialer.begin()).collect();
    let silent: Vec<_> = (0..3).map(|_| member.connect_secure()).collect();
    begun.truncate(12);
    for client in &mut begun {
        client.sock.set_read_timeout(Some(PAUSE)).unwrap();
        end(&mut client.sock);
    }
    member.others_are_served();
    drop(silent);
}

/// All clients of a failed member connect at the same time, and most of them must wait. Each client
/// must be served after a few attempts.
#[test]
fn more_clients_than_may_shake_hands_wait_for_each_other() {
    const CLIENTS: usize = 100;
    let member = HardenedMember::start(&["--max-pending-handshakes=8", "--net-threads=1"]);
    let dialer = member.dialer();
    // The handshake of a client that gets no processor time for a second is closed, and the client
    // tries again.
    let shake_hands = || {
        let (begin, mut tries) = (Instant::now(), 1_usize);
        while let Err(error) = dialer.handshake() {
            assert!(begin.elapsed() < TIMEOUT, "{error}");
            std::thread::sleep(PAUSE);
            tries += 1;
        }
        tries
    };
    let tries: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(shake_hands)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    // If all handshakes beyond eight were closed, clients would need six attempts on average.
    assert!(tries < 4 * CLIENTS, "{tries}");
}

/// If few connections are allowed, silent clients would take all of them before the limit on
/// handshakes is reached. So only half of the connections may be in a handshake.
#[test]
fn silent_clients_leave_half_of_the_connections_to_others() {
    let flags = ["--max-connections=8", "--net-threads=1", LONG_LIMITS[0], LONG_LIMITS[1]];
    let mut member = HardenedMember::start(&flags);
    let silent: Vec<_> = (0..40).map(|_| member.connect_secure()).collect();
    let line = member.program.json("closed the oldest connection without a handshake");
    assert_eq!((&line["level"], &line["max"]), (&"warn".into(), &4.into()));
    // A closed connection counts towards the limit until the server notices that it was closed.
    let begin = Instant::now();
    while member.handshake().is_err() {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(PAUSE);
    }
    drop(silent);
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let member = HardenedMember::start(&["--max-request-head-bytes=2048"]);
    let long = "x".repeat(120);
    let status = |request: &str| {
        let mut stream = member.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let (begin, mut came) = (Instant::now(), Vec::<u8>::new());
        while came.len() < 12 {
            assert!(begin.elapsed() < TIMEOUT, "{came:?}");
            let mut buffer = [0; 100];
            let read = stream.read(&mut buffer).unwrap_or(0);
            came.extend(&buffer[..read]);
        }
        String::from_utf8_lossy(&came[9..12]).into_owned()
    };
    let get = |headers: usize, value: &str| {
        let headers: String = (0..headers).map(|at| format!("h{at}: {value}\r\n")).collect();
        format!("GET /version HTTP/1.1\r\nhost: here\r\n{headers}\r\n")
    };
    assert_eq!(status(&get(1, &long)), "200");
    // Over HTTP/1.1 the limit is at least 8 KiB, although the flag sets less. So the first of these
    // requests has a header of 20,000 bytes. The second request has too many headers.
    assert_eq!(status(&get(1, &"x".repeat(20_000))), "431");
    assert_eq!(status(&get(150, "x")), "431");
    // Over HTTP/2 the response is a HEADERS frame. The static table of HPACK does not contain the
    // status 431, so the frame contains the status as plain text or in Huffman code.
    let many: Vec<(&str, &str)> = (0..30).map(|_| ("more", &long[..])).collect();
    let block = headers_of_put(&many);
    let mut stream = member.connect();
    stream.write_all(&[PREFACE, &frame(1, 5, 1, &block)].concat()).unwrap();
    let (begin, mut came) = (Instant::now(), Vec::<u8>::new());
    let refused =
        |came: &[u8]| came.windows(3).any(|three| three == b"431" || three == HUFFMAN_431);
    while !refused(&came) {
        assert!(begin.elapsed() < TIMEOUT, "{came:?}");
        let mut buffer = [0; 100];
        let read = stream.read(&mut buffer).unwrap_or(0);
        came.extend(&buffer[..read]);
    }
    member.others_are_served();
}

/// The text "431" in HPACK's Huffman code: 011010 011001 00001, padded with ones.
const HUFFMAN_431: [u8; 3] = [0b0110_1001, 0b1001_0000, 0b1111_1111];
