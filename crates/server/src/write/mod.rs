//! Writes: from a request to an entry of the log, and the wait for its response.
//!
//! A write is validated, gets the name of its user, is checked against the quota, and is sent to
//! the raft loop. Its response arrives when this member has applied the entry:
//! `docs/write-path.md`.

mod compares_ahead;
pub(crate) mod txn;

use std::future::Future;
use std::time::Instant;

use clearlane_proto::etcdserverpb::{
    AlarmType, CompactionRequest, CompactionResponse, InternalRaftRequest, ResponseHeader,
};
use clearlane_raft::read_index::RequestIdGenerator;
use clearlane_replica::apply::{
    AppliedResponse, EvaluatedCompares, PartialResponse, RequestRejection, check,
};
use clearlane_replica::{Proposal, RequestError, alarms, quota};

use crate::handle::Server;

impl Server {
    pub fn propose<P: Proposal>(
        &self,
        request: P,
    ) -> impl Future<Output = Result<P::Response, RequestError>> + Send {
        // The struct is large, because it has a field for every kind of request. So only the box is
        // moved.
        let request = Box::new(request.into_request());
        async move {
            let response = self.propose_boxed(request, None).await?.into_whole();
            P::response_of(match response {
                Ok(response) => response,
                Err(response) => Box::pin(self.read_whole(response)).await?,
            })
        }
    }

    pub(crate) async fn propose_boxed(
        &self,
        mut request: Box<InternalRaftRequest>,
        compares: Option<Box<EvaluatedCompares>>,
    ) -> Result<PartialResponse, RequestError> {
        let header = request.header.get_or_insert_default();
        header.id = placeholder_id(self.threads().metadata().node_id);
        check(&request, &self.limits())?;
        if self.threads().auth().is_enabled() {
            Box::pin(self.name_user(&mut request)).await?;
            check::entry_size(&request, &self.limits())?;
        }
        self.check_quota(&request).await?;
        let started = Instant::now();
        let proposed = self.requests().send_proposal(request, compares).await;
        let mut response = proposed.map_err(|error| self.explain_timeout(error, started))?;
        self.fill_header(header_mut(response.response_mut()));
        Ok(response)
    }

    /// Checks whether the quota and the disk have space for the request. If the request exceeds the
    /// quota, the member proposes the alarm NOSPACE before the client gets the error, unless the
    /// alarm is already raised.
    async fn check_quota(&self, request: &InternalRaftRequest) -> Result<(), RequestError> {
        let (cost, size) = (quota::cost(request), self.threads().sizes().size());
        if cost == 0 {
            return Ok(());
        }
        // If the disk is low, the raft loop raises the alarm.
        if self.threads().is_disk_low() {
            return Err(RequestRejection::NoSpace.into());
        }
        if self.threads().quota().allows(size, cost) {
            return Ok(());
        }
        let member = self.threads().metadata().node_id;
        if !self.threads().alarms().is_raised_by(member, AlarmType::Nospace) {
            // If this proposal is lost, the next rejected request proposes the alarm again.
            let _ = self.requests().send_proposal(Box::new(alarms::no_space(member)), None).await;
        }
        Err(RequestRejection::NoSpace.into())
    }

    /// Compacts the store. If `physical` is set in the request, waits until the old records have
    /// been removed. Otherwise their removal is only scheduled.
    pub async fn compact(
        &self,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, RequestError> {
        let (at, is_physical) = (request.revision, request.physical);
        let reply = self.propose(request).await?;
        if is_physical {
            // `wait_for` cannot fail: `self` keeps the sender. So the wait does not end when the
            // member stops.
            let mut compacted = self.threads().compacted();
            let _ = self.within_deadline(compacted.wait_for(|done| *done >= at)).await?;
        }
        Ok(reply)
    }
}

/// Returns an ID whose encoding is as long as the ID that the request gets when it is proposed.
fn placeholder_id(member: u64) -> u64 {
    RequestIdGenerator::new(member, u64::MAX).last()
}

fn header_mut(reply: &mut AppliedResponse) -> &mut Option<ResponseHeader> {
    match reply {
        AppliedResponse::Put(response) => &mut response.header,
        AppliedResponse::DeleteRange(response) => &mut response.header,
        AppliedResponse::Range(response) => &mut response.header,
        AppliedResponse::Txn(response) => &mut response.header,
        AppliedResponse::Compact(response) => &mut response.header,
        AppliedResponse::Alarm(response) => &mut response.header,
        AppliedResponse::Downgrade(response) => &mut response.header,
        AppliedResponse::Auth(header) => header,
        AppliedResponse::Authenticate(response) => &mut response.header,
        AppliedResponse::LeaseGrant(response) => &mut response.header,
        AppliedResponse::LeaseRevoke(response) => &mut response.header,
        AppliedResponse::LeaseCheckpoint(response) => &mut response.header,
    }
}
