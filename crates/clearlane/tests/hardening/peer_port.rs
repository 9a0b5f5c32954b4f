//! Tests of the port for members. The server disconnects a client that does not behave like a
//! member, and closes connections above its limit.

use std::io::Write;

use clearlane_net::free_ports;

use crate::authority::Authority;
use crate::frames::{PREFACE, frame, headers_of_put};
use crate::member::{connect, end, ended, trickle};
use crate::program::{RunningProgram, member};

/// The first bytes of a TLS connection.
const HELLO: [u8; 9] = [0x16, 3, 1, 2, 4, 1, 0, 2, 0];

fn free_port() -> u16 {
    free_ports(1).unwrap()[0]
}

#[test]
fn without_tls() {
    let dir = tempfile::tempdir().unwrap();
    let peer = format!("127.0.0.1:{}", free_port());
    let listen = format!("--listen-peer-urls=http://{peer}");
    let mut running = RunningProgram::start(&mut member(&dir.path().join("data"), &[&listen]));
    running.ready();
    let mut open: Vec<_> = (0..3).map(|_| connect(&peer)).collect();
    open[1].write_all(&PREFACE[..9]).unwrap();
    let head = frame(1, 0, 1, &headers_of_put(&[]));
    open[2].write_all(&[PREFACE, &head].concat()).unwrap();
    let slow = connect(&peer);
    let slow = std::thread::spawn(move || trickle(slow, PREFACE));
    open.iter_mut().for_each(end);
    slow.join().unwrap();
    // These are more connections than the port allows.
    let crowd: Vec<_> = (0..300).map(|_| connect(&peer)).collect();
    running.line("closed a new connection: the limit of the peer port is reached");
    drop(crowd);
}

#[test]
fn with_tls() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let pair = ca.pair("server", &["127.0.0.1", "localhost"]);
    let peer = format!("127.0.0.1:{}", free_port());
    let flags = [
        format!("--listen-peer-urls=https://{peer}"),
        format!("--initial-advertise-peer-urls=https://{peer}"),
        format!("--peer-cert-file={}", pair.certificate.path.display()),
        format!("--peer-key-file={}", pair.key.path.display()),
        format!("--peer-trusted-ca-file={}", ca.certificate().display()),
        "--peer-client-cert-auth".to_owned(),
        "--tls-handshake-timeout=1s".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut running = RunningProgram::start(&mut member(&dir.path().join("data"), &flags));
    running.ready();
    let mut silent = connect(&peer);
    let mut garbage = connect(&peer);
    garbage.write_all(b"POST /something HTTP/1.1\r\n\r\n").unwrap();
    let slow = connect(&peer);
    let slow = std::thread::spawn(move || trickle(slow, &HELLO));
    end(&mut garbage);
    end(&mut silent);
    slow.join().unwrap();
    // None of these connections sends anything. If too many connections wait for a handshake, the
    // server closes the oldest ones. It closes the others after the time limit of one second.
    let mut crowd: Vec<_> = (0..100).map(|_| connect(&peer)).collect();
    running.line("connection without a handshake: too many are waiting");
    crowd.iter_mut().for_each(end);
    assert!(ended(&mut crowd[0]).is_some());
}
