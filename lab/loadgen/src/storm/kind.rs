//! The kinds of storms, and the HTTP/2 frames that some kinds send.

use bytes::Bytes;
use clap::ValueEnum;

/// A kind of storm. `clearlane-load storms` shows the first line of each value's doc comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StormKind {
    /// tls: 2,000 connections that each send one byte per second
    SlowLoris,
    /// tls: connections that send a thousand random bytes
    Garbage,
    /// tls: handshakes that are given up after the server's first answer
    Handshakes,
    /// plain: streams that are reset as soon as they are opened
    Resets,
    /// plain: settings frames that change nothing
    Settings,
    /// plain: empty data frames of an open request
    EmptyData,
}

/// A settings frame that changes nothing.
pub(super) const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// An empty data frame for the stream that [`open_stream`] opens.
pub(super) const EMPTY_DATA: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 0, 1];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, payload.len() as u8, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns a frame with the headers of a put. The frame leaves the stream open, and the message of
/// the put is never sent.
pub(super) fn open_stream() -> Bytes {
    frame(1, 4, 1, &head_of_put()).into()
}

/// Returns frames that open and reset `count` streams. `before` is the number of streams that were
/// opened earlier on the same connection.
pub(super) fn resets(before: u32, count: u32) -> Bytes {
    let head = head_of_put();
    let mut frames = Vec::new();
    for number in before..before + count {
        frames.extend(frame(1, 5, 2 * number + 1, &head));
        frames.extend(frame(3, 0, 2 * number + 1, &[0, 0, 0, 8]));
    }
    frames.into()
}

/// Returns the headers of a put. They use neither HPACK's Huffman code nor its tables.
fn head_of_put() -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/etcdserverpb.KV/Put"),
        (":authority", "storm"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        head.push(0);
        for text in [name, value] {
            head.push(text.len() as u8);
            head.extend(text.as_bytes());
        }
    }
    head
}
