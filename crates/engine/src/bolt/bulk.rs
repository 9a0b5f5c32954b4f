//! A new file made of records that come in order: its pages are filled and in a row, and none is
//! free.
//!
//! For each bucket that was begun, there are the records that were not written yet, and the branch
//! elements of the leaves that were:
//!
//! ```text
//!   records ─▶ part of a leaf level ─▶ pages ─▶ file
//!                       └─ branch elements ─▶ at the end of the bucket: branches, and its root
//!                                                └─ a record of the bucket above
//! ```
//!
//! The meta pages are written last. A file that was not finished does not open.

use bytes::{BufMut, Bytes, BytesMut};

use super::checksums::ChecksumTable;
use super::freelist::Freelist;
use super::meta::{Meta, NO_FREELIST, encode_meta_page};
use super::node::{Spill, inline_page};
use super::page::{BUCKET_HEADER_BYTES, BranchElement, LeafElement, PageId};
use super::pager::Pager;
use crate::error::Result;

/// Records come in order, and no put comes between them.
const FILL_PERCENT: usize = 90;
/// The fewest pages that are written at a time: the last of them may be half empty.
const PART_PAGES: usize = 64;

#[derive(Debug)]
pub(super) struct BulkWriter<'c> {
    pager: &'c Pager,
    freelist: Freelist,
    /// From the tree of the buckets to the one that was begun last.
    trees: Vec<Tree>,
    part_bytes: usize,
}

#[derive(Debug, Default)]
struct Tree {
    name: Bytes,
    sequence: u64,
    /// Not written yet.
    elements: Vec<LeafElement>,
    element_bytes: usize,
    leaves: Vec<BranchElement>,
}

impl BulkWriter<'_> {
    /// The pager's file is empty. About `part_bytes` of records are in memory at a time; with 0,
    /// all of the largest bucket.
    pub(super) fn new(pager: &Pager, part_bytes: usize) -> BulkWriter<'_> {
        let part_bytes = match part_bytes {
            0 => usize::MAX,
            _ => part_bytes.max(PART_PAGES * pager.page_size()),
        };
        let (freelist, trees) = (Freelist::new(2), vec![Tree::default()]);
        BulkWriter { pager, freelist, trees, part_bytes }
    }

    fn tree(&mut self) -> &mut Tree {
        self.trees.last_mut().expect("the root is never left")
    }

    pub(super) fn begin_bucket(&mut self, name: Bytes, sequence: u64) {
        self.trees.push(Tree { name, sequence, ..Tree::default() });
    }

    pub(super) fn push(&mut self, element: LeafElement) -> Result<()> {
        let part_bytes = self.part_bytes;
        let tree = self.tree();
        tree.element_bytes += element.encoded_bytes();
        tree.elements.push(element);
        if tree.element_bytes < part_bytes {
            return Ok(());
        }
        tree.element_bytes = 0;
        let part = std::mem::take(&mut tree.elements);
        let leaves = self.write(|spill| spill.write_leaves(&part, FILL_PERCENT))?;
        // Their keys are copied, since a slice keeps a whole page in memory.
        let own =
            |leaf: BranchElement| BranchElement { key: Bytes::copy_from_slice(&leaf.key), ..leaf };
        self.tree().leaves.extend(leaves.into_iter().map(own));
        Ok(())
    }

    pub(super) fn end_bucket(&mut self) -> Result<()> {
        let tree = self.trees.pop().expect("one was begun");
        let (name, sequence) = (tree.name.clone(), tree.sequence);
        let inline = match tree.leaves.is_empty() {
            true => inline_page(&tree.elements, self.pager.page_size()),
            false => None,
        };
        let root = if inline.is_some() { 0 } else { self.write_rest(tree)? };
        let inline = inline.unwrap_or_default();
        let mut record = BytesMut::with_capacity(name.len() + BUCKET_HEADER_BYTES + inline.len());
        record.put_slice(&name);
        record.put_u64_le(root);
        record.put_u64_le(sequence);
        record.put_slice(&inline);
        self.push(LeafElement::new(record.freeze(), name.len(), true))
    }

    /// Writes the pages that `spill` makes.
    fn write<T>(&mut self, spill: impl FnOnce(&mut Spill<'_>) -> T) -> Result<T> {
        let (pager, freelist) = (self.pager, &mut self.freelist);
        let mut made = Spill { pager, freelist, written: Vec::new(), freed: Vec::new() };
        let result = spill(&mut made);
        let written = made.written;
        let sums: Vec<_> = written.iter().map(|(id, page)| (*id, crc32c::crc32c(page))).collect();
        pager.set_sums(&sums);
        pager.write_unsynced(&written)?;
        Ok(result)
    }

    /// Writes what is left of a tree, and returns its root page.
    fn write_rest(&mut self, tree: Tree) -> Result<PageId> {
        let Tree { elements, mut leaves, .. } = tree;
        self.write(|spill| {
            if leaves.is_empty() || !elements.is_empty() {
                leaves.extend(spill.write_leaves(&elements, FILL_PERCENT));
            }
            spill.write_branches(leaves, FILL_PERCENT)
        })
    }

    /// Writes the tree of the buckets, the checksums and the meta pages. Returns how many pages the
    /// file has.
    pub(super) fn finish(mut self, sequence: u64) -> Result<PageId> {
        let tree = self.trees.pop().expect("the root is never left");
        let root = self.write_rest(tree)?;
        let (pager, mut freelist) = (self.pager, self.freelist);
        let page_size = pager.page_size();
        let update = pager.with_sums(|sums| {
            let allocate = &mut |count| freelist.allocate(count);
            ChecksumTable::default().update(page_size, sums, std::iter::empty(), allocate)
        });
        pager.write(&update.written)?;
        let high_water = freelist.high_water();
        for txid in [0, 1] {
            let (page_size, freelist) = (page_size as u32, NO_FREELIST);
            let meta = Meta { page_size, root, sequence, freelist, high_water, txid };
            pager.write_meta(meta.place(), &encode_meta_page(&meta, Some(update.root)))?;
        }
        Ok(high_water)
    }
}
