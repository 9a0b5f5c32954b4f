//! Keys and values.

mod get;
mod keys;
mod stream;
mod txn;
mod write;

use clearlane_proto::etcdserverpb::ResponseHeader;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tonic::transport::Channel;

pub use get::{Get, GetReply};
pub use keys::Keys;
pub use stream::RangeStream;
pub use txn::{Compare, CompareWith, Op, OpReply, Txn, TxnReply};
pub use write::{Delete, DeleteReply, Put, PutReply};

/// Returns a client without a limit on the size of responses, because each request determines the
/// size of its response.
fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Returns the header, or an empty header if there is none. Some old servers omit it.
pub(crate) fn header(header: Option<ResponseHeader>) -> ResponseHeader {
    header.unwrap_or_default()
}
