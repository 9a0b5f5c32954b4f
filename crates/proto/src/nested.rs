//! Decodes nested transactions, the only recursive message of the API.
//!
//! prost decodes up to 100 levels of messages. Each nested transaction takes two levels, because it
//! is inside an operation. etcd's limit on operations allows 129 nested transactions. So if prost
//! rejects a message, this module decodes its transactions level by level, up to a nesting of
//! [`TXNS_DEEP_MAX`] transactions. prost decodes all other parts of the message, with its own
//! limit. The two limits bound the stack that a hostile message can use.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::{Compare, InternalRaftRequest, RequestOp, TxnRequest};

/// Maximum number of nested transactions, including the outermost. etcd accepts this number with
/// its default of 128 operations: each of the 128 operations can contain the next transaction, and
/// the innermost transaction can be empty.
pub const TXNS_DEEP_MAX: usize = 129;

/// The field number of a transaction in [`InternalRaftRequest`].
const IN_RAFT_REQUEST: u32 = 6;
/// The field number of a transaction in [`RequestOp`].
const IN_OPERATION: u32 = 4;

/// The error if a message with a transaction cannot be decoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("more than {TXNS_DEEP_MAX} nested transactions")]
    TooDeep,
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

pub fn decode_txn(bytes: Bytes) -> Result<TxnRequest, Error> {
    // Nearly every transaction is flat, so prost decodes it. A transaction that prost rejects is
    // malformed or too deep for prost. The slower decoder accepts it only if it was too deep for
    // prost.
    TxnRequest::decode(bytes.clone()).or_else(|_| txn(bytes, TXNS_DEEP_MAX))
}

pub fn decode_raft_request(bytes: Bytes) -> Result<InternalRaftRequest, Error> {
    InternalRaftRequest::decode(bytes.clone()).or_else(|_| raft_request(bytes))
}

fn raft_request(bytes: Bytes) -> Result<InternalRaftRequest, Error> {
    let (mut others, mut nested) = (BytesMut::new(), None);
    for field in Fields(bytes) {
        let field = field?;
        if field.is_message(IN_RAFT_REQUEST) {
            nested = Some(txn(field.message()?, TXNS_DEEP_MAX)?)
        } else {
            others.put(field.bytes)
        }
    }
    Ok(InternalRaftRequest { txn: nested, ..InternalRaftRequest::decode(others)? })
}

fn txn(bytes: Bytes, deep_max: usize) -> Result<TxnRequest, Error> {
    let deep_max = deep_max.checked_sub(1).ok_or(Error::TooDeep)?;
    let mut txn = TxnRequest::default();
    for field in Fields(bytes) {
        let field = field?;
        match (field.number, field.wire_type) {
            (1, WireType::LengthDelimited) => txn.compare.push(Compare::decode(field.message()?)?),
            (2, WireType::LengthDelimited) => {
                txn.success.push(operation(field.message()?, deep_max)?)
            }
            (3, WireType::LengthDelimited) => {
                txn.failure.push(operation(field.message()?, deep_max)?)
            }
            // prost rejects a known field with a wrong type, and ignores an unknown field.
            _ => txn.merge(field.bytes)?,
        }
    }
    Ok(txn)
}

/// Decodes one operation. If its only field is a transaction, that transaction may be deeper than
/// prost's limit. prost decodes every other operation. An encoder writes at most one field, because
/// the fields form a oneof.
fn operation(bytes: Bytes, deep_max: usize) -> Result<RequestOp, Error> {
    let mut fields = Fields(bytes.clone());
    match (fields.next().transpose()?, fields.0.is_empty()) {
        (Some(field), true) if field.is_message(IN_OPERATION) => {
            let nested = txn(field.message()?, deep_max)?;
            Ok(RequestOp { request: Some(Request::RequestTxn(nested)) })
        }
        _ => Ok(RequestOp::decode(bytes)?),
    }
}

struct Fields(Bytes);

struct Field {
    number: u32,
    wire_type: WireType,
    /// The encoded field: first the number and the wire type, then the value.
    bytes: Bytes,
}

impl Field {
    fn is_message(&self, number: u32) -> bool {
        (self.number, self.wire_type) == (number, WireType::LengthDelimited)
    }

    fn message(&self) -> Result<Bytes, DecodeError> {
        let (mut bytes, mut message) = (self.bytes.clone(), Bytes::new());
        encoding::decode_key(&mut bytes)?;
        encoding::bytes::merge(self.wire_type, &mut message, &mut bytes, DecodeContext::default())?;
        Ok(message)
    }
}

impl Iterator for Fields {
    type Item = Result<Field, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut rest = self.0.clone();
        let skipped = encoding::decode_key(&mut rest).and_then(|(number, wire_type)| {
            encoding::skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
            Ok((number, wire_type))
        });
        Some(skipped.map(|(number, wire_type)| {
            let bytes = self.0.split_to(self.0.len() - rest.remaining());
            Field { number, wire_type, bytes }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{PutRequest, RequestHeader};

    fn deep(txns: usize) -> TxnRequest {
        let op = |request| TxnRequest {
            compare: vec![Compare { key: "k".into(), ..Compare::default() }],
            success: vec![RequestOp { request: Some(request) }],
            failure: Vec::new(),
        };
        let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
        (1..txns).fold(op(Request::RequestPut(put)), |txn, _| op(Request::RequestTxn(txn)))
    }

    fn entry(txn: TxnRequest) -> InternalRaftRequest {
        let header = Some(RequestHeader { id: 7, ..RequestHeader::default() });
        InternalRaftRequest { header, txn: Some(txn), ..InternalRaftRequest::default() }
    }

    #[test]
    fn as_deep_as_etcd_takes_and_no_deeper() {
        for txns in [1, 49, 50, 51, TXNS_DEEP_MAX] {
            assert_eq!(decode_txn(deep(txns).encode_to_vec().into()), Ok(deep(txns)), "{txns}");
            let entry = entry(deep(txns));
            assert_eq!(decode_raft_request(entry.encode_to_vec().into()), Ok(entry), "{txns}");
        }
        let too_deep = deep(TXNS_DEEP_MAX + 1);
        assert_eq!(decode_txn(too_deep.encode_to_vec().into()), Err(Error::TooDeep));
        assert_eq!(
            decode_raft_request(entry(too_deep).encode_to_vec().into()),
            Err(Error::TooDeep)
        );
    }

    /// Checks that a message with 200,000 levels is rejected and does not overflow the stack. The
    /// message consists only of headers, and is shorter than the longest request, 1.5 MB.
    #[test]
    fn a_hostile_message_is_refused_without_following_it() {
        // The bytes are built from the innermost message outwards, so they are in reverse order.
        let mut bytes = Vec::new();
        for number in [IN_OPERATION, 2].into_iter().cycle().take(200_000) {
            let mut head = Vec::new();
            encoding::encode_key(number, WireType::LengthDelimited, &mut head);
            encoding::encode_varint(bytes.len() as u64, &mut head);
            bytes.extend(head.into_iter().rev());
        }
        bytes.reverse();
        assert_eq!(decode_txn(bytes.into()), Err(Error::TooDeep));
        // The start of a group is one byte and also opens a level. prost limits this nesting.
        let groups = Bytes::from(vec![0x7b; 1 << 20]);
        assert!(matches!(decode_txn(groups.clone()), Err(Error::Malformed(_))));
        assert!(matches!(decode_raft_request(groups), Err(Error::Malformed(_))));
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let bytes = Bytes::from(entry(deep(60)).encode_to_vec());
        for length in 0..bytes.len() {
            let cut = decode_raft_request(bytes.slice(..length));
            assert!(cut.is_err() || cut != Ok(entry(deep(60))), "{length}");
        }
    }
}
