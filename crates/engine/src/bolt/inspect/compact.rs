//! A compacted copy: every bucket of a file, its pages filled and in a row, and none free.
//!
//! One [walk](super::super::walk) shows the records in order. For each bucket that the walk is in,
//! the copy has the records that were not written yet, and the branch elements of the leaves that
//! were:
//!
//! ```text
//!   records ─▶ part of a leaf level ─▶ pages ─▶ file
//!                       └─ branch elements ─▶ at the end of the bucket: branches, and its root
//!                                                └─ a record of the bucket above
//! ```
//!
//! The meta pages are written last. A copy that was not finished does not open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};

use super::{BoltFile, PageId};
use crate::bolt::checksums::ChecksumTable;
use crate::bolt::file::DiskFile;
use crate::bolt::freelist::Freelist;
use crate::bolt::meta::{Meta, NO_FREELIST, encode_meta_page};
use crate::bolt::node::{Spill, inline_page};
use crate::bolt::page::{BUCKET_HEADER_BYTES, BranchElement, LeafElement, Page};
use crate::bolt::pager::Pager;
use crate::bolt::tree::BucketHead;
use crate::bolt::walk::{Visit, Walk};
use crate::directory::sync_parent;
use crate::error::{Error, Result};
use crate::options::Options;

/// Records come in order, and no put comes between them.
const FILL_PERCENT: usize = 90;
/// The fewest pages that are written at a time: the last of them may be half empty.
const PART_PAGES: usize = 64;

impl BoltFile {
    /// Writes a compacted copy to `to`, which must not exist, and returns its size. The rights of
    /// the copy are those of the file. About `part_bytes` of records are in memory at a time; with
    /// 0, all of the largest bucket. If anything of the file is damaged, there is no copy.
    pub fn compact(&self, to: &Path, part_bytes: usize) -> Result<u64> {
        let mut problems = Vec::new();
        self.note_file_problems(self.newest()?, &mut problems);
        if let Some(problem) = problems.first() {
            let detail = format!("{problem}: a copy would hide that");
            return Err(Error::corrupt(self.path(), detail));
        }
        let rights = fs::metadata(self.path()).map_err(Error::at(self.path()))?.mode();
        let file = DiskFile::create(to, rights & 0o777)?;
        let written = self.write_copy(file, to, part_bytes);
        let written = written.and_then(|bytes| sync_parent(to).map(|()| bytes));
        if written.is_err() {
            // It is of no use, and in the way of the next attempt.
            let _ = fs::remove_file(to);
        }
        written
    }

    fn write_copy(&self, file: DiskFile, to: &Path, part_bytes: usize) -> Result<u64> {
        let source = self.newest()?.meta;
        let pager = Pager::new(Box::new(file), self.page_size(), to, &Options::default());
        let part_bytes = match part_bytes {
            0 => usize::MAX,
            _ => part_bytes.max(PART_PAGES * self.page_size()),
        };
        let (freelist, trees) = (Freelist::new(2), vec![Tree::default()]);
        let mut copy = Copy { pager: &pager, freelist, trees, part_bytes };
        Walk::new(&self.pager, self.pages(), self.has_sums()).walk(source.root, &mut copy)?;
        copy.finish(source.sequence)
    }
}

#[derive(Debug)]
struct Copy<'c> {
    pager: &'c Pager,
    freelist: Freelist,
    /// From the tree of the buckets to the one that the walk is in.
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

impl Copy<'_> {
    fn tree(&mut self) -> &mut Tree {
        self.trees.last_mut().expect("the root is never left")
    }

    fn push(&mut self, element: LeafElement) -> Result<()> {
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

    /// Writes the tree of the buckets, the checksums and the meta pages.
    fn finish(mut self, sequence: u64) -> Result<u64> {
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
        Ok(high_water * page_size as u64)
    }
}

impl Visit for Copy<'_> {
    type Stop = Error;

    fn damaged(&mut self, _page: PageId, error: Error) -> Result<()> {
        Err(error)
    }

    fn record(&mut self, leaf: &Page, index: usize) -> Result<()> {
        self.push(leaf.leaf_element(index))
    }

    fn begin_bucket(&mut self, leaf: &Page, index: usize, head: &BucketHead) -> Result<bool> {
        let (name, sequence) = (leaf.shared_key(index), head.sequence);
        self.trees.push(Tree { name, sequence, ..Tree::default() });
        Ok(true)
    }

    fn end_bucket(&mut self) -> Result<()> {
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
}
