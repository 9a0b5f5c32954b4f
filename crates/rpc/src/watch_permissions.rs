//! Which watchers of a stream were permitted to which user, and which are not any more.
//!
//! etcd asks for the permission when a watcher is created. Here a watcher also ends when its user
//! may not read its keys any more, before it gets an event of a later revision: the auth state is
//! published before the changes of later entries are. A token that expires, or a password that is
//! changed, takes no permission away. What was created while authentication was disabled stays.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use clearlane_auth::AuthRejection;
use clearlane_mvcc::watch::WatchId;
use clearlane_server::Server;
use tokio::sync::watch::Receiver;

pub(crate) struct WatchPermission {
    pub(crate) user: Arc<str>,
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
}

impl WatchPermission {
    fn still_holds(&self, server: &Server) -> bool {
        server.may_still_read(&self.user, &self.key, &self.range_end)
    }
}

type AuthChange = Pin<Box<dyn Future<Output = Receiver<u64>> + Send>>;

/// A watcher that is being created.
pub(crate) enum Creation {
    /// Authentication was disabled.
    Unchecked,
    Permitted(WatchPermission),
    Refused(AuthRejection),
}

#[derive(Default)]
pub(crate) struct WatchPermissions {
    /// In the order of the requests, which is that of their responses.
    creating: VecDeque<Creation>,
    granted: HashMap<WatchId, WatchPermission>,
    /// Cancelled here, and not yet by the store.
    revoked: HashSet<WatchId>,
    /// Wakes the stream. From the first watcher on that needed a permission.
    next_change: Option<AuthChange>,
    /// The auth revision at which `granted` was looked through.
    checked_revision: u64,
}

impl WatchPermissions {
    pub(crate) fn creating(&mut self, server: &Server, creation: Creation) {
        if matches!(creation, Creation::Permitted(_)) && self.next_change.is_none() {
            self.next_change = Some(next_change(server.threads().auth_changes()));
        }
        self.creating.push_back(creation);
    }

    /// Returns whether the watcher has to end at once: users or roles have changed since the
    /// permission was asked for.
    pub(crate) fn created(&mut self, server: &Server, id: WatchId) -> bool {
        let Some(Creation::Permitted(permission)) = self.creating.pop_front() else { return false };
        if permission.still_holds(server) {
            self.granted.insert(id, permission);
            return false;
        }
        self.revoked.insert(id);
        true
    }

    /// Returns why, if it was the permission.
    pub(crate) fn rejected(&mut self) -> Option<AuthRejection> {
        match self.creating.pop_front() {
            Some(Creation::Refused(refused)) => Some(refused),
            _ => None,
        }
    }

    /// Returns whether the watcher was ended because of its permission.
    pub(crate) fn ended(&mut self, id: WatchId) -> bool {
        self.granted.remove(&id);
        self.revoked.remove(&id)
    }

    pub(crate) fn is_revoked(&self, id: WatchId) -> bool {
        self.revoked.contains(&id)
    }

    /// Returns the watchers that have to end because users or roles have changed.
    pub(crate) fn poll_revoked(
        &mut self,
        server: &Server,
        context: &mut Context<'_>,
    ) -> Vec<WatchId> {
        let mut ended = Vec::new();
        while let Some(change) = &mut self.next_change
            && let Poll::Ready(changes) = change.as_mut().poll(context)
        {
            self.next_change = Some(next_change(changes));
        }
        // The wake-up comes after a step of entries; what a later entry has put may be read before.
        let revision = server.auth_revision();
        if self.checked_revision != revision && !self.granted.is_empty() {
            self.checked_revision = revision;
            let granted = self.granted.iter();
            let lost = granted.filter(|(_, permission)| !permission.still_holds(server));
            ended.extend(lost.map(|(id, _)| *id));
            for id in &ended {
                self.granted.remove(id);
                self.revoked.insert(*id);
            }
        }
        ended
    }
}

fn next_change(mut changes: Receiver<u64>) -> AuthChange {
    Box::pin(async move {
        if changes.changed().await.is_err() {
            // The member has stopped: its streams end otherwise.
            std::future::pending::<()>().await;
        }
        changes
    })
}
