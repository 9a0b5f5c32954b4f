//! The [planted bugs](crate::bugs) about users: what they alter in entries, and what is put back
//! into a member's users.

use std::collections::BTreeMap;

use clearlane_proto::etcdserverpb::{InternalAuthenticateRequest, InternalRaftRequest};
use clearlane_server::AppliedPosition;
use clearlane_server::replica::{Applier, ApplyReady, ToApply};
use clearlane_wal::{Entry, EntryKind};
use prost::Message;

use crate::auth_model::ROOT;
use crate::bugs::Bug;

/// What a member's bug about users remembers in one incarnation.
#[derive(Debug, Default)]
pub struct AuthBug {
    /// By index: each that was assigned.
    tokens: BTreeMap<u64, InternalAuthenticateRequest>,
}

/// The store before a step.
pub type StoreBefore = std::sync::Arc<dyn clearlane_mvcc::WatchableKv<AppliedPosition>>;

impl AuthBug {
    /// What the member takes for the cluster's log.
    pub fn alter_committed(bug: Option<Bug>, work: &mut ToApply) {
        if bug == Some(Bug::RevocationUnnamed) {
            alter_entries(work, |request| {
                let is_revocation = request.lease_revoke.is_some();
                for header in request.header.iter_mut().filter(|_| is_revocation) {
                    // A lease client is never root.
                    if header.username == ROOT {
                        (header.username, header.auth_revision) = (String::new(), 0);
                    }
                }
            });
        }
    }

    /// What the apply half makes of it.
    pub fn alter_work(bug: Option<Bug>, work: &mut ToApply) {
        let is_named = |request: &InternalRaftRequest| {
            request.header.as_ref().is_some_and(|header| header.auth_revision != 0)
        };
        match bug {
            Some(Bug::PermissionOnlyProposed) => alter_entries(work, |request| {
                // What changes users is checked as ever.
                let is_named = is_named(request) && !clearlane_auth::is_change(request);
                for header in request.header.iter_mut().filter(|_| is_named) {
                    (header.username, header.auth_revision) = (ROOT.to_owned(), u64::MAX);
                }
            }),
            Some(Bug::AuthRevisionIgnored) => alter_entries(work, |request| {
                let is_named = is_named(request);
                for header in request.header.iter_mut().filter(|_| is_named) {
                    header.auth_revision = u64::MAX;
                }
            }),
            _ => {}
        }
    }

    pub fn after_step(
        &mut self,
        bug: Option<Bug>,
        (applier, before): (&Applier, &StoreBefore),
        ready: &ApplyReady,
        entries: &[Entry],
    ) {
        if bug == Some(Bug::AuthNotInstalled) && ready.new_store.is_some() {
            // The store that was replaced is in memory: it can be read.
            let _ = applier.auth.restore(&*before.begin_read());
        }
        for entry in entries.iter().filter(|_| bug == Some(Bug::TokensOutlivePasswords)) {
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

fn alter_entries(work: &mut ToApply, alter: impl Fn(&mut InternalRaftRequest)) {
    let ToApply::Entries(entries) = work else { return };
    for entry in entries.iter_mut().filter(|entry| entry.kind == EntryKind::Normal) {
        if let Ok(mut request) = InternalRaftRequest::decode(entry.data.clone())
            && request.header.is_some()
        {
            alter(&mut request);
            entry.data = request.encode_to_vec().into();
        }
    }
}
