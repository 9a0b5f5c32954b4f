//! Compression of messages, which clients of gRPC may use. Only gzip is supported, as in etcd.
//!
//! The proxy reads the requests of some calls itself, and then decompresses them. If the client of
//! a call uses gzip, its responses are compressed also, as a member does it. All other calls are
//! forwarded as they are.

use std::io::{Read as _, Write as _};

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;

use crate::forward::FRAME_HEAD_BYTES;

/// Maximum size of a message that is compressed. Compressing a longer message would take a thread
/// for long.
const COMPRESSED_BYTES_MAX: usize = 64 << 10;
pub(crate) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
pub(crate) const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
pub(crate) const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// Returns true if the messages of a call are compressed with gzip. Fails if they are compressed in
/// another way.
pub(crate) fn is_gzip(head: &HeaderMap) -> Result<bool, Status> {
    match head.get(GRPC_ENCODING).map_or(&b""[..], HeaderValue::as_bytes) {
        b"gzip" => Ok(true),
        b"" | b"identity" => Ok(false),
        other => {
            let other = String::from_utf8_lossy(other);
            let why = format!("grpc: Decompressor is not installed for grpc-encoding {other:?}");
            Err(Status::unimplemented(why))
        }
    }
}

/// Decompresses the message of a frame. Returns the frame unchanged if it says that its message is
/// not compressed, or if it has not exactly one message. Fails if the decompressed message has more
/// than `bytes_max` bytes.
pub(crate) fn decompress_frame(framed: Bytes, bytes_max: usize) -> Result<Bytes, Status> {
    let head = framed.split_first_chunk::<FRAME_HEAD_BYTES>();
    let Some((&[flag, ref length @ ..], packed)) = head else { return Ok(framed) };
    if flag == 0 || u32::from_be_bytes(*length) as usize != packed.len() {
        return Ok(framed);
    }
    let mut plain = vec![0; FRAME_HEAD_BYTES];
    let unpacked = MultiGzDecoder::new(packed).take(bytes_max as u64 + 1).read_to_end(&mut plain);
    unpacked.map_err(|error| {
        Status::internal(format!("grpc: failed to decompress the message: {error}"))
    })?;
    let length = plain.len() - FRAME_HEAD_BYTES;
    if length > bytes_max {
        let why = format!("grpc: received message after decompression larger than max {bytes_max}");
        return Err(Status::resource_exhausted(why));
    }
    let head = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    plain[1..FRAME_HEAD_BYTES].copy_from_slice(&head);
    Ok(plain.into())
}

/// Returns the first bytes of a compressed message, of which only the start may have arrived.
/// Returns fewer bytes if the message or its start is shorter, or is not compressed with gzip.
pub(crate) fn start_of(packed: &[u8], length: usize) -> Vec<u8> {
    let mut start = Vec::with_capacity(length);
    // After an error, `start` has the bytes before it.
    let _ = MultiGzDecoder::new(packed).take(length as u64).read_to_end(&mut start);
    start
}

/// Compresses the message of a frame, unless it is empty or longer than [`COMPRESSED_BYTES_MAX`].
pub(crate) fn compress_frame(framed: Bytes) -> Bytes {
    let message = framed.get(FRAME_HEAD_BYTES..).unwrap_or_default();
    if message.is_empty() || message.len() > COMPRESSED_BYTES_MAX || framed[0] != 0 {
        return framed;
    }
    let mut packed = BytesMut::with_capacity(FRAME_HEAD_BYTES + message.len() / 2);
    packed.put_u8(1);
    packed.put_u32(0);
    let mut encoder = GzEncoder::new(packed.writer(), Compression::default());
    let written = encoder.write_all(message).and_then(|()| encoder.finish());
    let mut packed = written.expect("this memory grows").into_inner();
    let length = (packed.len() - FRAME_HEAD_BYTES) as u32;
    packed[1..FRAME_HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    packed.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Bytes {
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(message);
        framed.into()
    }

    #[test]
    fn a_message_is_the_same_afterwards() {
        for length in [1, 100, COMPRESSED_BYTES_MAX] {
            let plain = framed(&vec![7; length]);
            let packed = compress_frame(plain.clone());
            assert_eq!(packed[0], 1);
            assert_eq!(decompress_frame(packed, length).unwrap(), plain);
        }
        for message in [&[][..], &vec![7; COMPRESSED_BYTES_MAX + 1]] {
            assert_eq!(compress_frame(framed(message)), framed(message));
        }
    }

    #[test]
    fn a_small_message_cannot_become_a_huge_one() {
        let packed = compress_frame(framed(&vec![0; 60_000]));
        assert!(packed.len() < 1000);
        let status = decompress_frame(packed, 59_999).unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        let mut broken = framed(b"no gzip").to_vec();
        broken[0] = 1;
        assert_eq!(decompress_frame(broken.into(), 100).unwrap_err().code(), tonic::Code::Internal);
    }

    #[test]
    fn other_encodings_are_rejected() {
        let mut head = HeaderMap::new();
        assert!(!is_gzip(&head).unwrap());
        head.insert(GRPC_ENCODING, GZIP);
        assert!(is_gzip(&head).unwrap());
        head.insert(GRPC_ENCODING, HeaderValue::from_static("zstd"));
        assert_eq!(is_gzip(&head).unwrap_err().code(), tonic::Code::Unimplemented);
    }
}
