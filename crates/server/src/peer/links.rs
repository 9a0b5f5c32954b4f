//! Which links there are: one to each member, made and closed as members come and go.
//!
//! A member may be called by one that it does not know: it is behind, and the other was added
//! meanwhile, or it has just joined and has not applied anything yet. It must be able to answer, or it
//! would stay behind. So strangers that belong to the cluster are kept, few of them, until the table of
//! members has them or says that they were removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use clearlane_member::membership::Members;
use clearlane_member::node::Traffic;
use tokio::sync::mpsc::Receiver;

use super::Context;
use super::lane;
use super::link::{Figures, Link};

/// So many strangers are remembered.
pub(super) const STRANGERS_MAX: usize = 16;

/// A member that nobody has heard of, and where it listens.
pub(super) type Stranger = (u64, Vec<String>);

/// The links, for whoever wants to send.
#[derive(Debug, Default)]
pub(super) struct Table {
    links: ArcSwap<BTreeMap<u64, Arc<Link>>>,
}

impl Table {
    pub(super) fn get(&self, id: u64) -> Option<Arc<Link>> {
        self.links.load().get(&id).cloned()
    }

    pub(super) fn figures(&self) -> Vec<Figures> {
        self.links.load().values().map(|link| link.figures()).collect()
    }

    pub(super) fn traffic(&self) -> Vec<Traffic> {
        self.links.load().values().map(|link| link.traffic()).collect()
    }

    pub(super) fn cut(&self, id: u64, is_cut: bool) {
        if let Some(link) = self.get(id) {
            link.cut(is_cut);
        }
    }
}

/// Keeps the table in line with the members.
#[derive(Debug)]
pub(super) struct Links {
    context: Context,
    strangers: BTreeMap<u64, Vec<String>>,
}

impl Links {
    pub(super) fn new(context: &Context) -> Links {
        Links { context: context.clone(), strangers: BTreeMap::new() }
    }

    /// Works as long as there is a member.
    pub(super) async fn keep(mut self, mut learned: Receiver<Stranger>) {
        let mut members = self.context.node.watch_members();
        loop {
            let now = Arc::clone(&members.borrow_and_update());
            self.strangers.retain(|id, _| now.get(*id).is_none() && !now.is_removed(*id));
            self.fit(&now);
            tokio::select! {
                changed = members.changed() => if changed.is_err() { return },
                Some((id, urls)) = learned.recv() => {
                    if self.strangers.len() < STRANGERS_MAX {
                        self.strangers.insert(id, urls);
                    }
                }
            }
        }
    }

    fn fit(&self, members: &Members) {
        let own = self.context.node.metadata().node_id;
        let known = members.iter().map(|member| (member.id, &member.peer_urls));
        let strangers = self.strangers.iter().map(|(id, urls)| (*id, urls));
        let wanted: BTreeMap<u64, &Vec<String>> =
            known.chain(strangers).filter(|(id, _)| *id != own).collect();
        let old = self.context.table.links.load_full();
        let links = wanted.into_iter().map(|(id, urls)| {
            let same = old.get(&id).filter(|link| link.urls == *urls);
            (id, same.cloned().unwrap_or_else(|| self.connect(id, urls)))
        });
        let links: BTreeMap<u64, Arc<Link>> = links.collect();
        let is_kept =
            |link: &Arc<Link>| links.get(&link.id).is_some_and(|new| Arc::ptr_eq(new, link));
        let closed: Vec<_> = old.values().filter(|link| !is_kept(link)).cloned().collect();
        self.context.table.links.store(Arc::new(links));
        for link in closed {
            link.close();
        }
    }

    fn connect(&self, id: u64, urls: &[String]) -> Arc<Link> {
        let (link, urgent, long) = Link::new(id, urls.to_vec());
        let link = Arc::new(link);
        for (queue, end) in [(lane::Kind::Urgent, urgent), (lane::Kind::Long, long)] {
            let task = lane::run(self.context.clone(), Arc::clone(&link), queue, end);
            link.owns(tokio::spawn(task).abort_handle());
        }
        link
    }
}
