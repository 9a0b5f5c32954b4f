//! The frame of a gRPC message on the wire, and the limits of its length.
//!
//! ```text
//!   flag: is it compressed? │ length: 4 bytes │ message
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tonic::Status;

/// Number of bytes of the flag and the length.
pub(crate) const FRAME_HEAD_BYTES: usize = 5;
/// Maximum size of a response message in bytes: etcd's `maxSendBytes`.
const MESSAGE_BYTES_MAX: u64 = i32::MAX as u64;

pub(crate) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(FRAME_HEAD_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    message.encode(&mut bytes).expect("there is room for all of it");
    bytes.freeze()
}

/// Returns the frame of a message that is already encoded.
pub(crate) fn frame_bytes(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("requests are bounded far below"));
    frame.put_slice(message);
    frame.freeze()
}

/// Returns the flag and the length of the message; `None` if the head is incomplete.
pub(crate) fn read_head(bytes: &[u8]) -> Option<(u8, usize)> {
    let [flag, length @ ..] = *bytes.first_chunk::<FRAME_HEAD_BYTES>()?;
    Some((flag, u32::from_be_bytes(length) as usize))
}

pub(crate) fn check_message_size(length: u64) -> Result<(), Status> {
    if length <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let why =
        format!("grpc: trying to send message larger than max ({length} vs. {MESSAGE_BYTES_MAX})");
    Err(Status::resource_exhausted(why))
}

pub(crate) fn check_received_size(length: usize, limit: usize) -> Result<(), Status> {
    if length <= limit {
        return Ok(());
    }
    let why = format!("grpc: received message larger than max ({length} vs. {limit})");
    Err(Status::resource_exhausted(why))
}
