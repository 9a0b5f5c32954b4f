//! Reads a tree: the value of a key, the keys of a range, or the last key. The pages of the tree
//! may be committed, or changed by the open write transaction.
//!
//! ```text
//!                      branch:  b ─▶ 7   k ─▶ 9          key "c" is below b, the last branch
//!                               │        │               key that is not larger than "c"
//!                    leaf 7: b c g   leaf 9: k m z
//! ```
//!
//! A bucket may contain another bucket, as an element of a leaf. That element is not a record, so
//! all reads except [`find`] skip it.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::node::{Node, NodeBody};
use super::page::{BUCKET_HEADER_BYTES, Damage, LeafElement, Page, PageId, is_tree_page, u64_at};
use super::pager::Pager;
use super::search::{child_index, search};
use crate::error::Result;
use crate::interface::{KeyRange, Visitor};

/// Maximum depth of a tree. With two children per branch, a deeper tree would need more pages than
/// a file can have.
pub(super) const DEPTH_MAX: usize = 64;

/// The place where the tree of a bucket starts.
#[derive(Clone, Debug)]
pub(super) enum BucketRoot {
    /// The whole bucket is stored in its value in the parent tree.
    Inline(Page),
    Stored(PageId),
}

/// The value of a bucket in its parent tree.
#[derive(Clone, Debug)]
pub(super) struct BucketHead {
    pub(super) root: BucketRoot,
    pub(super) sequence: u64,
}

impl BucketHead {
    /// Parses `value`, the value of a leaf element that is a bucket.
    pub(super) fn parse(value: &Bytes) -> std::result::Result<BucketHead, Damage> {
        let (root, sequence) = (u64_at(value, 0), u64_at(value, 8));
        let root = match root {
            0 => BucketRoot::Inline(parse_inline(value.slice(BUCKET_HEADER_BYTES..))?),
            _ if is_tree_page(root) => BucketRoot::Stored(root),
            _ => {
                return Err(Damage::new(
                    root,
                    "the root of a bucket is not a possible page number",
                ));
            }
        };
        Ok(BucketHead { root, sequence })
    }
}

fn parse_inline(bytes: Bytes) -> std::result::Result<Page, Damage> {
    let page = Page::parse(bytes, 0)?;
    // An inline bucket must not contain buckets. Otherwise a small file could nest a million
    // buckets.
    if !page.is_leaf() || (0..page.count()).any(|index| page.is_bucket(index)) {
        return Err(Damage::new(0, "an inline bucket is a branch, or holds a bucket"));
    }
    Ok(page)
}

/// One page of a tree, as seen by a reader.
#[derive(Debug)]
pub(super) enum TreePage<'t> {
    Changed(&'t Node),
    Committed(Page),
}

impl<'t> TreePage<'t> {
    fn is_leaf(&self) -> bool {
        match self {
            TreePage::Changed(node) => matches!(node.body(), NodeBody::Leaf(_)),
            TreePage::Committed(page) => page.is_leaf(),
        }
    }

    fn count(&self) -> usize {
        match self {
            TreePage::Changed(node) => node.len(),
            TreePage::Committed(page) => page.count(),
        }
    }

    fn key(&self, index: usize) -> &[u8] {
        match self {
            TreePage::Changed(node) => match node.body() {
                NodeBody::Leaf(elements) => elements[index].key(),
                NodeBody::Branch(children) => &children[index].key,
            },
            TreePage::Committed(page) => page.key(index),
        }
    }

    /// The page must be a leaf.
    fn value(&self, index: usize) -> &[u8] {
        match self {
            TreePage::Changed(node) => leaf_elements(node)[index].value(),
            TreePage::Committed(page) => page.value(index),
        }
    }

    /// The page must be a leaf.
    fn element(&self, index: usize) -> LeafElement {
        match self {
            TreePage::Changed(node) => leaf_elements(node)[index].clone(),
            TreePage::Committed(page) => page.leaf_element(index),
        }
    }

    /// The page must be a leaf.
    fn is_bucket(&self, index: usize) -> bool {
        match self {
            TreePage::Changed(node) => leaf_elements(node)[index].is_bucket,
            TreePage::Committed(page) => page.is_bucket(index),
        }
    }

    /// The page must be a branch.
    fn child(&self, index: usize, pager: &Pager) -> Result<TreePage<'t>> {
        let id = match self {
            TreePage::Changed(node) => match node.body() {
                NodeBody::Leaf(_) => unreachable!("a leaf has no children"),
                NodeBody::Branch(children) => match &children[index].node {
                    Some(node) => return Ok(TreePage::Changed(node)),
                    None => children[index].page,
                },
            },
            TreePage::Committed(page) => page.child(index),
        };
        Ok(TreePage::Committed(pager.page(id)?))
    }
}

fn leaf_elements(node: &Node) -> &[LeafElement] {
    match node.body() {
        NodeBody::Leaf(elements) => elements,
        NodeBody::Branch(_) => unreachable!("asked of leaves only"),
    }
}

/// Returns the element of a key, which is a record or a bucket, or `None` if there is no such
/// element.
pub(super) fn find(root: TreePage<'_>, key: &[u8], pager: &Pager) -> Result<Option<LeafElement>> {
    let mut page = root;
    for _ in 0..DEPTH_MAX {
        if page.is_leaf() {
            let found = search(page.count(), key, |index| page.key(index));
            return Ok(found.ok().map(|index| page.element(index)));
        }
        let index = child_index(page.count(), key, |index| page.key(index));
        page = page.child(index, pager)?;
    }
    Err(too_deep(pager))
}

pub(super) fn get(root: TreePage<'_>, key: &[u8], pager: &Pager) -> Result<Option<Bytes>> {
    let found = find(root, key, pager)?.filter(|element| !element.is_bucket);
    Ok(found.map(|element| element.shared_value()))
}

/// Maximum length of a value that [`value_of`] copies, in bytes. A larger value shares the bytes of
/// its page. Copying a small value is cheaper than counting the users of its page, because all
/// threads change that counter at one address. A copy also does not keep its page in memory.
const COPIED_BYTES_MAX: usize = 1024;

/// Like [`get`], for a committed tree. Also returns the leaf where the key is or would be. Branches
/// are read inside the cache and not cloned: all threads read them, and each clone would change the
/// same reference counter twice.
pub(super) fn get_committed(
    root: &Page,
    key: &[u8],
    pager: &Pager,
) -> Result<(Option<Bytes>, Page)> {
    let mut step = go_down(root, key);
    for _ in 0..DEPTH_MAX {
        match step {
            Step::Child(id) => step = pager.with_page(id, |page| go_down(page, key))?,
            Step::Leaf(leaf) => return Ok((value_of(&leaf, key), leaf)),
        }
    }
    Err(too_deep(pager))
}

enum Step {
    Child(PageId),
    Leaf(Page),
}

fn go_down(page: &Page, key: &[u8]) -> Step {
    if page.is_leaf() {
        return Step::Leaf(page.clone());
    }
    let index = child_index(page.count(), key, |index| page.key(index));
    Step::Child(page.child(index))
}

/// Returns the value of a record in a leaf, or `None` if the leaf does not have the record.
pub(super) fn value_of(leaf: &Page, key: &[u8]) -> Option<Bytes> {
    let found = search(leaf.count(), key, |index| leaf.key(index)).ok();
    found.filter(|index| !leaf.is_bucket(*index)).map(|index| {
        let value = leaf.value(index);
        match value.len() <= COPIED_BYTES_MAX {
            true => Bytes::copy_from_slice(value),
            false => leaf.shared_value(index),
        }
    })
}

pub(super) fn scan(
    root: TreePage<'_>,
    range: KeyRange<'_>,
    pager: &Pager,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    let mut cursor = Cursor::seek(root, range.from, pager)?;
    loop {
        let (leaf, from) = cursor.leaf();
        for index in from..leaf.count() {
            let key = leaf.key(index);
            if range.to.is_some_and(|to| key >= to) {
                return Ok(());
            }
            if !leaf.is_bucket(index) && visit(key, leaf.value(index)) == ControlFlow::Break(()) {
                return Ok(());
            }
        }
        if !cursor.go_to_next_leaf()? {
            return Ok(());
        }
    }
}

pub(super) fn last_key(root: &TreePage<'_>, pager: &Pager) -> Result<Option<Bytes>> {
    last_key_below(root, pager, 0)
}

/// Returns the largest key in `page` and the pages below it, or `None` if they contain no record.
/// Searches backwards and skips leaves without records. A tree may have such leaves during an open
/// transaction.
fn last_key_below(page: &TreePage<'_>, pager: &Pager, depth: usize) -> Result<Option<Bytes>> {
    if depth == DEPTH_MAX {
        return Err(too_deep(pager));
    }
    for index in (0..page.count()).rev() {
        if !page.is_leaf() {
            if let Some(key) = last_key_below(&page.child(index, pager)?, pager, depth + 1)? {
                return Ok(Some(key));
            }
        } else if !page.is_bucket(index) {
            return Ok(Some(page.element(index).shared_key()));
        }
    }
    Ok(None)
}

fn too_deep(pager: &Pager) -> crate::error::Error {
    pager.damaged(0, format!("a tree is deeper than {DEPTH_MAX} pages"))
}

/// A position in a leaf, with the branches above it.
#[derive(Debug)]
struct Cursor<'t> {
    pager: &'t Pager,
    /// The pages from the root to a leaf, each with the index that was chosen in it.
    path: Vec<(TreePage<'t>, usize)>,
}

impl<'t> Cursor<'t> {
    /// Returns a cursor at the first position whose key is at least `key`. The position may be
    /// after the last element of its leaf.
    fn seek(root: TreePage<'t>, key: &[u8], pager: &'t Pager) -> Result<Cursor<'t>> {
        let mut cursor = Cursor { pager, path: Vec::with_capacity(4) };
        cursor.descend(root, |page| match page.is_leaf() {
            true => search(page.count(), key, |index| page.key(index)).unwrap_or_else(|at| at),
            false => child_index(page.count(), key, |index| page.key(index)),
        })?;
        Ok(cursor)
    }

    fn leaf(&self) -> (&TreePage<'t>, usize) {
        let (leaf, index) = self.path.last().expect("the cursor is not at its end");
        (leaf, *index)
    }

    /// Moves to the first element of the next leaf. Returns false if there is no further leaf. The
    /// cursor is then at its end.
    fn go_to_next_leaf(&mut self) -> Result<bool> {
        self.path.pop();
        while let Some((branch, index)) = self.path.last_mut() {
            *index += 1;
            if *index < branch.count() {
                let child = branch.child(*index, self.pager)?;
                self.descend(child, |_| 0)?;
                return Ok(true);
            }
            self.path.pop();
        }
        Ok(false)
    }

    fn descend(
        &mut self,
        from: TreePage<'t>,
        choose: impl Fn(&TreePage<'t>) -> usize,
    ) -> Result<()> {
        let mut page = from;
        while self.path.len() < DEPTH_MAX {
            let index = choose(&page);
            if page.is_leaf() {
                self.path.push((page, index));
                return Ok(());
            }
            let child = page.child(index, self.pager)?;
            self.path.push((page, index));
            page = child;
        }
        Err(too_deep(self.pager))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bolt::page::encode_leaf;

    #[test]
    fn a_large_value_shares_the_bytes_of_its_page_and_a_small_one_does_not_keep_it() {
        let element = |key: u8, bytes| {
            LeafElement::new(Bytes::from([&[key][..], &vec![key; bytes]].concat()), 1, false)
        };
        let elements = [element(1, COPIED_BYTES_MAX), element(2, COPIED_BYTES_MAX + 1)];
        let page = Page::parse(encode_leaf(7, 4096, 4096, &elements), 7).unwrap();
        let value = |key: u8| value_of(&page, &[key]);
        let (small, large) = (value(1).unwrap(), value(2).unwrap());
        assert_eq!((&small[..3], &large[..3]), (&[1; 3][..], &[2; 3][..]));
        let bytes = page.bytes().as_ptr_range();
        assert!(!bytes.contains(&small.as_ptr()), "it keeps its page");
        assert!(bytes.contains(&large.as_ptr()), "it was copied");
        assert_eq!(value(3), None);
    }
}
