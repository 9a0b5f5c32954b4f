//! The table of peers: one entry for each other member. Entries are created and closed as members
//! are added and removed. If the peer URLs of a member change, a new entry replaces the old entry
//! of this member.
//!
//! A member that lags may be called by a member that it does not know yet. To catch up, the lagging
//! member must respond to the unknown one. So the table also keeps up to 16 unknown members. It
//! drops an unknown member when the lagging member has applied the change that added or removed the
//! unknown member.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use clearlane_replica::membership::Members;
use clearlane_server::threads::PeerTraffic;
use tokio::sync::mpsc::Receiver;

use super::PeerContext;
use super::remote_peer::Peer;
use super::stream;

pub(super) const UNKNOWN_MEMBERS_MAX: usize = 16;

/// The ID and the peer URLs of an unknown member.
pub(super) type UnknownMember = (u64, Vec<String>);

/// The table of peers. Threads that send messages read the table without a lock.
#[derive(Debug, Default)]
pub(super) struct PeerTable {
    peers: ArcSwap<BTreeMap<u64, Arc<Peer>>>,
}

impl PeerTable {
    pub(super) fn get(&self, id: u64) -> Option<Arc<Peer>> {
        self.peers.load().get(&id).cloned()
    }

    pub(super) fn traffic(&self) -> Vec<PeerTraffic> {
        self.peers.load().values().map(|link| link.traffic()).collect()
    }
}

#[derive(Debug)]
pub(super) struct PeerTableUpdater {
    context: PeerContext,
    unknown_members: BTreeMap<u64, Vec<String>>,
}

impl PeerTableUpdater {
    pub(super) fn new(context: &PeerContext) -> PeerTableUpdater {
        PeerTableUpdater { context: context.clone(), unknown_members: BTreeMap::new() }
    }

    /// Updates the table when the members change, and when an unknown member has called. Does not
    /// return while this member exists, and the future itself keeps the member alive. So the future
    /// ends only when the runtime's shutdown drops it.
    pub(super) async fn run(mut self, mut learned: Receiver<UnknownMember>) {
        let mut members = self.context.threads.watch_members();
        loop {
            let now = Arc::clone(&members.borrow_and_update());
            self.unknown_members.retain(|id, _| now.get(*id).is_none() && !now.is_removed(*id));
            self.update(&now);
            tokio::select! {
                changed = members.changed() => if changed.is_err() { return },
                Some((id, urls)) = learned.recv() => {
                    if self.unknown_members.len() < UNKNOWN_MEMBERS_MAX {
                        self.unknown_members.insert(id, urls);
                    }
                }
            }
        }
    }

    fn update(&self, members: &Members) {
        let own = self.context.threads.metadata().node_id;
        let known = members.iter().map(|member| (member.id, &member.peer_urls));
        let strangers = self.unknown_members.iter().map(|(id, urls)| (*id, urls));
        let wanted: BTreeMap<u64, &Vec<String>> =
            known.chain(strangers).filter(|(id, _)| *id != own).collect();
        let old = self.context.table.peers.load_full();
        let links = wanted.into_iter().map(|(id, urls)| {
            let same = old.get(&id).filter(|link| link.urls == *urls);
            (id, same.cloned().unwrap_or_else(|| self.start_peer(id, urls)))
        });
        let links: BTreeMap<u64, Arc<Peer>> = links.collect();
        let is_kept =
            |link: &Arc<Peer>| links.get(&link.id).is_some_and(|new| Arc::ptr_eq(new, link));
        let closed: Vec<_> = old.values().filter(|link| !is_kept(link)).cloned().collect();
        self.context.table.peers.store(Arc::new(links));
        for link in closed {
            link.close();
        }
    }

    fn start_peer(&self, id: u64, urls: &[String]) -> Arc<Peer> {
        let (link, urgent, long) = Peer::new(id, urls.to_vec());
        let link = Arc::new(link);
        for (queue, end) in [(stream::StreamKind::Urgent, urgent), (stream::StreamKind::Bulk, long)]
        {
            let task = stream::run_stream(self.context.clone(), Arc::clone(&link), queue, end);
            link.add_task(tokio::spawn(task).abort_handle());
        }
        link
    }
}
