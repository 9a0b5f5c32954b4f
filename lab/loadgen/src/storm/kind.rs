//! The kinds of storms, by name, and the frames of HTTP/2 that some consist of.

use bytes::Bytes;
use clap::ValueEnum;

/// The first line of a doc is shown by `clearlane-load storms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StormKind {
    /// tls: 2,000 connections that send a byte a second
    SlowLoris,
    /// tls: connections that send a thousand bytes without meaning
    Garbage,
    /// tls: handshakes that are given up when the server has signed
    Handshakes,
    /// plain: streams that are opened and reset at once
    Resets,
    /// plain: settings that change nothing
    Settings,
    /// plain: pieces of a request without a byte
    EmptyData,
}

impl StormKind {
    pub fn all() -> &'static [StormKind] {
        StormKind::value_variants()
    }

    /// As in the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The kind of port, and what is sent.
    pub fn about(self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().cloned());
        help.unwrap_or_default().to_string()
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, payload.len() as u8, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(super) fn settings() -> Bytes {
    frame(4, 0, 0, &[]).into()
}

/// Of the stream of [`open_stream`].
pub(super) fn empty_data() -> Bytes {
    frame(0, 0, 1, &[]).into()
}

/// The head of a put, without its message.
pub(super) fn open_stream() -> Bytes {
    frame(1, 4, 1, &head_of_put()).into()
}

/// So many streams that are opened and reset, behind so many others.
pub(super) fn resets(before: u32, count: u32) -> Bytes {
    let head = head_of_put();
    let mut frames = Vec::new();
    for number in before..before + count {
        frames.extend(frame(1, 5, 2 * number + 1, &head));
        frames.extend(frame(3, 0, 2 * number + 1, &[0, 0, 0, 8]));
    }
    frames.into()
}

/// Without HPACK's codes and its table.
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
