//! gRPC's frames: a byte that says "not compressed", four of length, the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::Status;

use crate::grpc_frame::FRAME_HEAD_BYTES;

pub(super) fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("requests are bounded far below"));
    frame.put_slice(message);
    frame.freeze()
}

/// `None` if the head of the frame is incomplete.
pub(super) fn frame_len(frame: &[u8]) -> Result<Option<usize>, Status> {
    let Some(mut head) = frame.get(..FRAME_HEAD_BYTES) else { return Ok(None) };
    if head.get_u8() != 0 {
        return Err(Status::internal("a compressed answer to a request that did not ask for it"));
    }
    Ok(Some(head.get_u32() as usize))
}

/// Takes messages out of their frames, wherever the pieces of the stream are cut.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    gathered: BytesMut,
}

impl FrameDecoder {
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.gathered.extend_from_slice(piece);
    }

    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(length) = frame_len(&self.gathered)? else { return Ok(None) };
        if self.gathered.len() < FRAME_HEAD_BYTES + length {
            self.gathered.reserve(FRAME_HEAD_BYTES + length - self.gathered.len());
            return Ok(None);
        }
        self.gathered.advance(FRAME_HEAD_BYTES);
        Ok(Some(self.gathered.split_to(length).freeze()))
    }
}
