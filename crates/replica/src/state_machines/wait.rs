//! The proposals that wait for their entry to be applied. In etcd: `wait`.
//!
//! The raft loop registers a request before raft has its proposal. The apply loop removes the
//! request when the entry is applied; the raft loop removes it earlier if the request is cancelled
//! or the proposal is rejected. So a second outcome for the entry finds no request.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::RequestId;
use crate::apply::EvaluatedCompares;

/// Maps an entry's id to its request, and the reverse. The id is in the entry's header, or in the
/// change of members.
#[derive(Debug, Default)]
pub struct Wait {
    tables: Mutex<WaitTables>,
}

#[derive(Debug, Default)]
struct WaitTables {
    requests: HashMap<u64, WaitingRequest>,
    entries: HashMap<RequestId, u64>,
}

#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) id: RequestId,
    pub(super) compares: Option<Box<EvaluatedCompares>>,
}

impl Wait {
    pub(super) fn register(&self, entry: u64, request: WaitingRequest) {
        let mut tables = self.tables.lock();
        tables.entries.insert(request.id, entry);
        tables.requests.insert(entry, request);
    }

    pub(super) fn remove(&self, entry: u64) -> Option<WaitingRequest> {
        let mut tables = self.tables.lock();
        let request = tables.requests.remove(&entry)?;
        tables.entries.remove(&request.id);
        Some(request)
    }

    /// Removes a request. Returns whether it was waiting.
    pub(super) fn cancel(&self, request: RequestId) -> bool {
        let mut tables = self.tables.lock();
        let entry = tables.entries.remove(&request);
        entry.is_some_and(|entry| tables.requests.remove(&entry).is_some())
    }

    pub(super) fn request_of(&self, entry: u64) -> Option<RequestId> {
        self.tables.lock().requests.get(&entry).map(|request| request.id)
    }

    pub fn entry_of(&self, request: RequestId) -> Option<u64> {
        self.tables.lock().entries.get(&request).copied()
    }

    pub fn len(&self) -> usize {
        self.tables.lock().requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
