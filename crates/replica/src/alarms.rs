//! The raised alarms and the requests that they forbid. In etcd: `server/etcdserver/api/v3alarm`.
//!
//! An alarm is a pair of a kind and a member. It is raised and disarmed through the log, so all
//! members start to reject the same requests at the same entry. See `docs/maintenance.md`.
//!
//! | raised alarm | rejected requests |
//! |---|---|
//! | `NOSPACE` | puts, transactions with a put in any list, new leases |
//! | `CORRUPT` | puts, deletes, all transactions in the log, compactions, new and revoked leases |
//!
//! Bucket `alarm` has an empty record for each raised alarm. The key of the record is the encoded
//! pair, in etcd's format. An alarm request with an unknown action is rejected before it is
//! proposed. But a log that etcd has written may contain such an entry. The entry is rejected when
//! it is applied, unless it names no kind of alarm. In etcd the entry changes nothing, but the
//! member that responds to the client exits.

use std::collections::BTreeSet;

use bytes::Bytes;
use clearlane_engine::Bucket;
use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::{AlarmMember, AlarmRequest, AlarmType, InternalRaftRequest};
use prost::Message as _;

use crate::applied_position::AppliedPosition;
use crate::apply::RequestRejection;
use crate::error::{Error, Result, try_scan};
use crate::quota;

/// Returns the request that raises NOSPACE. A member proposes the request if its store is over its
/// quota, or if its disk is nearly full.
pub fn no_space(member_id: u64) -> InternalRaftRequest {
    alarm(AlarmAction::Activate, AlarmType::Nospace, member_id)
}

pub fn disarm_no_space(member_id: u64) -> InternalRaftRequest {
    alarm(AlarmAction::Deactivate, AlarmType::Nospace, member_id)
}

/// Returns the request that raises CORRUPT. A leader proposes the request if it has found a corrupt
/// member. The id 0 means that members differ and it is unknown which of them are corrupt.
pub fn corrupt(member_id: u64) -> InternalRaftRequest {
    alarm(AlarmAction::Activate, AlarmType::Corrupt, member_id)
}

fn alarm(action: AlarmAction, kind: AlarmType, member_id: u64) -> InternalRaftRequest {
    let (action, alarm) = (action as i32, kind as i32);
    let alarm = Some(AlarmRequest { action, member_id, alarm });
    InternalRaftRequest { alarm, ..InternalRaftRequest::default() }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// The kind and the member of each raised alarm. A kind may be unknown to this version.
    raised: BTreeSet<(i32, u64)>,
}

impl Alarms {
    pub fn load(state: &dyn ReadTxn) -> Result<Alarms> {
        let mut raised = BTreeSet::new();
        try_scan(state, Bucket::Alarm, |key, _| {
            let alarm = AlarmMember::decode(key);
            let alarm = alarm.map_err(|error| Error::damaged("bucket alarm", error.to_string()))?;
            raised.insert((alarm.alarm, alarm.member_id));
            Ok(())
        })?;
        Ok(Alarms { raised })
    }

    pub fn iter(&self) -> impl Iterator<Item = AlarmMember> {
        self.raised.iter().map(|&(alarm, member_id)| AlarmMember { alarm, member_id })
    }

    pub fn is_raised(&self, kind: AlarmType) -> bool {
        self.iter().any(|alarm| alarm.alarm == kind as i32)
    }

    pub fn is_raised_by(&self, member: u64, kind: AlarmType) -> bool {
        self.raised.contains(&(kind as i32, member))
    }

    pub fn rejection(&self, request: &InternalRaftRequest) -> Option<RequestRejection> {
        if self.raised.is_empty() {
            return None;
        }
        let grows = request.lease_grant.is_some() || quota::cost(request) > 0;
        let writes = grows
            || request.delete_range.is_some()
            || request.txn.is_some()
            || request.compaction.is_some()
            || request.lease_revoke.is_some();
        if writes && self.is_raised(AlarmType::Corrupt) {
            return Some(RequestRejection::Corrupt);
        }
        (grows && self.is_raised(AlarmType::Nospace)).then_some(RequestRejection::NoSpace)
    }

    /// Removes the NOSPACE alarm of a removed member, whose disk no longer matters to the cluster.
    /// Returns whether the alarm had been raised.
    pub fn remove_nospace(
        &mut self,
        member_id: u64,
        txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    ) -> Result<bool> {
        let alarm = AlarmMember { alarm: AlarmType::Nospace as i32, member_id };
        let was_raised = self.raised.remove(&(alarm.alarm, member_id));
        if was_raised {
            txn.unset(Bucket::Alarm, &alarm.encode_to_vec())?;
        }
        Ok(was_raised)
    }

    /// Applies an alarm request. For `GET`, returns the raised alarms of the requested kind, or all
    /// raised alarms if the request names no kind. For `ACTIVATE` and `DEACTIVATE`, returns a list
    /// with the alarm that was raised or disarmed. This list is empty if the request names no kind,
    /// or if the alarm to disarm was not raised. Rejects an unknown action, unless the request
    /// names no kind: then the list is empty.
    pub fn apply(
        &mut self,
        request: &AlarmRequest,
        txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    ) -> Result<std::result::Result<Vec<AlarmMember>, RequestRejection>> {
        let alarm = AlarmMember { alarm: request.alarm, member_id: request.member_id };
        let pair = (alarm.alarm, alarm.member_id);
        let is_none = alarm.alarm == AlarmType::None as i32;
        let key = alarm.encode_to_vec();
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => {
                return Ok(Ok(self
                    .iter()
                    .filter(|of| is_none || of.alarm == alarm.alarm)
                    .collect()));
            }
            _ if is_none => return Ok(Ok(Vec::new())),
            Ok(AlarmAction::Activate) => {
                txn.set(Bucket::Alarm, &key, Bytes::new())?;
                self.raised.insert(pair);
            }
            Ok(AlarmAction::Deactivate) => {
                if !self.raised.remove(&pair) {
                    return Ok(Ok(Vec::new()));
                }
                txn.unset(Bucket::Alarm, &key)?;
            }
            Err(_) => return Ok(Err(RequestRejection::UnknownAlarmAction)),
        }
        Ok(Ok(vec![alarm]))
    }
}
