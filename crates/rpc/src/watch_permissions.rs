//! The permissions of the watchers of a stream, and which of them were revoked.
//!
//! etcd checks the permission when a watcher is created. Here a watcher also ends when its user may
//! no longer read its keys. The watcher then receives no event of a later revision, because the
//! auth state is published before the changes of later entries. An expired token or a changed
//! password revokes no permission. A watcher that was created while auth was disabled stays open.

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
    /// Auth was disabled, so there is no permission to check.
    Unchecked,
    Permitted(WatchPermission),
    Refused(AuthRejection),
}

#[derive(Default)]
pub(crate) struct WatchPermissions {
    /// Watchers that are being created, in the order of the requests. Their responses have the same
    /// order.
    creating: VecDeque<Creation>,
    granted: HashMap<WatchId, WatchPermission>,
    /// Watchers that this stream has cancelled because their permission was revoked, and whose end
    /// the store has not reported yet.
    revoked: HashSet<WatchId>,
    /// Wakes the stream when users or roles change. `None` until a watcher needs a permission.
    next_change: Option<AuthChange>,
    /// The auth revision at which `granted` was last checked.
    checked_revision: u64,
}

impl WatchPermissions {
    pub(crate) fn creating(&mut self, server: &Server, creation: Creation) {
        if matches!(creation, Creation::Permitted(_)) && self.next_change.is_none() {
            self.next_change = Some(next_change(server.threads().auth_changes()));
        }
        self.creating.push_back(creation);
    }

    /// Records the ID of the next watcher in `creating`. Returns true if this watcher must end
    /// immediately, because users or roles have changed since its permission was checked.
    pub(crate) fn created(&mut self, server: &Server, id: WatchId) -> bool {
        let Some(Creation::Permitted(permission)) = self.creating.pop_front() else { return false };
        if permission.still_holds(server) {
            self.granted.insert(id, permission);
            return false;
        }
        self.revoked.insert(id);
        true
    }

    /// Removes the next watcher in `creating`, which was rejected. Returns the reason if the user
    /// had no permission, and `None` for any other reason.
    pub(crate) fn rejected(&mut self) -> Option<AuthRejection> {
        match self.creating.pop_front() {
            Some(Creation::Refused(refused)) => Some(refused),
            _ => None,
        }
    }

    /// Removes a watcher that has ended. Returns true if it ended because its permission was
    /// revoked.
    pub(crate) fn ended(&mut self, id: WatchId) -> bool {
        self.granted.remove(&id);
        self.revoked.remove(&id)
    }

    pub(crate) fn is_revoked(&self, id: WatchId) -> bool {
        self.revoked.contains(&id)
    }

    /// Returns the watchers that must end because users or roles have changed.
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
        // The wake-up may arrive later than the change, after events of later entries were read. So
        // check the auth revision itself.
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
            // The member has stopped. Its streams end for that reason.
            std::future::pending::<()>().await;
        }
        changes
    })
}
