//! Commits a transaction: changed trees become new pages, and a meta page makes them the newest
//! state.
//!
//! ```text
//!   merge and split nodes ─▶ new pages, checksum table ─▶ sync ─▶ meta page ─▶ sync
//!                            only to pages that                      ▲
//!                            are not in use                          └ the commit takes effect
//! ```
//!
//! Until the last sync, the other meta page still leads to the previous state, whose pages are all
//! unchanged. New snapshots see the commit only after that sync. After an error it is unknown
//! whether a restart will find the previous state or the new one.

use bytes::{BufMut, Bytes, BytesMut};

use super::meta::{Meta, NO_FREELIST, encode_meta_page};
use super::node::{Node, Spill};
use super::page::{BUCKET_HEADER_BYTES, LeafElement, Page, PageId};
use super::pager::Pager;
use super::store::{BoltStore, Committed, WriterState, load_buckets};
use crate::bucket::Bucket;
use crate::error::Result;

/// For each bucket, its changed tree, or `None` if the transaction has not changed the bucket.
pub(super) type ChangedTrees = [Option<Box<Node>>; Bucket::ALL.len()];

/// Returns how far the new pages of a bucket are filled, in percent. Keys of bucket `key` are
/// revisions, which only grow, so only the last page of the bucket receives later puts. etcd also
/// fills the pages of this bucket to 90 %.
fn fill_percent(bucket: Bucket) -> usize {
    match bucket {
        Bucket::Key => 90,
        _ => ROOT_FILL_PERCENT,
    }
}

const ROOT_FILL_PERCENT: usize = 50;

/// Writes the changed trees as a new commit, and makes the commit visible to new snapshots.
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
    // All checksums are computed before any checksum is set, because readers wait while the
    // checksums are being set.
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
    // Snapshots never read the checksum table, so its old pages are free as soon as the commit is
    // on disk.
    update.replaced.into_iter().for_each(|run| freelist.free(run));
    store.publish(Committed { meta, buckets, size_in_use });
    Ok(())
}

/// Writes all changed trees. Returns the root page of the new state.
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
            // A bucket that does not exist yet is created, so that all ten buckets exist after a
            // commit. etcd creates them when it starts.
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

/// Writes the tree of a bucket. Returns the bucket's record for the tree of the buckets: its name,
/// followed by its value.
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

/// Puts the new pages into the cache, where they replace old pages with the same ids.
fn keep_in_cache(pager: &Pager, written: &[(PageId, Bytes)]) -> Result<()> {
    for (id, bytes) in written {
        let page = Page::parse(bytes.clone(), *id);
        pager.keep(page.map_err(|damage| damage.in_file(&pager.path()))?);
    }
    Ok(())
}
