//! Keys and values.

mod get;
mod keys;
mod stream;
mod txn;
mod write;

use clearlane_proto::etcdserverpb::ResponseHeader;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tonic::transport::Channel;

pub use get::{Get, GetReply, SortBy};
pub use keys::Keys;
pub(crate) use keys::from_keys;
pub use stream::RangeStream;
pub use txn::{Compare, CompareNumber, CompareValue, Op, OpReply, Txn, TxnReply};
pub use write::{Delete, DeleteReply, Put, PutReply};

/// The stub. Answers may be of any size: it was the caller that asked for so much.
fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// There always is one, but for the answers of old servers' corners.
pub(crate) fn header(header: Option<ResponseHeader>) -> ResponseHeader {
    header.unwrap_or_default()
}
