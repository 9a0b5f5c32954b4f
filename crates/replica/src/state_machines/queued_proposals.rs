//! Proposals that wait for a leader while no leader is known, as in etcd. They also wait while
//! leadership is being transferred; etcd rejects them then. Queued proposals have no id yet and
//! raft has not seen them, so each is proposed at most once. At the limits below, further proposals
//! are rejected.

use std::collections::VecDeque;

use clearlane_proto::Message as _;
use clearlane_proto::etcdserverpb::InternalRaftRequest;

use super::RequestId;
use crate::apply::EvaluatedCompares;
use crate::membership::MemberChange;

const PROPOSALS_MAX: usize = 4096;
const BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(super) enum QueuedProposal {
    Request(Box<InternalRaftRequest>, Option<Box<EvaluatedCompares>>),
    MemberChange(MemberChange),
}

impl QueuedProposal {
    fn bytes(&self) -> usize {
        match self {
            QueuedProposal::Request(request, _) => request.encoded_len(),
            QueuedProposal::MemberChange(_) => 0,
        }
    }
}

/// The queue, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct QueuedProposals {
    proposals: VecDeque<(QueuedProposal, RequestId)>,
    bytes: usize,
}

impl QueuedProposals {
    pub(super) fn is_empty(&self) -> bool {
        self.proposals.is_empty()
    }

    /// Queues a proposal. Returns false if there is no capacity.
    pub(super) fn push(&mut self, proposal: QueuedProposal, request: RequestId) -> bool {
        let bytes = proposal.bytes();
        let has_room = self.proposals.len() < PROPOSALS_MAX
            && (self.bytes == 0 || self.bytes + bytes <= BYTES_MAX);
        if has_room {
            self.bytes += bytes;
            self.proposals.push_back((proposal, request));
        }
        has_room
    }

    pub(super) fn pop(&mut self) -> Option<(QueuedProposal, RequestId)> {
        let (proposal, request) = self.proposals.pop_front()?;
        self.bytes -= proposal.bytes();
        Some((proposal, request))
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        let gone = self.proposals.iter().position(|(_, of)| *of == request);
        if let Some((proposal, _)) = gone.and_then(|at| self.proposals.remove(at)) {
            self.bytes -= proposal.bytes();
        }
    }
}
