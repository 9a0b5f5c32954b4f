//! A namespace: clients see only the keys with a prefix, and without this prefix.
//!
//! | calls | what changes |
//! |---|---|
//! | KV, Watch | keys and ends of ranges; keys in responses and events |
//! | LeaseTimeToLive | keys outside of the namespace are omitted |
//! | Lock, Election | names and keys, so that two namespaces never share a lock |
//! | all others | nothing |
//!
//! The empty key stays empty, because a member must reject it.

use bytes::{Buf as _, Bytes, BytesMut};
use clearlane_proto::etcdserverpb::request_op::Request as Operation;
use clearlane_proto::etcdserverpb::response_op::Response as Outcome;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, LeaseTimeToLiveResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, RequestOp, TxnRequest, TxnResponse,
    WatchCreateRequest,
};
use clearlane_proto::mvccpb::{Event, KeyValue};
use clearlane_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ResignRequest,
};
use clearlane_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use clearlane_proto::{Message, nested};
use tonic::Status;

use crate::cache::range::end_of_prefix;
use crate::forward::{frame, message_of};
use crate::frames::map_frames;

#[derive(Clone, Debug)]
pub struct Namespace {
    prefix: Bytes,
}

/// Changes one response message.
type ChangeMessage = fn(&Namespace, Bytes) -> Result<Bytes, Status>;

impl Namespace {
    /// Returns `None` for the empty prefix.
    pub fn new(prefix: &str) -> Option<Namespace> {
        (!prefix.is_empty()).then(|| Namespace { prefix: prefix.to_owned().into() })
    }

    fn add(&self, key: &mut Bytes) {
        let mut long = BytesMut::with_capacity(self.prefix.len() + key.len());
        long.extend_from_slice(&self.prefix);
        long.extend_from_slice(key);
        *key = long.freeze();
    }

    fn remove(&self, key: &mut Bytes) {
        if key.starts_with(&self.prefix) {
            key.advance(self.prefix.len());
        }
    }

    fn add_range(&self, key: &mut Bytes, end: &mut Bytes) {
        if key.is_empty() {
            return;
        }
        self.add(key);
        self.add_end(end);
    }

    fn add_end(&self, end: &mut Bytes) {
        match &end[..] {
            [] => {}
            [0] => *end = end_of_prefix(&self.prefix).map_or(Bytes::from_static(&[0]), Bytes::from),
            _ => self.add(end),
        }
    }

    pub(crate) fn add_to_range(&self, request: &mut RangeRequest) {
        self.add_range(&mut request.key, &mut request.range_end);
    }

    pub(crate) fn add_to_watch(&self, create: &mut WatchCreateRequest) {
        if create.key.is_empty() {
            create.key = Bytes::from_static(&[0]);
            // The key of one NUL byte, and everything after it: the whole namespace.
            if create.range_end[..] == [0] {
                create.key.clear();
            }
        }
        self.add(&mut create.key);
        self.add_end(&mut create.range_end);
    }

    pub(crate) fn remove_from_events(&self, events: &mut [Event]) {
        for event in events {
            self.remove_from_key(event.kv.as_mut());
            self.remove_from_key(event.prev_kv.as_mut());
        }
    }

    pub(crate) fn remove_from_range(&self, response: &mut RangeResponse) {
        self.remove_from_keys(&mut response.kvs);
    }

    fn remove_from_keys(&self, keys: &mut [KeyValue]) {
        keys.iter_mut().for_each(|record| self.remove(&mut record.key));
    }

    fn remove_from_key(&self, record: Option<&mut KeyValue>) {
        if let Some(record) = record {
            self.remove(&mut record.key);
        }
    }

    fn add_to_put(&self, request: &mut PutRequest) {
        if !request.key.is_empty() {
            self.add(&mut request.key);
        }
    }

    fn add_to_txn(&self, txn: &mut TxnRequest) {
        for compare in &mut txn.compare {
            self.add_range(&mut compare.key, &mut compare.range_end);
        }
        txn.success.iter_mut().chain(&mut txn.failure).for_each(|it| self.add_to_operation(it));
    }

    fn add_to_operation(&self, operation: &mut RequestOp) {
        match &mut operation.request {
            Some(Operation::RequestRange(range)) => self.add_to_range(range),
            Some(Operation::RequestPut(put)) => self.add_to_put(put),
            Some(Operation::RequestDeleteRange(delete)) => {
                self.add_range(&mut delete.key, &mut delete.range_end);
            }
            Some(Operation::RequestTxn(txn)) => self.add_to_txn(txn),
            None => {}
        }
    }

    fn remove_from_txn(&self, response: &mut TxnResponse) {
        for outcome in &mut response.responses {
            match &mut outcome.response {
                Some(Outcome::ResponseRange(range)) => self.remove_from_range(range),
                Some(Outcome::ResponsePut(put)) => self.remove_from_key(put.prev_kv.as_mut()),
                Some(Outcome::ResponseDeleteRange(delete)) => {
                    self.remove_from_keys(&mut delete.prev_kvs);
                }
                Some(Outcome::ResponseTxn(txn)) => self.remove_from_txn(txn),
                None => {}
            }
        }
    }

    fn add_to_leader(&self, leader: Option<&mut LeaderKey>) {
        if let Some(leader) = leader {
            self.add(&mut leader.name);
            self.add(&mut leader.key);
        }
    }

    /// Changes the request message of a call. `body` is its frame.
    pub(crate) fn change_request(&self, path: &str, body: &Bytes) -> Result<Bytes, Status> {
        let change: fn(&Namespace, Bytes) -> Result<Bytes, Status> = match path {
            "/etcdserverpb.KV/Range" | "/etcdserverpb.KV/RangeStream" => {
                |namespace, message| changed(message, |request| namespace.add_to_range(request))
            }
            "/etcdserverpb.KV/Put" => {
                |namespace, message| changed(message, |request| namespace.add_to_put(request))
            }
            "/etcdserverpb.KV/DeleteRange" => |namespace, message| {
                changed(message, |request: &mut DeleteRangeRequest| {
                    namespace.add_range(&mut request.key, &mut request.range_end);
                })
            },
            "/etcdserverpb.KV/Txn" => |namespace, message| {
                // Deeply nested transactions have their own decoder.
                let mut txn = nested::decode_txn(message).map_err(|_| malformed())?;
                namespace.add_to_txn(&mut txn);
                Ok(frame(&txn))
            },
            "/v3lockpb.Lock/Lock" => |namespace, message| {
                changed(message, |request: &mut LockRequest| namespace.add(&mut request.name))
            },
            "/v3lockpb.Lock/Unlock" => |namespace, message| {
                changed(message, |request: &mut UnlockRequest| namespace.add(&mut request.key))
            },
            "/v3electionpb.Election/Campaign" => |namespace, message| {
                changed(message, |request: &mut CampaignRequest| namespace.add(&mut request.name))
            },
            "/v3electionpb.Election/Leader" | "/v3electionpb.Election/Observe" => {
                |namespace, message| {
                    changed(message, |request: &mut LeaderRequest| namespace.add(&mut request.name))
                }
            }
            "/v3electionpb.Election/Proclaim" => |namespace, message| {
                changed(message, |request: &mut ProclaimRequest| {
                    namespace.add_to_leader(request.leader.as_mut());
                })
            },
            "/v3electionpb.Election/Resign" => |namespace, message| {
                changed(message, |request: &mut ResignRequest| {
                    namespace.add_to_leader(request.leader.as_mut());
                })
            },
            _ => return Ok(body.clone()),
        };
        change(self, message_of(body).ok_or_else(malformed)?)
    }

    /// Changes the messages of a response.
    pub(crate) fn change_response(&self, path: &str, body: tonic::body::Body) -> tonic::body::Body {
        let change: ChangeMessage = match path {
            "/etcdserverpb.KV/Range" => |namespace, message| {
                changed(message, |response| namespace.remove_from_range(response))
            },
            "/etcdserverpb.KV/RangeStream" => |namespace, message| {
                changed(message, |response: &mut RangeStreamResponse| {
                    if let Some(part) = &mut response.range_response {
                        namespace.remove_from_range(part);
                    }
                })
            },
            "/etcdserverpb.KV/Put" => |namespace, message| {
                changed(message, |response: &mut PutResponse| {
                    namespace.remove_from_key(response.prev_kv.as_mut());
                })
            },
            "/etcdserverpb.KV/DeleteRange" => |namespace, message| {
                changed(message, |response: &mut DeleteRangeResponse| {
                    namespace.remove_from_keys(&mut response.prev_kvs);
                })
            },
            "/etcdserverpb.KV/Txn" => |namespace, message| {
                changed(message, |response| namespace.remove_from_txn(response))
            },
            "/etcdserverpb.Lease/LeaseTimeToLive" => |namespace, message| {
                changed(message, |response: &mut LeaseTimeToLiveResponse| {
                    response.keys.retain(|key| key.starts_with(&namespace.prefix));
                    response.keys.iter_mut().for_each(|key| namespace.remove(key));
                })
            },
            "/v3lockpb.Lock/Lock" => |namespace, message| {
                changed(message, |response: &mut LockResponse| namespace.remove(&mut response.key))
            },
            "/v3electionpb.Election/Campaign" => |namespace, message| {
                changed(message, |response: &mut CampaignResponse| {
                    if let Some(leader) = &mut response.leader {
                        namespace.remove(&mut leader.name);
                        namespace.remove(&mut leader.key);
                    }
                })
            },
            "/v3electionpb.Election/Leader" | "/v3electionpb.Election/Observe" => {
                |namespace, message| {
                    changed(message, |response: &mut LeaderResponse| {
                        namespace.remove_from_key(response.kv.as_mut());
                    })
                }
            }
            _ => return body,
        };
        let namespace = self.clone();
        map_frames(body, usize::MAX, move |framed| {
            change(&namespace, message_of(&framed).ok_or_else(malformed)?)
        })
    }
}

fn malformed() -> Status {
    Status::internal("grpc: error unmarshalling request")
}

/// Decodes a message, changes it, and returns its frame.
fn changed<M: Message + Default>(
    message: Bytes,
    change: impl FnOnce(&mut M),
) -> Result<Bytes, Status> {
    let mut decoded = M::decode(message).map_err(|_| malformed())?;
    change(&mut decoded);
    Ok(frame(&decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace::new("p/").unwrap()
    }

    fn range(key: &'static str, end: &'static str) -> (Bytes, Bytes) {
        let mut request =
            RangeRequest { key: key.into(), range_end: end.into(), ..RangeRequest::default() };
        namespace().add_to_range(&mut request);
        (request.key, request.range_end)
    }

    #[test]
    fn ranges_stay_inside() {
        assert_eq!(range("a", ""), ("p/a".into(), "".into()));
        assert_eq!(range("a", "b"), ("p/a".into(), "p/b".into()));
        assert_eq!(range("\0", "\0"), ("p/\0".into(), "p0".into()));
        assert_eq!(range("", "\0"), ("".into(), "\0".into()));
    }

    #[test]
    fn a_nested_transaction_is_changed_to_the_bottom() {
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        let wrap = |operation| RequestOp { request: Some(operation) };
        let inner =
            TxnRequest { success: vec![wrap(Operation::RequestPut(put))], ..TxnRequest::default() };
        let outer = TxnRequest {
            failure: vec![wrap(Operation::RequestTxn(inner)), RequestOp { request: None }],
            ..TxnRequest::default()
        };
        let body = namespace().change_request("/etcdserverpb.KV/Txn", &frame(&outer)).unwrap();
        let txn = TxnRequest::decode(message_of(&body).unwrap()).unwrap();
        let Some(Operation::RequestTxn(inner)) = &txn.failure[0].request else { panic!("{txn:?}") };
        let Some(Operation::RequestPut(put)) = &inner.success[0].request else { panic!("{txn:?}") };
        assert_eq!(put.key, "p/k");
        assert_eq!(txn.failure[1].request, None);
    }
}
