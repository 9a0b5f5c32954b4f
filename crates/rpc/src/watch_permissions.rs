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
use clearlane_mvcc::watch::WatchId;
use clearlane_server::Server;
use tokio::sync::watch::Receiver;

#[derive(Clone)]
pub(crate) struct WatchPermission {
    pub(crate) user: Arc<str>,
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
}

type AuthChange = Pin<Box<dyn Future<Output = Receiver<u64>> + Send>>;

#[derive(Default)]
pub(crate) struct WatchPermissions {
    /// Of watchers that are being created, in the order of their requests; `None` if authentication
    /// was disabled.
    creating: VecDeque<Option<WatchPermission>>,
    granted: HashMap<WatchId, WatchPermission>,
    /// Cancelled here, and not yet by the store.
    revoked: HashSet<WatchId>,
    /// From the first watcher on that needed a permission.
    next_change: Option<AuthChange>,
}

impl WatchPermissions {
    pub(crate) fn creating(&mut self, server: &Server, permission: Option<WatchPermission>) {
        if permission.is_none() && self.next_change.is_none() {
            return;
        }
        if self.next_change.is_none() {
            self.next_change = Some(next_change(server.threads().auth_changes()));
        }
        self.creating.push_back(permission);
    }

    pub(crate) fn created(&mut self, id: WatchId) {
        if let Some(Some(permission)) = self.creating.pop_front() {
            self.granted.insert(id, permission);
        }
    }

    pub(crate) fn rejected(&mut self) {
        self.creating.pop_front();
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
            ended.extend(self.granted.iter().filter_map(|(id, permission)| {
                let WatchPermission { user, key, range_end } = permission;
                (!server.may_still_read(user, key, range_end)).then_some(*id)
            }));
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
