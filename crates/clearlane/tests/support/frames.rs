//! Raw HTTP/2 frames, for clients that send bytes that a library would not send.

#![allow(dead_code, reason = "each test file uses another part of it")]

/// The start of a connection, with empty settings.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns an HTTP/2 frame with this payload.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the HPACK-encoded headers of a put, followed by the headers `more`.
pub(crate) fn headers_of_put(more: &[(&str, &str)]) -> Vec<u8> {
    headers_of_call("/etcdserverpb.KV/Put", more)
}

/// Returns the headers of a call, followed by the headers `more`. The HPACK encoding uses no
/// Huffman codes and no table.
pub(crate) fn headers_of_call(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let own = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "here"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in own.iter().chain(more) {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}
