//! The body of a forwarded response, from which the proxy reads the revision.
//!
//! Nearly all messages of etcd start with their header. The body passes every frame on at once, and
//! looks only at the first one.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use clearlane_proto::Message as _;
use clearlane_proto::etcdserverpb::ResponseHeader;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::cache::Cache;
use crate::connection::ConnectionState;
use crate::gzip;

/// The number of bytes of a gRPC frame before its message.
const FRAME_HEAD_BYTES: usize = 5;
/// The first byte of a message that starts with its header: field 1, with a length.
const HEADER_TAG: u8 = 0x0a;
/// Maximum size of a header. Its length takes one byte.
const HEADER_BYTES_MAX: usize = 41;

pub(crate) struct SeenBody {
    body: tonic::body::Body,
    cache: Arc<Cache>,
    connection: Arc<ConnectionState>,
    /// The cluster's epoch when the request was sent.
    epoch: u64,
    is_begun: bool,
}

impl SeenBody {
    pub(crate) fn new(
        body: tonic::body::Body,
        cache: Arc<Cache>,
        connection: Arc<ConnectionState>,
        epoch: u64,
    ) -> SeenBody {
        SeenBody { body, cache, connection, epoch, is_begun: false }
    }
}

impl Body for SeenBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !std::mem::replace(&mut self.is_begun, true)
            && let Some(revision) = revision_of(data)
        {
            self.connection.note_seen(self.epoch, revision);
            self.cache.note_seen(self.epoch, revision);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the revision in the header of the first message. `None` if the message has no header, or
/// does not start with it.
fn revision_of(frame: &[u8]) -> Option<i64> {
    let message = frame.get(FRAME_HEAD_BYTES..)?;
    let start = match frame[0] {
        0 => Cow::Borrowed(message),
        // A forwarded response may be compressed.
        1 => Cow::Owned(gzip::start_of(message, HEADER_BYTES_MAX + 2)),
        _ => return None,
    };
    let message = &start[..];
    if *message.first()? != HEADER_TAG {
        return None;
    }
    let length = usize::from(*message.get(1)?);
    let header = ResponseHeader::decode(message.get(2..2 + length)?).ok()?;
    let is_header = header.cluster_id != 0 && header.revision > 0;
    is_header.then_some(header.revision)
}

#[cfg(test)]
mod tests {
    use clearlane_proto::etcdserverpb::{PutResponse, SnapshotResponse};

    use super::*;
    use crate::forward::frame;

    #[test]
    fn the_revision_of_a_response_is_found() {
        let header = ResponseHeader {
            cluster_id: u64::MAX,
            member_id: u64::MAX,
            revision: 77,
            raft_term: 3,
        };
        let put = PutResponse { header: Some(header), ..PutResponse::default() };
        assert_eq!(revision_of(&frame(&put)), Some(77));
        assert_eq!(revision_of(&gzip::compress_frame(frame(&put))), Some(77));
        assert_eq!(revision_of(&gzip::compress_frame(frame(&put))[..20]), None);
        assert_eq!(revision_of(&frame(&PutResponse::default())), None);
        let blob = SnapshotResponse { blob: vec![1; 100].into(), ..SnapshotResponse::default() };
        assert_eq!(revision_of(&frame(&blob)), None);
        assert_eq!(revision_of(&frame(&put)[..20]), None);
    }
}
