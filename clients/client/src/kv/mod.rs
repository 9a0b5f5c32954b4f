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

/// Without a limit on the size of answers: the request says how much is wanted.
fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Some old servers leave it out.
pub(crate) fn header(header: Option<ResponseHeader>) -> ResponseHeader {
    header.unwrap_or_default()
}
