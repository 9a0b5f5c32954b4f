//! A commit: changed trees become new pages, and a meta page makes them the newest state.
//!
//! ```text
//!   merge and split nodes ─▶ new pages, checksum table ─▶ sync ─▶ meta page ─▶ sync
//!                            no page that is in use          ▲
//!                            is written                      └ the commit is there, or not
//! ```
//!
//! Until the last sync, the other meta page leads to the state before, all of whose pages are as
//! they were. After an error it is not known which of the two a restart will find.

use bytes::{BufMut, Bytes, BytesMut};

use super::meta::{Meta, NO_FREELIST, encode_meta_page};
use super::node::{Node, Spill};
use super::page::{BUCKET_HEADER_BYTES, LeafElement, Page, PageId};
use super::pager::Pager;
use super::store::{BoltStore, Committed, WriterState, load_buckets};
use crate::bucket::Bucket;
use crate::error::Result;

/// The trees of the buckets that a transaction has changed.
pub(super) type ChangedTrees = [Option<Box<Node>>; Bucket::ALL.len()];

/// How full pages become, in percent. Revisions come in order, so that no put comes back to a page
/// of bucket `key`; etcd sets this too.
fn fill_percent(bucket: Bucket) -> usize {
    match bucket {
        Bucket::Key => 90,
        _ => ROOT_FILL_PERCENT,
    }
}

const ROOT_FILL_PERCENT: usize = 50;

/// Writes `changed` on top of the newest commit.
pub(super) fn commit(store: &BoltStore, changed: ChangedTrees, size_in_use: u64) -> Result<()> {
    let base = store.newest();
    let pager = &store.pager;
    let mut writer = store.writer();
    let WriterState { freelist, table } = &mut *writer;
    let txid = base.meta.txid + 1;
    freelist.begin(txid, &store.visible());

    let mut spill = Spill { pager, freelist, written: Vec::new(), freed: Vec::new() };
    let root = write_trees(&base, changed, &mut spill)?;
    let Spill { mut written, freed, .. } = spill;
    // First computed, then set: readers wait while sums are set.
    let sums: Vec<_> = written.iter().map(|(id, page)| (*id, crc32c::crc32c(page))).collect();
    pager.set_sums(&sums);
    let update = pager.with_sums(|sums| {
        let changed = written.iter().map(|(id, _)| *id);
        table.update(pager.page_size(), sums, changed, &mut |count| freelist.allocate(count))
    });
    keep_in_cache(pager, &written)?;
    written.extend(update.written);
    written.sort_unstable_by_key(|(id, _)| *id);
    pager.grow(freelist.high_water())?;
    pager.write(&written)?;

    let high_water = freelist.high_water();
    let meta = Meta { root, freelist: NO_FREELIST, high_water, txid, ..base.meta };
    let buckets = load_buckets(pager, root)?;
    pager.write_meta(meta.place(), &encode_meta_page(&meta, Some(update.root)))?;

    freelist.free_after(txid, freed);
    // No snapshot reads the checksum table.
    update.replaced.into_iter().for_each(|run| freelist.free(run));
    store.publish(Committed { meta, buckets, size_in_use });
    Ok(())
}

/// Returns the root page of the new state.
fn write_trees(
    base: &Committed,
    mut changed: ChangedTrees,
    spill: &mut Spill<'_>,
) -> Result<PageId> {
    let mut root = Node::from_page(&spill.pager.page(base.meta.root)?);
    for bucket in Bucket::ALL {
        let committed = &base.buckets[bucket.index()];
        let tree = match changed[bucket.index()].take() {
            Some(tree) => *tree,
            // All ten are there after a commit, as after a start of etcd.
            None if committed.root.is_none() => Node::empty(),
            None => continue,
        };
        let record = write_bucket(bucket, tree, committed.sequence, spill)?;
        let element = LeafElement::new(record, bucket.name().len(), true);
        root.put(element, spill.pager)?;
    }
    let root = root.rebalance(ROOT_FILL_PERCENT, spill)?;
    Ok(spill.write_tree(root, ROOT_FILL_PERCENT))
}

/// Returns the bucket's name and value for the tree above.
fn write_bucket(bucket: Bucket, tree: Node, sequence: u64, spill: &mut Spill<'_>) -> Result<Bytes> {
    let tree = tree.rebalance(fill_percent(bucket), spill)?;
    let inline = tree.to_inline_page(spill.pager.page_size());
    let root = match inline {
        Some(_) => {
            spill.freed.extend(tree.place());
            0
        }
        None => spill.write_tree(tree, fill_percent(bucket)),
    };
    let inline = inline.unwrap_or_default();
    let name = bucket.name().as_bytes();
    let mut record = BytesMut::with_capacity(name.len() + BUCKET_HEADER_BYTES + inline.len());
    record.put_slice(name);
    record.put_u64_le(root);
    record.put_u64_le(sequence);
    record.put_slice(&inline);
    Ok(record.freeze())
}

/// Old pages of the same ids go from the cache.
fn keep_in_cache(pager: &Pager, written: &[(PageId, Bytes)]) -> Result<()> {
    for (id, bytes) in written {
        let page = Page::parse(bytes.clone(), *id);
        pager.keep(page.map_err(|damage| damage.in_file(&pager.path()))?);
    }
    Ok(())
}
