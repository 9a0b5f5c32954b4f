//! The layout of branch and leaf pages, as in bbolt. The reader trusts no byte of a page.
//!
//! ```text
//!   0        8           10          12             16
//!   │ id u64 │ flags u16 │ count u16 │ overflow u32 │ elements … │ keys and values …
//!
//!   element of a branch   position u32 · key size u32 · child page u64
//!   element of a leaf     flags u32 · position u32 · key size u32 · value size u32
//! ```
//!
//! A position is an offset from the start of its own element. `overflow` is the number of further
//! pages that belong to this page. Numbers are little endian.
//!
//! A [`Page`] is checked completely when it is parsed, so its accessors cannot fail.

use std::ops::Range;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Error;
use crate::{KEY_BYTES_MAX, PAGE_BUFFER_EXTRA};

/// The position of a page in the file. bbolt calls it `pgid`.
pub type PageId = u64;

pub(super) const PAGE_HEADER_BYTES: usize = 16;
pub(super) const ELEMENT_BYTES: usize = 16;
/// Size of a bucket's header: the id of its root page, and its sequence. If the id is 0, an inline
/// page follows the header.
pub(super) const BUCKET_HEADER_BYTES: usize = 16;

pub(super) const BRANCH_FLAG: u16 = 0x01;
pub(super) const LEAF_FLAG: u16 = 0x02;
pub(super) const META_FLAG: u16 = 0x04;
pub(super) const FREELIST_FLAG: u16 = 0x10;
/// Our own flag, for a page of the checksum table. To bbolt such a page is free, so bbolt never
/// reads it.
pub(super) const CHECKSUM_FLAG: u16 = 0x40;

/// Maximum page id. A larger id is damage, and arithmetic with it could overflow.
pub(super) const PAGE_ID_MAX: PageId = 1 << 40;

/// Returns whether a page of a tree may have this id. Pages 0 and 1 are the meta pages.
pub(super) fn is_tree_page(id: PageId) -> bool {
    (2..=PAGE_ID_MAX).contains(&id)
}

/// A flag of a leaf element: its value is a bucket.
const BUCKET_FLAG: u32 = 0x01;

pub(super) const VALUE_BYTES_MAX: usize = (1 << 31) - 2;
/// Maximum number of elements in a page. The count 0xFFFF has another meaning in a freelist.
pub(super) const ELEMENTS_MAX: usize = 0xFFFE;

/// A damaged page, and the reason why it is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) page: PageId,
    pub(super) reason: String,
}

impl Damage {
    pub(super) fn new(page: PageId, reason: impl Into<String>) -> Damage {
        Damage { page, reason: reason.into() }
    }

    pub(super) fn in_file(self, path: &Path) -> Error {
        Error::corrupt(path, format!("page {}: {}", self.page, self.reason))
    }
}

/// Consecutive pages, for example a page together with its overflow pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageRun {
    pub(super) first: PageId,
    pub(super) count: u64,
}

impl PageRun {
    pub(super) fn ids(self) -> Range<PageId> {
        self.first..self.first + self.count
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) id: PageId,
    pub(super) flags: u16,
    pub(super) count: u16,
    pub(super) overflow: u32,
}

impl PageHeader {
    /// `bytes` must contain at least a header.
    pub(super) fn parse(bytes: &[u8]) -> PageHeader {
        PageHeader {
            id: u64_at(bytes, 0),
            flags: u16_at(bytes, 8),
            count: u16_at(bytes, 10),
            overflow: u32_at(bytes, 12),
        }
    }

    pub(super) fn append_to(self, out: &mut impl BufMut) {
        out.put_u64_le(self.id);
        out.put_u16_le(self.flags);
        out.put_u16_le(self.count);
        out.put_u32_le(self.overflow);
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn header_of(bytes: &[u8], id: PageId) -> Result<PageHeader, Damage> {
    if bytes.len() < PAGE_HEADER_BYTES {
        return Err(Damage::new(id, format!("{} bytes are too few for a page", bytes.len())));
    }
    Ok(PageHeader::parse(bytes))
}

/// A branch or leaf page whose layout is correct. Clones share their bytes.
#[derive(Clone, Debug)]
pub(super) struct Page {
    id: PageId,
    is_leaf: bool,
    count: usize,
    bytes: Bytes,
}

impl Page {
    /// Parses `bytes`, which are page `id` with its overflow. An inline page has the id 0.
    pub(super) fn parse(bytes: Bytes, id: PageId) -> Result<Page, Damage> {
        let header = header_of(&bytes, id)?;
        if header.id != id {
            return Err(Damage::new(id, format!("has the id {} in its header", header.id)));
        }
        let page = Page::with_header(bytes, id, header)?;
        page.check_elements().map_err(|reason| Damage::new(id, reason))?;
        Ok(page)
    }

    /// Returns the readable elements of a page, even if [`parse`](Page::parse) would reject the
    /// page. Fails if the page is neither a branch nor a leaf.
    pub(super) fn salvage(bytes: Bytes, id: PageId) -> Result<Salvage, Damage> {
        let header = header_of(&bytes, id)?;
        let mut page = Page::with_header(bytes, id, header)?;
        let room = (page.bytes.len() - PAGE_HEADER_BYTES) / ELEMENT_BYTES;
        page.count = page.count.min(room);
        let check = |index| page.check_element(index, page.element(index + 1)).is_ok();
        let elements = (0..page.count).filter(|index| check(*index)).collect();
        Ok(Salvage { page, elements })
    }

    /// Creates a page after checking only that it is a branch or leaf.
    fn with_header(bytes: Bytes, id: PageId, header: PageHeader) -> Result<Page, Damage> {
        let is_leaf = match header.flags {
            BRANCH_FLAG => false,
            LEAF_FLAG => true,
            other => {
                return Err(Damage::new(id, format!("flags {other:#x}, not a branch or leaf")));
            }
        };
        Ok(Page { id, is_leaf, count: usize::from(header.count), bytes })
    }

    fn check_elements(&self) -> Result<(), String> {
        let data = self.element(self.count);
        if data > self.bytes.len() {
            return Err(format!("{} elements do not fit", self.count));
        }
        if !self.is_leaf && self.count == 0 {
            return Err("a branch without children".to_owned());
        }
        let mut previous: &[u8] = &[];
        let mut previous_end = data as u64;
        for index in 0..self.count {
            let place = self.check_element(index, data)?;
            // bbolt writes the data of the elements in the order of the elements, so another order
            // is damage. The check also ensures that all keys and values together are not larger
            // than the page.
            if place.start < previous_end {
                return Err(format!("element {index} overlaps the previous one"));
            }
            previous_end = place.end;
            let key = self.key(index);
            if key <= previous {
                return Err(format!("the key of element {index} is out of order"));
            }
            previous = key;
        }
        Ok(())
    }

    /// Checks one element, whose key must not start before offset `data`. Returns the range of its
    /// key and value.
    fn check_element(&self, index: usize, data: usize) -> Result<Range<u64>, String> {
        let (position, key_bytes, value_bytes) = self.sizes(index);
        let from = self.element(index) as u64 + u64::from(position);
        let end = from + u64::from(key_bytes) + u64::from(value_bytes);
        if from < data as u64 || end > self.bytes.len() as u64 {
            return Err(format!("element {index} is outside the page"));
        }
        if key_bytes == 0 || key_bytes as usize > KEY_BYTES_MAX {
            return Err(format!("element {index} has a key of {key_bytes} bytes"));
        }
        self.check_kind(index, value_bytes)?;
        Ok(from..end)
    }

    fn check_kind(&self, index: usize, value_bytes: u32) -> Result<(), String> {
        if !self.is_leaf {
            let child = self.child(index);
            return if is_tree_page(child) {
                Ok(())
            } else {
                Err(format!("invalid child page {child}"))
            };
        }
        match u32_at(&self.bytes, self.element(index)) {
            0 => Ok(()),
            BUCKET_FLAG if value_bytes as usize >= BUCKET_HEADER_BYTES => Ok(()),
            BUCKET_FLAG => Err(format!("element {index} is too short for a bucket")),
            flags => Err(format!("element {index} has invalid flags {flags:#x}")),
        }
    }

    pub(super) fn id(&self) -> PageId {
        self.id
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.is_leaf
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    #[inline]
    pub(super) fn key(&self, index: usize) -> &[u8] {
        let (from, key_bytes, _) = self.place(index);
        &self.bytes[from..from + key_bytes]
    }

    pub(super) fn value(&self, index: usize) -> &[u8] {
        let (from, key_bytes, value_bytes) = self.place(index);
        &self.bytes[from + key_bytes..from + key_bytes + value_bytes]
    }

    /// Returns the value as a slice that shares the page's bytes.
    pub(super) fn shared_value(&self, index: usize) -> Bytes {
        self.bytes.slice_ref(self.value(index))
    }

    pub(super) fn is_bucket(&self, index: usize) -> bool {
        self.is_leaf && u32_at(&self.bytes, self.element(index)) == BUCKET_FLAG
    }

    /// Returns the child page of an element of a branch.
    pub(super) fn child(&self, index: usize) -> PageId {
        u64_at(&self.bytes, self.element(index) + 8)
    }

    pub(super) fn leaf_element(&self, index: usize) -> LeafElement {
        let (from, key_bytes, value_bytes) = self.place(index);
        let record = self.bytes.slice(from..from + key_bytes + value_bytes);
        LeafElement { is_bucket: self.is_bucket(index), key_bytes: key_bytes as u32, record }
    }

    pub(super) fn shared_key(&self, index: usize) -> Bytes {
        self.bytes.slice_ref(self.key(index))
    }

    /// Returns the number of bytes that the header, the elements, the keys and the values use.
    pub(super) fn used_bytes(&self) -> usize {
        let data = |index| {
            let (_, key_bytes, value_bytes) = self.place(index);
            key_bytes + value_bytes
        };
        self.element(self.count) + (0..self.count).map(data).sum::<usize>()
    }

    /// Returns the offset at which an element starts.
    fn element(&self, index: usize) -> usize {
        PAGE_HEADER_BYTES + index * ELEMENT_BYTES
    }

    /// Returns the position, key size and value size that are stored in the element.
    #[inline]
    fn sizes(&self, index: usize) -> (u32, u32, u32) {
        let at = self.element(index);
        // The array needs one bounds check for the whole element, not one for each field.
        let element: &[u8; ELEMENT_BYTES] =
            self.bytes[at..at + ELEMENT_BYTES].try_into().expect("an element's length");
        match self.is_leaf {
            true => (u32_at(element, 4), u32_at(element, 8), u32_at(element, 12)),
            false => (u32_at(element, 0), u32_at(element, 4), 0),
        }
    }

    /// Returns the offset of the key, and the sizes of key and value.
    #[inline]
    fn place(&self, index: usize) -> (usize, usize, usize) {
        let (position, key_bytes, value_bytes) = self.sizes(index);
        (self.element(index) + position as usize, key_bytes as usize, value_bytes as usize)
    }
}

/// The readable part of a damaged page.
#[derive(Debug)]
pub(super) struct Salvage {
    /// The indexes of the readable elements. Only the keys and values of these elements may be
    /// requested.
    pub(super) elements: Vec<usize>,
    pub(super) page: Page,
}

/// One element of a leaf: a record or a bucket.
#[derive(Clone, Debug)]
pub(super) struct LeafElement {
    pub(super) is_bucket: bool,
    key_bytes: u32,
    /// The key, followed by the value as on the page.
    record: Bytes,
}

impl LeafElement {
    /// `record` is the key, followed by the value.
    pub(super) fn new(record: Bytes, key_bytes: usize, is_bucket: bool) -> LeafElement {
        LeafElement { is_bucket, key_bytes: key_bytes as u32, record }
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.record[..self.key_bytes as usize]
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.record[self.key_bytes as usize..]
    }

    pub(super) fn shared_key(&self) -> Bytes {
        self.record.slice(..self.key_bytes as usize)
    }

    pub(super) fn shared_value(&self) -> Bytes {
        self.record.slice(self.key_bytes as usize..)
    }

    /// Returns the number of bytes of key and value together.
    pub(super) fn record_bytes(&self) -> usize {
        self.record.len()
    }

    pub(super) fn encoded_bytes(&self) -> usize {
        ELEMENT_BYTES + self.record.len()
    }
}

/// A child of a branch: a lower bound of its keys, and its page.
#[derive(Clone, Debug)]
pub(super) struct BranchElement {
    pub(super) key: Bytes,
    pub(super) child: PageId,
}

impl BranchElement {
    pub(super) fn encoded_bytes(&self) -> usize {
        ELEMENT_BYTES + self.key.len()
    }
}

/// Returns the encoded leaf of `page_bytes` bytes, including its overflow. An inline page has the
/// id 0 and is as long as its contents.
pub(super) fn encode_leaf(
    id: PageId,
    page_size: usize,
    page_bytes: usize,
    elements: &[LeafElement],
) -> Bytes {
    let mut page = new_page(id, LEAF_FLAG, elements.len(), page_size, page_bytes);
    let mut data = elements.len() * ELEMENT_BYTES;
    for (index, element) in elements.iter().enumerate() {
        page.put_u32_le(if element.is_bucket { BUCKET_FLAG } else { 0 });
        page.put_u32_le((data - index * ELEMENT_BYTES) as u32);
        page.put_u32_le(element.key_bytes);
        page.put_u32_le(element.record.len() as u32 - element.key_bytes);
        data += element.record.len();
    }
    for element in elements {
        page.put_slice(&element.record);
    }
    page.resize(page_bytes, 0);
    page.freeze()
}

pub(super) fn encode_branch(
    id: PageId,
    page_size: usize,
    page_bytes: usize,
    elements: &[BranchElement],
) -> Bytes {
    let mut page = new_page(id, BRANCH_FLAG, elements.len(), page_size, page_bytes);
    let mut data = elements.len() * ELEMENT_BYTES;
    for (index, element) in elements.iter().enumerate() {
        page.put_u32_le((data - index * ELEMENT_BYTES) as u32);
        page.put_u32_le(element.key.len() as u32);
        page.put_u64_le(element.child);
        data += element.key.len();
    }
    for element in elements {
        page.put_slice(&element.key);
    }
    page.resize(page_bytes, 0);
    page.freeze()
}

fn new_page(id: PageId, flags: u16, count: usize, page_size: usize, page_bytes: usize) -> BytesMut {
    assert!(count <= ELEMENTS_MAX, "{count} elements of a page");
    let mut page = BytesMut::with_capacity(page_bytes + PAGE_BUFFER_EXTRA);
    let overflow = page_bytes.div_ceil(page_size) as u32 - 1;
    PageHeader { id, flags, count: count as u16, overflow }.append_to(&mut page);
    page
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn element(key: &str, value: &str) -> LeafElement {
        LeafElement::new(Bytes::from(format!("{key}{value}")), key.len(), false)
    }

    fn leaf(pairs: &[(&str, &str)]) -> Bytes {
        let elements: Vec<_> = pairs.iter().map(|(key, value)| element(key, value)).collect();
        encode_leaf(7, 4096, 4096, &elements)
    }

    #[test]
    fn a_leaf_is_read_back_and_lies_as_bbolt_has_it() {
        let bytes = leaf(&[("a", "1"), ("bc", ""), ("d", "45")]);
        let expected: &[u8] = &[7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0];
        assert_eq!(&bytes[..16], expected);
        // The second element has no flags. Its position is 34: the lengths of two elements, and two
        // bytes of the first record.
        assert_eq!(&bytes[32..48], [0, 0, 0, 0, 34, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[64..71], b"a1bcd45");
        let page = Page::parse(bytes, 7).unwrap();
        assert!(page.is_leaf());
        let pairs: Vec<_> =
            (0..page.count()).map(|index| (page.key(index), page.value(index))).collect();
        assert_eq!(pairs, [(&b"a"[..], &b"1"[..]), (b"bc", b""), (b"d", b"45")]);
        assert_eq!(page.leaf_element(2).value(), b"45");
    }

    #[test]
    fn a_branch_is_read_back() {
        let children = [("a", 9), ("m", 4)];
        let elements = children.map(|(key, child)| BranchElement { key: Bytes::from(key), child });
        let page = Page::parse(encode_branch(5, 1024, 2048, &elements), 5).unwrap();
        assert!(!page.is_leaf());
        assert_eq!(PageHeader::parse(page.bytes()).overflow, 1);
        assert_eq!((page.key(1), page.child(1), page.count()), (&b"m"[..], 4, 2));
    }

    #[test]
    fn what_is_malformed_is_refused_with_a_reason() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = leaf(&[("a", "1"), ("b", "2")]).to_vec();
            change(&mut bytes);
            Page::parse(Bytes::from(bytes), 7).unwrap_err().reason
        };
        assert_eq!(refused(&|page| page[0] = 8), "has the id 8 in its header");
        assert_eq!(refused(&|page| page[8] = 3), "flags 0x3, not a branch or leaf");
        assert_eq!(refused(&|page| page[11] = 1), "258 elements do not fit");
        assert_eq!(refused(&|page| page[16] = 2), "element 0 has invalid flags 0x2");
        assert_eq!(refused(&|page| page[16] = 1), "element 0 is too short for a bucket");
        assert_eq!(refused(&|page| page[20] = 0), "element 0 is outside the page");
        assert_eq!(refused(&|page| page[31] = 1), "element 0 is outside the page");
        assert_eq!(refused(&|page| page[36] -= 1), "element 1 overlaps the previous one");
        assert_eq!(refused(&|page| page[24] = 0), "element 0 has a key of 0 bytes");
        assert_eq!(refused(&|page| page[48] = b'c'), "the key of element 1 is out of order");
        assert_eq!(refused(&|page| page.truncate(9)), "9 bytes are too few for a page");
        let no_branch = refused(&|page| page[8..12].copy_from_slice(&[1, 0, 0, 0]));
        assert_eq!(no_branch, "a branch without children");
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut rng = StdRng::seed_from_u64(1);
        let good = leaf(&[("a", "1"), ("bc", "23"), ("d", "456")]);
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = good.to_vec();
            bytes.truncate(rng.random_range(0..200));
            for _ in 0..rng.random_range(0..4) {
                if !bytes.is_empty() {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] = rng.random();
                }
            }
            if let Ok(page) = Page::parse(Bytes::from(bytes), 7) {
                parsed += 1;
                for index in 0..page.count() {
                    assert!(page.key(index).len() + page.value(index).len() < 200);
                    assert!(page.is_leaf() || page.child(index) >= 2);
                }
            }
        }
        assert!(parsed > 100, "{parsed}");
    }
}
