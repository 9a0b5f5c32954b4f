//! Writes a new file from records in key order. The pages follow each other without free pages in
//! between, and are filled to 90 %.
//!
//! For each open bucket, the writer keeps the records that it has not written yet, and the branch
//! elements of the leaves that it has written:
//!
//! ```text
//!   records ─▶ part of a leaf level ─▶ pages ─▶ file
//!                       └─ branch elements ─▶ at the end of the bucket: branches, and a root
//!                                                └─ named by a record of the parent bucket
//! ```
//!
//! The meta pages are written last, so a file that was not finished cannot be opened.

use bytes::{BufMut, Bytes, BytesMut};

use super::checksums::ChecksumTable;
use super::freelist::Freelist;
use super::meta::{Meta, NO_FREELIST, encode_meta_page};
use super::node::{Spill, inline_page};
use super::page::{BUCKET_HEADER_BYTES, BranchElement, LeafElement, PageId};
use super::pager::Pager;
use crate::error::Result;

/// The share of a page that is filled, in percent. The share is large, because records arrive in
/// order and the writer never inserts a record between two others.
const FILL_PERCENT: usize = 90;
/// The sequence number of each bucket. etcd does not use this number.
const SEQUENCE: u64 = 0;

#[derive(Debug)]
pub(super) struct BulkWriter<'c> {
    pager: &'c Pager,
    freelist: Freelist,
    /// The open trees, from the tree of the buckets to the bucket that was started last.
    trees: Vec<Tree>,
    part_bytes: usize,
}

#[derive(Debug, Default)]
struct Tree {
    name: Bytes,
    /// The elements that are not written yet.
    elements: Vec<LeafElement>,
    element_bytes: usize,
    leaves: Vec<BranchElement>,
}

impl BulkWriter<'_> {
    /// Creates a writer. The pager's file must be empty. Each open bucket keeps about `part_bytes`
    /// bytes of records in memory.
    pub(super) fn new(pager: &Pager, part_bytes: usize) -> BulkWriter<'_> {
        let (freelist, trees) = (Freelist::new(2), vec![Tree::default()]);
        BulkWriter { pager, freelist, trees, part_bytes }
    }

    fn tree(&mut self) -> &mut Tree {
        self.trees.last_mut().expect("the root is never left")
    }

    pub(super) fn begin_bucket(&mut self, name: Bytes) {
        self.trees.push(Tree { name, ..Tree::default() });
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
        // The keys are copied, because a slice of a record would keep the whole record in memory.
        let own =
            |leaf: BranchElement| BranchElement { key: Bytes::copy_from_slice(&leaf.key), ..leaf };
        self.tree().leaves.extend(leaves.into_iter().map(own));
        Ok(())
    }

    pub(super) fn end_bucket(&mut self) -> Result<()> {
        let tree = self.trees.pop().expect("one was begun");
        let name = tree.name.clone();
        let inline = match tree.leaves.is_empty() {
            true => inline_page(&tree.elements, self.pager.page_size()),
            false => None,
        };
        let root = if inline.is_some() { 0 } else { self.write_rest(tree)? };
        let inline = inline.unwrap_or_default();
        let mut record = BytesMut::with_capacity(name.len() + BUCKET_HEADER_BYTES + inline.len());
        record.put_slice(&name);
        record.put_u64_le(root);
        record.put_u64_le(SEQUENCE);
        record.put_slice(&inline);
        self.push(LeafElement::new(record.freeze(), name.len(), true))
    }

    /// Writes the pages that `spill` creates.
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

    /// Writes the rest of a tree. Returns its root page.
    fn write_rest(&mut self, tree: Tree) -> Result<PageId> {
        let Tree { elements, mut leaves, .. } = tree;
        self.write(|spill| {
            if leaves.is_empty() || !elements.is_empty() {
                leaves.extend(spill.write_leaves(&elements, FILL_PERCENT));
            }
            spill.write_branches(leaves, FILL_PERCENT)
        })
    }

    /// Writes the tree of the buckets, the checksums and the meta pages. Returns the number of
    /// pages in the file.
    pub(super) fn finish(mut self) -> Result<PageId> {
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
            let meta = Meta { page_size, root, sequence: SEQUENCE, freelist, high_water, txid };
            pager.write_meta(meta.place(), &encode_meta_page(&meta, Some(update.root)))?;
        }
        Ok(high_water)
    }
}
