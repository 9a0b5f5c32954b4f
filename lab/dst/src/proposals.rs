//! Converts requests of clients to etcd's messages and back.
//!
//! The checkers decode the bytes of the log with this module instead of the product's code. The
//! members encode and decode entries with the product's code.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest, LeaseCheckpoint,
    LeaseCheckpointRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};
use clearlane_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest};
use prost::Message;

use crate::auth_model::{Access, AuthOp, KeySpan, NamedUser};
use crate::auth_proposals::{decode_auth_op, encode_auth_op};
use crate::history::Request;
use crate::lease_model::{LEASE_KEY_PREFIX, LeaseOp};

/// All keys of the clients have this prefix.
pub const CLIENT_KEY_PREFIX: &[u8] = b"k";
/// The exclusive end of the range of the clients' keys.
pub const CLIENT_KEYS_END: &[u8] = b"l";

/// The meaning of a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// A request of a client. It is never a read.
    Client(Request),
    /// An operation of a lease client or of the leader.
    Lease(LeaseOp),
    Auth(AuthOp),
    /// Compacts up to this revision.
    Compact(i64),
    /// The entry of a linearizable read in read mode `log`.
    LogRead,
    /// A member publishes its client URL.
    Publish {
        member: u64,
        url: String,
    },
}

pub fn range(key: Option<&str>, serializable: bool) -> RangeRequest {
    let (key, range_end) = match key {
        Some(key) => (key.to_owned().into(), Bytes::new()),
        None => (Bytes::from_static(CLIENT_KEY_PREFIX), Bytes::from_static(CLIENT_KEYS_END)),
    };
    RangeRequest { key, range_end, serializable, ..RangeRequest::default() }
}

pub fn encode(proposal: &Proposal) -> InternalRaftRequest {
    let mut out = InternalRaftRequest::default();
    match proposal {
        Proposal::Compact(revision) => {
            out.compaction = Some(CompactionRequest { revision: *revision, physical: false });
        }
        Proposal::LogRead => out.range = Some(RangeRequest::default()),
        Proposal::Publish { member, url } => {
            let (name, client_urls) = (format!("m{member}"), vec![url.clone()]);
            out.cluster_member_attr_set = Some(ClusterMemberAttrSetRequest {
                member_id: *member,
                member_attributes: Some(Attributes { name, client_urls }),
            });
        }
        Proposal::Client(request) => encode_request(request, &mut out),
        Proposal::Lease(op) => encode_lease_op(op, &mut out),
        Proposal::Auth(op) => encode_auth_op(op, &mut out),
    }
    out
}

fn encode_lease_op(op: &LeaseOp, out: &mut InternalRaftRequest) {
    match op {
        LeaseOp::Grant { id, ttl } => {
            out.lease_grant = Some(LeaseGrantRequest { id: *id, ttl: *ttl });
        }
        LeaseOp::Revoke(id) => out.lease_revoke = Some(LeaseRevokeRequest { id: *id }),
        LeaseOp::Checkpoint(checkpoints) => {
            let left = |(id, left): &(i64, i64)| LeaseCheckpoint { id: *id, remaining_ttl: *left };
            let checkpoints = checkpoints.iter().map(left).collect();
            out.lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        }
        LeaseOp::Put { key, lease } => out.put = Some(PutRequest { lease: *lease, ..put(key, "") }),
    }
}

fn encode_request(request: &Request, out: &mut InternalRaftRequest) {
    match request {
        Request::Read { key, serializable } => {
            out.range = Some(range(key.as_deref(), *serializable));
        }
        Request::Put { key, value } => {
            out.put = Some(PutRequest { prev_kv: true, ..put(key, value) });
        }
        Request::Delete { key } => {
            let key = key.clone().into();
            out.delete_range =
                Some(DeleteRangeRequest { key, prev_kv: true, ..DeleteRangeRequest::default() });
        }
        Request::CompareAndSwap { key, expected, value } => {
            let look = || request_op::Request::RequestRange(range(Some(key), false));
            let put = request_op::Request::RequestPut(put(key, value));
            let op = |request| RequestOp { request: Some(request) };
            out.txn = Some(TxnRequest {
                compare: vec![compare(key, expected.as_deref())],
                success: vec![op(look()), op(put)],
                failure: vec![op(look())],
            });
        }
    }
}

fn put(key: &str, value: &str) -> PutRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    PutRequest { key, value, ..PutRequest::default() }
}

/// Returns a compare that holds if the key has the value `expected`. If `expected` is `None`, the
/// compare holds if the key is absent.
fn compare(key: &str, expected: Option<&str>) -> Compare {
    let (target, union) = match expected {
        Some(value) => (CompareTarget::Value, TargetUnion::Value(value.to_owned().into())),
        None => (CompareTarget::Create, TargetUnion::CreateRevision(0)),
    };
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.to_owned().into(),
        target_union: Some(union),
        ..Compare::default()
    }
}

/// The meaning of an entry, and the ID and user in its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposed {
    pub id: u64,
    pub user: NamedUser,
    pub proposal: Proposal,
}

/// Decodes an entry. Returns `None` for an entry that nobody in the simulation proposes.
pub fn decode(data: &Bytes) -> Option<Proposed> {
    let message = InternalRaftRequest::decode(data.clone()).ok()?;
    let header = message.header.clone()?;
    let user = NamedUser { name: header.username, revision: header.auth_revision };
    Some(Proposed { id: header.id, user, proposal: decode_proposal(message)? })
}

fn decode_proposal(message: InternalRaftRequest) -> Option<Proposal> {
    if let Some(op) = decode_auth_op(&message) {
        return Some(Proposal::Auth(op));
    }
    if let Some(op) = decode_lease_op(&message) {
        return Some(Proposal::Lease(op));
    }
    if let Some(request) = message.cluster_member_attr_set {
        let url = request.member_attributes?.client_urls.pop()?;
        return Some(Proposal::Publish { member: request.member_id, url });
    }
    let InternalRaftRequest { put, delete_range, txn, compaction, range, .. } = message;
    Some(match (put, delete_range, txn, compaction, range) {
        (Some(put), None, None, None, None) => {
            Proposal::Client(Request::Put { key: text(&put.key)?, value: text(&put.value)? })
        }
        (None, Some(delete), None, None, None) if delete.range_end.is_empty() => {
            Proposal::Client(Request::Delete { key: text(&delete.key)? })
        }
        (None, None, Some(txn), None, None) => Proposal::Client(decode_swap(&txn)?),
        (None, None, None, Some(compaction), None) => Proposal::Compact(compaction.revision),
        (None, None, None, None, Some(range)) if range == RangeRequest::default() => {
            Proposal::LogRead
        }
        _ => return None,
    })
}

/// Returns the access to keys that the encoded form of a client's request needs. All writes also
/// return the previous record, so they need read access as well.
pub fn needs_of(request: &Request) -> Vec<(Access, KeySpan)> {
    let one = |key: &str| KeySpan::new(key.as_bytes(), b"");
    match request {
        Request::Read { key, .. } => {
            let RangeRequest { key, range_end, .. } = range(key.as_deref(), false);
            vec![(Access::Read, KeySpan::new(&key, &range_end))]
        }
        Request::Put { key, .. }
        | Request::Delete { key }
        | Request::CompareAndSwap { key, .. } => {
            vec![(Access::Write, one(key)), (Access::Read, one(key))]
        }
    }
}

fn decode_lease_op(message: &InternalRaftRequest) -> Option<LeaseOp> {
    let InternalRaftRequest { put, lease_grant, lease_revoke, lease_checkpoint, .. } = message;
    Some(match (put, lease_grant, lease_revoke, lease_checkpoint) {
        (Some(put), None, None, None) if put.key.starts_with(LEASE_KEY_PREFIX.as_bytes()) => {
            LeaseOp::Put { key: text(&put.key)?, lease: put.lease }
        }
        (None, Some(grant), None, None) => LeaseOp::Grant { id: grant.id, ttl: grant.ttl },
        (None, None, Some(revoke), None) => LeaseOp::Revoke(revoke.id),
        (None, None, None, Some(LeaseCheckpointRequest { checkpoints })) => {
            let left = |of: &LeaseCheckpoint| (of.id, of.remaining_ttl);
            LeaseOp::Checkpoint(checkpoints.iter().map(left).collect())
        }
        _ => return None,
    })
}

fn decode_swap(txn: &TxnRequest) -> Option<Request> {
    let [compare] = &txn.compare[..] else { return None };
    let [_, put] = &txn.success[..] else { return None };
    let request_op::Request::RequestPut(put) = put.request.as_ref()? else { return None };
    let expected = match compare.target_union.as_ref()? {
        TargetUnion::Value(value) => Some(text(value)?),
        TargetUnion::CreateRevision(0) => None,
        _ => return None,
    };
    (compare.key == put.key).then_some(())?;
    Some(Request::CompareAndSwap { key: text(&put.key)?, expected, value: text(&put.value)? })
}

fn text(bytes: &Bytes) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}
