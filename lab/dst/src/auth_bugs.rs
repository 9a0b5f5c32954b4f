//! The [planted bugs](crate::bugs) that alter a member's log entries, or restore its old users,
//! roles or tokens. The other bugs that concern users are planted where they occur: in the
//! cluster's `user_requests` and `client_pool`.

use std::sync::Arc;

use clearlane_auth::is_change;
use clearlane_mvcc::WatchableKv;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RequestHeader};
use clearlane_replica::{AppliedPosition, Applier, ApplyReady, ToApply};
use clearlane_wal::{Entry, EntryKind};
use prost::Message;

use crate::auth_model::ROOT;
use crate::bugs::{Bug, PlantedBug};

/// A member's store, as it was before a step of the apply half. The step may replace this store
/// with the store of a snapshot.
pub type StoreBefore = Arc<dyn WatchableKv<AppliedPosition>>;

impl PlantedBug {
    /// Alters committed entries before the checkers see them. The bug alters them in the same way
    /// at every member.
    pub fn alter_committed(&self, work: &mut ToApply) {
        if self.is(Bug::RevocationUnnamed) {
            alter_headers(work, |request, header| {
                // A lease client is never root. So a revocation by root comes from the leader.
                if request.lease_revoke.is_some() && header.username == ROOT {
                    (header.username, header.auth_revision) = (String::new(), 0);
                }
            });
        }
    }

    /// Alters only the input of this member's apply half. The checkers see the original entries.
    pub fn alter_work(&self, work: &mut ToApply) {
        match self.bug {
            Some(Bug::PermissionOnlyProposed) => alter_headers(work, |request, header| {
                // Entries that change users or roles stay as they are, so their user is checked.
                if header.auth_revision != 0 && !is_change(request) {
                    (header.username, header.auth_revision) = (ROOT.to_owned(), u64::MAX);
                }
            }),
            Some(Bug::AuthRevisionIgnored) => alter_headers(work, |_, header| {
                if header.auth_revision != 0 {
                    header.auth_revision = u64::MAX;
                }
            }),
            _ => {}
        }
    }

    pub fn after_apply(
        &mut self,
        (applier, before): (&Applier, &StoreBefore),
        ready: &ApplyReady,
        entries: &[Entry],
    ) {
        if self.is(Bug::AuthNotInstalled) && ready.new_store.is_some() {
            // The replaced store is still in memory. The old users and roles are read from it.
            let _ = applier.auth.restore(&*before.begin_read());
        }
        let keeps_tokens = self.is(Bug::TokensOutlivePasswords);
        for entry in entries.iter().filter(|_| keeps_tokens) {
            let Ok(request) = InternalRaftRequest::decode(entry.data.clone()) else { continue };
            self.tokens.extend(request.authenticate.map(|token| (entry.index, token)));
            if let Some(changed) = request.auth_user_change_password {
                for (index, token) in self.tokens.iter().filter(|(_, of)| of.name == changed.name) {
                    let _ = applier.auth.authenticate(token, *index);
                }
            }
        }
    }
}

fn alter_headers(work: &mut ToApply, alter: impl Fn(&InternalRaftRequest, &mut RequestHeader)) {
    let ToApply::Entries(entries) = work else { return };
    for entry in entries.iter_mut().filter(|entry| entry.kind == EntryKind::Normal) {
        if let Ok(mut request) = InternalRaftRequest::decode(entry.data.clone())
            && let Some(mut header) = request.header.take()
        {
            alter(&request, &mut header);
            request.header = Some(header);
            entry.data = request.encode_to_vec().into();
        }
    }
}
