//! Finds the pages that a state contains. Most leaves of etcd's buckets are not read: all leaves of
//! a tree have the same depth, so the first child of a branch shows whether all its children are
//! leaves. These leaves contain no buckets, so nothing is below them.

use crate::bolt::page::{Page, PageId};
use crate::bolt::snapshot::BoltSnapshot;
use crate::bolt::tree::{BucketHead, BucketRoot};
use crate::bolt::walk::PageSet;
use crate::error::Result;

/// Returns the ids of all pages in the state, without the ids of their overflow pages.
pub(super) fn heads(snapshot: &BoltSnapshot) -> Result<PageSet> {
    let meta = snapshot.committed.meta;
    let heads = PageSet::new(meta.high_water);
    let mut reach = Reach { snapshot, high_water: meta.high_water, heads };
    reach.add_tree(meta.root, true)?;
    Ok(reach.heads)
}

struct Reach<'s> {
    snapshot: &'s BoltSnapshot,
    high_water: PageId,
    heads: PageSet,
}

impl Reach<'_> {
    /// Adds a tree. If `has_buckets`, its leaves may contain buckets, so they are read as well.
    fn add_tree(&mut self, id: PageId, has_buckets: bool) -> Result<()> {
        self.add(id)?;
        let page = self.read(id)?;
        if page.is_leaf() {
            return if has_buckets { self.add_buckets(&page) } else { Ok(()) };
        }
        let mut children = (0..page.count()).map(|index| page.child(index));
        if !has_buckets && self.read(page.child(0))?.is_leaf() {
            return children.try_for_each(|child| self.add(child));
        }
        children.try_for_each(|child| self.add_tree(child, has_buckets))
    }

    fn add_buckets(&mut self, leaf: &Page) -> Result<()> {
        let store = &self.snapshot.store;
        for index in (0..leaf.count()).filter(|index| leaf.is_bucket(*index)) {
            let head = BucketHead::parse(&leaf.shared_value(index));
            let head = head.map_err(|damage| damage.in_file(&store.pager.path()))?;
            if let BucketRoot::Stored(root) = head.root {
                self.add_tree(root, store.has_foreign_buckets)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, id: PageId) -> Result<()> {
        if id >= self.high_water {
            let pager = &self.snapshot.store.pager;
            return Err(pager.damaged(id, "is after the last page"));
        }
        self.heads.insert(id);
        Ok(())
    }

    fn read(&self, id: PageId) -> Result<Page> {
        self.snapshot.store.pager.page_without_keeping(id)
    }
}
