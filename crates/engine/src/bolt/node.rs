//! The pages of a tree that a write transaction changes, until the commit writes them to new pages.
//!
//! A page becomes a node when it, or a page below it, is changed for the first time. If deletes
//! have made a node small, the commit first merges the node with a neighbour. Then the commit
//! splits every node into pages. It starts with the leaves, because a branch needs the new ids of
//! its children:
//!
//! ```text
//!   branch 3 ─┬─ leaf 4                              branch 12 ─┬─ leaf 4      unchanged
//!             ├─ leaf 5 ◀── a put: a node   spill ▶             ├─ leaf 10     the first half
//!             └─ leaf 6                                         ├─ leaf 11     the second half
//!                                                               └─ leaf 6      unchanged
//! ```
//!
//! The rules for merging and splitting are bbolt's rules, with three exceptions. `split` may put
//! one more element on the page before the last, it does not split elements that fill one page to
//! the last byte, and it limits the size of a page.

use std::ops::Range;

use bytes::Bytes;

use super::freelist::Freelist;
use super::page::{
    BranchElement, ELEMENT_BYTES, LeafElement, PAGE_HEADER_BYTES, Page, PageHeader, PageId,
    PageRun, encode_branch, encode_leaf,
};
use super::pager::Pager;
use super::search::{child_index, search};
use crate::error::{Error, Result};

/// Minimum number of elements in a page after a split. There is one exception: if the last three
/// elements together need more than [`PAGE_BYTES_MAX`] bytes, the first of the three gets its own
/// page.
const SPLIT_ELEMENTS_MIN: usize = 2;
/// Maximum number of bytes of a page with more than two elements. Positions have 32 bits. Two
/// elements always fit, even if both have the maximum size.
const PAGE_BYTES_MAX: usize = u32::MAX as usize;

#[derive(Debug)]
pub(super) struct Node {
    /// The pages that the node was read from, or `None` for a new node and for an inline page.
    place: Option<PageRun>,
    /// If true, an element or a child was removed from the node.
    is_reduced: bool,
    body: NodeBody,
}

#[derive(Debug)]
pub(super) enum NodeBody {
    Leaf(Vec<LeafElement>),
    Branch(Vec<Child>),
}

#[derive(Debug)]
pub(super) struct Child {
    /// A lower bound for the keys of the child. A changed first child of a branch is an exception:
    /// it can also contain new keys below this bound.
    pub(super) key: Bytes,
    pub(super) page: PageId,
    /// The changed child, or `None` if the child is unchanged.
    pub(super) node: Option<Box<Node>>,
}

impl Node {
    pub(super) fn empty() -> Node {
        Node { place: None, is_reduced: false, body: NodeBody::Leaf(Vec::new()) }
    }

    pub(super) fn from_page(page: &Page) -> Node {
        let overflow = PageHeader::parse(page.bytes()).overflow;
        let place = PageRun { first: page.id(), count: 1 + u64::from(overflow) };
        let indexes = 0..page.count();
        let body = match page.is_leaf() {
            true => NodeBody::Leaf(indexes.map(|index| page.leaf_element(index)).collect()),
            false => {
                let children = indexes.map(|index| Child {
                    key: page.shared_key(index),
                    page: page.child(index),
                    node: None,
                });
                NodeBody::Branch(children.collect())
            }
        };
        // An inline page is stored in its bucket's value, not in a page of the file.
        Node { place: (page.id() != 0).then_some(place), is_reduced: false, body }
    }

    pub(super) fn body(&self) -> &NodeBody {
        &self.body
    }

    pub(super) fn len(&self) -> usize {
        match &self.body {
            NodeBody::Leaf(elements) => elements.len(),
            NodeBody::Branch(children) => children.len(),
        }
    }

    fn encoded_bytes(&self) -> usize {
        let elements: usize = match &self.body {
            NodeBody::Leaf(elements) => elements.iter().map(LeafElement::encoded_bytes).sum(),
            NodeBody::Branch(children) => children.iter().map(Child::encoded_bytes).sum(),
        };
        PAGE_HEADER_BYTES + elements
    }

    /// Inserts `element`. Returns the replaced element, which had the same key, or `None` if no
    /// element had this key. Fails if one of the two elements is a bucket and the other is a
    /// record.
    pub(super) fn put(
        &mut self,
        element: LeafElement,
        pager: &Pager,
    ) -> Result<Option<LeafElement>> {
        let (leaf, _) = self.leaf_for(element.key(), pager)?;
        match search(leaf.len(), element.key(), |index| leaf[index].key()) {
            Ok(index) if leaf[index].is_bucket != element.is_bucket => Err(is_a_bucket()),
            Ok(index) => Ok(Some(std::mem::replace(&mut leaf[index], element))),
            Err(index) => {
                leaf.insert(index, element);
                Ok(None)
            }
        }
    }

    pub(super) fn remove(&mut self, key: &[u8], pager: &Pager) -> Result<Option<LeafElement>> {
        let (leaf, is_reduced) = self.leaf_for(key, pager)?;
        let Ok(index) = search(leaf.len(), key, |index| leaf[index].key()) else {
            return Ok(None);
        };
        if leaf[index].is_bucket {
            return Err(is_a_bucket());
        }
        *is_reduced = true;
        Ok(Some(leaf.remove(index)))
    }

    /// Returns the elements of the leaf to which `key` belongs, and the leaf's flag `is_reduced`.
    fn leaf_for(
        &mut self,
        key: &[u8],
        pager: &Pager,
    ) -> Result<(&mut Vec<LeafElement>, &mut bool)> {
        match &mut self.body {
            NodeBody::Leaf(elements) => Ok((elements, &mut self.is_reduced)),
            NodeBody::Branch(children) => {
                let index = child_index(children.len(), key, |index| &children[index].key);
                children[index].load(pager)?.leaf_for(key, pager)
            }
        }
    }
}

/// The error that bbolt calls an incompatible value.
fn is_a_bucket() -> Error {
    Error::Storage("the key is the name of a nested bucket".to_owned())
}

impl Child {
    fn encoded_bytes(&self) -> usize {
        ELEMENT_BYTES + self.key.len()
    }

    fn element(&self) -> BranchElement {
        BranchElement { key: self.key.clone(), child: self.page }
    }

    fn load(&mut self, pager: &Pager) -> Result<&mut Node> {
        if self.node.is_none() {
            self.node = Some(Box::new(Node::from_page(&pager.page(self.page)?)));
        }
        Ok(self.node.as_mut().expect("it was put there"))
    }
}

/// The work of a commit on the trees: it allocates pages and encodes them. The caller writes the
/// pages in `written` to the file, and frees the old pages in `freed` after the commit.
#[derive(Debug)]
pub(super) struct Spill<'s> {
    pub(super) pager: &'s Pager,
    pub(super) freelist: &'s mut Freelist,
    pub(super) written: Vec<(PageId, Bytes)>,
    pub(super) freed: Vec<PageRun>,
}

impl Spill<'_> {
    /// Splits and writes a tree. Returns the page of its root.
    pub(super) fn write_tree(&mut self, root: Node, fill_percent: usize) -> PageId {
        let level = root.spill(fill_percent, self);
        self.write_branches(level, fill_percent)
    }

    /// Writes the branches above one level of a tree. Returns the page of the root.
    pub(super) fn write_branches(
        &mut self,
        mut level: Vec<BranchElement>,
        fill_percent: usize,
    ) -> PageId {
        while level.len() > 1 {
            level = spill_branch(&level, fill_percent, self);
        }
        level[0].child
    }

    /// Splits and writes a part of the leaf level. Returns the branch elements of the written
    /// pages.
    pub(super) fn write_leaves(
        &mut self,
        elements: &[LeafElement],
        fill_percent: usize,
    ) -> Vec<BranchElement> {
        spill_leaf(elements, fill_percent, self)
    }

    /// Allocates pages and fills them with `encode(id, page size, bytes of all pages)`. Returns the
    /// id of the first page.
    fn write_page(
        &mut self,
        bytes: usize,
        encode: impl FnOnce(PageId, usize, usize) -> Bytes,
    ) -> PageId {
        let page_size = self.pager.page_size();
        let count = bytes.div_ceil(page_size);
        let id = self.freelist.allocate(count as u64);
        self.written.push((id, encode(id, page_size, count * page_size)));
        id
    }
}

// Merging.
impl Node {
    /// Merges the nodes below this node if they are too small. This node must be a root. Returns
    /// the new root: if this node is a branch with one child, the child replaces it; if the branch
    /// has no child, an empty leaf replaces it.
    pub(super) fn rebalance(mut self, fill_percent: usize, spill: &mut Spill<'_>) -> Result<Node> {
        // With the usual fill of 50 %, `bytes_min` is a quarter of a page.
        let bytes_min = spill.pager.page_size() * fill_percent / 200;
        self.merge_children(bytes_min, spill)?;
        loop {
            let NodeBody::Branch(children) = &mut self.body else { return Ok(self) };
            if children.len() > 1 {
                return Ok(self);
            }
            spill.freed.extend(self.place);
            self = match children.pop() {
                Some(mut only) => {
                    only.load(spill.pager)?;
                    *only.node.expect("it was loaded")
                }
                None => Node::empty(),
            };
        }
    }

    fn merge_children(&mut self, bytes_min: usize, spill: &mut Spill<'_>) -> Result<()> {
        let NodeBody::Branch(children) = &mut self.body else { return Ok(()) };
        for child in children.iter_mut().filter_map(|child| child.node.as_mut()) {
            child.merge_children(bytes_min, spill)?;
        }
        let mut index = 0;
        while index < children.len() {
            let is_small = |node: &Node| node.is_reduced && node.is_small(bytes_min);
            let Some(node) = children[index].node.as_ref().filter(|node| is_small(node)) else {
                index += 1;
                continue;
            };
            if node.len() == 0 {
                spill.freed.extend(node.place);
                children.remove(index);
                self.is_reduced = true;
            } else if children.len() > 1 {
                let left = index.saturating_sub(1);
                merge_with_next(children, left, spill)?;
                self.is_reduced = true;
                index = left + 1;
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    fn is_small(&self, bytes_min: usize) -> bool {
        let elements_min = match self.body {
            NodeBody::Leaf(_) => 1,
            NodeBody::Branch(_) => 2,
        };
        self.len() <= elements_min || self.encoded_bytes() <= bytes_min
    }
}

fn merge_with_next(children: &mut Vec<Child>, left: usize, spill: &mut Spill<'_>) -> Result<()> {
    children[left].load(spill.pager)?;
    let mut right = children.remove(left + 1);
    let page = right.page;
    right.load(spill.pager)?;
    let left = children[left].node.as_mut().expect("it was loaded");
    let right = *right.node.expect("it was loaded");
    match (&mut left.body, right.body) {
        (NodeBody::Leaf(elements), NodeBody::Leaf(more)) => elements.extend(more),
        (NodeBody::Branch(children), NodeBody::Branch(more)) => children.extend(more),
        _ => {
            return Err(spill
                .pager
                .damaged(page, "has a different number of levels than its neighbour"));
        }
    }
    spill.freed.extend(right.place);
    Ok(())
}

// Splitting and writing.
impl Node {
    /// Writes the node and the changed nodes below it. Returns the branch elements of the pages
    /// that replace the node.
    fn spill(self, fill_percent: usize, spill: &mut Spill<'_>) -> Vec<BranchElement> {
        spill.freed.extend(self.place);
        match self.body {
            NodeBody::Leaf(elements) => spill_leaf(&elements, fill_percent, spill),
            NodeBody::Branch(children) => {
                let mut settled = Vec::with_capacity(children.len());
                for child in children {
                    match child.node {
                        Some(node) => settled.extend(node.spill(fill_percent, spill)),
                        None => settled.push(child.element()),
                    }
                }
                spill_branch(&settled, fill_percent, spill)
            }
        }
    }

    /// Returns the node as an inline page, or `None` if the bucket cannot be inline.
    pub(super) fn to_inline_page(&self, page_size: usize) -> Option<Bytes> {
        let NodeBody::Leaf(elements) = &self.body else { return None };
        inline_page(elements, page_size)
    }

    pub(super) fn place(&self) -> Option<PageRun> {
        self.place
    }
}

/// Returns a whole bucket as an inline page, or `None` if bbolt would not store the bucket inline.
/// An inline bucket contains no buckets and needs at most a quarter of a page.
pub(super) fn inline_page(elements: &[LeafElement], page_size: usize) -> Option<Bytes> {
    let elements_bytes: usize = elements.iter().map(LeafElement::encoded_bytes).sum();
    let bytes = PAGE_HEADER_BYTES + elements_bytes;
    let is_inline = bytes <= page_size / 4 && !elements.iter().any(|element| element.is_bucket);
    is_inline.then(|| encode_leaf(0, page_size, bytes, elements))
}

fn spill_leaf(
    elements: &[LeafElement],
    fill_percent: usize,
    spill: &mut Spill<'_>,
) -> Vec<BranchElement> {
    let sizes: Vec<usize> = elements.iter().map(LeafElement::encoded_bytes).collect();
    let parts = split(&sizes, spill.pager.page_size(), fill_percent).into_iter();
    let write_part = |part: Range<usize>| {
        let bytes = PAGE_HEADER_BYTES + sizes[part.clone()].iter().sum::<usize>();
        let part = &elements[part];
        let child = spill.write_page(bytes, |id, page_size, page_bytes| {
            encode_leaf(id, page_size, page_bytes, part)
        });
        // Only a root can be empty. A root has no branch above it, so its key is not used.
        BranchElement { key: part.first().map(LeafElement::shared_key).unwrap_or_default(), child }
    };
    parts.map(write_part).collect()
}

fn spill_branch(
    elements: &[BranchElement],
    fill_percent: usize,
    spill: &mut Spill<'_>,
) -> Vec<BranchElement> {
    let sizes: Vec<usize> = elements.iter().map(BranchElement::encoded_bytes).collect();
    let parts = split(&sizes, spill.pager.page_size(), fill_percent).into_iter();
    let write_part = |part: Range<usize>| {
        let bytes = PAGE_HEADER_BYTES + sizes[part.clone()].iter().sum::<usize>();
        let part = &elements[part];
        let child = spill.write_page(bytes, |id, page_size, page_bytes| {
            encode_branch(id, page_size, page_bytes, part)
        });
        BranchElement { key: part[0].key.clone(), child }
    };
    parts.map(write_part).collect()
}

/// Splits elements of the given sizes into pages. Each page except the last is filled up to
/// `fill_percent`, which leaves space for later puts. The last page may be full. Large elements are
/// stored two to a page, and up to four on the last page. Such a page has overflow pages. Returns
/// the range of elements for each page.
fn split(sizes: &[usize], page_size: usize, fill_percent: usize) -> Vec<Range<usize>> {
    let threshold = page_size * fill_percent / 100;
    let mut rest_bytes = PAGE_HEADER_BYTES + sizes.iter().sum::<usize>();
    let mut parts = Vec::new();
    let mut from = 0;
    let is_one_page = |count: usize, bytes: usize| {
        let is_few = count <= 2 * SPLIT_ELEMENTS_MIN && bytes <= PAGE_BYTES_MAX;
        bytes <= page_size || is_few || count <= SPLIT_ELEMENTS_MIN
    };
    while !is_one_page(sizes.len() - from, rest_bytes) {
        let mut bytes = PAGE_HEADER_BYTES;
        let mut to = from;
        while to < sizes.len() - SPLIT_ELEMENTS_MIN {
            if to - from >= SPLIT_ELEMENTS_MIN && bytes + sizes[to] > threshold {
                break;
            }
            bytes += sizes[to];
            to += 1;
        }
        parts.push(from..to);
        rest_bytes -= bytes - PAGE_HEADER_BYTES;
        from = to;
    }
    parts.push(from..sizes.len());
    parts
}

#[cfg(test)]
mod tests {
    use super::split;
    use crate::KEY_BYTES_MAX;
    use crate::bolt::page::{ELEMENT_BYTES, VALUE_BYTES_MAX};

    /// Returns the number of elements in each page.
    fn lengths(sizes: &[usize], fill_percent: usize) -> Vec<usize> {
        split(sizes, 4096, fill_percent).into_iter().map(|part| part.len()).collect()
    }

    #[test]
    fn pages_are_filled_as_far_as_they_should_be() {
        assert_eq!(lengths(&[100; 100], 90), [36, 36, 28]);
        assert_eq!(lengths(&[100; 100], 50), [20, 20, 20, 40]);
    }

    #[test]
    fn what_fits_and_what_is_few_is_not_split() {
        assert_eq!(lengths(&[], 50), [0]);
        assert_eq!(lengths(&[408; 10], 50), [10], "to the last byte");
        assert_eq!(lengths(&[9_000; 4], 50), [4]);
        assert_eq!(lengths(&[9_000; 6], 90), [2, 4]);
        assert_eq!(lengths(&[40, 40, 40, 9_000, 40, 40], 50), [3, 3]);
    }

    #[test]
    fn positions_in_a_page_fit_into_their_32_bits() {
        let largest = ELEMENT_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX;
        assert_eq!(lengths(&[largest], 50), [1]);
        assert_eq!(lengths(&[largest; 2], 50), [2]);
        assert_eq!(lengths(&[largest; 3], 50), [1, 2]);
        assert_eq!(lengths(&[largest; 4], 90), [2, 2]);
        assert_eq!(lengths(&[largest; 7], 50), [2, 2, 1, 2]);
        assert_eq!(lengths(&[1 << 30; 3], 50), [3]);
    }
}
