//! One page, as far as it is readable.

use bytes::Bytes;

use super::{BoltFile, MetaPage, PageId};
use crate::bolt::checksums::{root_entries, sums_per_page, table_entries};
use crate::bolt::meta::{META_PAGE_BYTES, parse_meta_page};
use crate::bolt::page::{
    BRANCH_FLAG, BUCKET_HEADER_BYTES, CHECKSUM_FLAG, FREELIST_FLAG, LEAF_FLAG, META_FLAG, Page,
    PageHeader, PageRun, Salvage, u64_at,
};
use crate::bolt::tree::{BucketHead, BucketRoot};
use crate::bolt::walk::freelist_entries;
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKind {
    Meta,
    Branch,
    Leaf,
    Freelist,
    /// The first page of the checksum table, which lists the table's pages.
    ChecksumRoot,
    /// A page of the checksum table that contains checksums of pages.
    ChecksumTable,
    /// No tree contains the page, and it has no other use.
    Free,
    /// The page's header shows no known kind.
    Unknown,
}

impl PageKind {
    pub const fn name(self) -> &'static str {
        match self {
            PageKind::Meta => "meta",
            PageKind::Branch => "branch",
            PageKind::Leaf => "leaf",
            PageKind::Freelist => "freelist",
            PageKind::ChecksumRoot => "checksum-root",
            PageKind::ChecksumTable => "checksum-table",
            PageKind::Free => "free",
            PageKind::Unknown => "unknown",
        }
    }

    pub(super) fn of_flags(flags: u16) -> PageKind {
        match flags {
            BRANCH_FLAG => PageKind::Branch,
            LEAF_FLAG => PageKind::Leaf,
            META_FLAG => PageKind::Meta,
            FREELIST_FLAG => PageKind::Freelist,
            CHECKSUM_FLAG => PageKind::ChecksumTable,
            _ => PageKind::Unknown,
        }
    }
}

/// The contents of a page, and its problems.
#[derive(Clone, Debug)]
pub struct PageView {
    pub id: PageId,
    /// The kind that the page's header states. The exception is the root of the current checksum
    /// table, which is recognized by its id. A free page keeps the kind that it had when it was
    /// written.
    pub kind: PageKind,
    pub flags: u16,
    /// The id in the page's header.
    pub said_id: PageId,
    /// The number of elements that the page's header states.
    pub count: u16,
    pub overflow: u32,
    /// The bytes of the page and its overflow, or only of the page if its overflow cannot be read.
    pub bytes: Bytes,
    pub body: PageBody,
    /// The problems of the page, each in one line.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug)]
pub enum PageBody {
    /// The meta page, or the reason why it cannot be used.
    Meta(std::result::Result<MetaPage, String>),
    Branch(ElementsView<BranchItem>),
    Leaf(ElementsView<LeafItem>),
    /// The pages that the freelist lists as free.
    Freelist(Vec<PageId>),
    /// The pages of the checksum table, each with its checksum.
    ChecksumRoot(Vec<(PageId, u32)>),
    ChecksumTable {
        /// The page to which the first checksum belongs, or `None` if this page is not part of the
        /// current table.
        first: Option<PageId>,
        sums: Vec<u32>,
    },
    Unknown,
}

/// The readable elements of a page, each with its index.
pub type ElementsView<T> = Vec<(usize, T)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchItem {
    pub key: Bytes,
    pub child: PageId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafItem {
    pub key: Bytes,
    pub value: Bytes,
    /// The contents of the bucket, or `None` if the element is a record.
    pub bucket: Option<BucketValue>,
}

/// The contents of a bucket's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketValue {
    /// The root page of the bucket, or `None` if the bucket is inline.
    pub root: Option<PageId>,
    pub sequence: u64,
    /// The records of an inline bucket. The list is empty if the bucket is not inline.
    pub records: Vec<LeafItem>,
}

impl BoltFile {
    /// Returns page `id`, even if it is damaged or free. Fails if the page is after the end of the
    /// file, or cannot be read.
    pub fn page(&self, id: PageId) -> Result<PageView> {
        let pages = self.bytes() / self.page_size() as u64;
        if id >= pages {
            return Err(Error::NoPage { path: self.path().to_owned(), page: id, pages });
        }
        let mut problems = Vec::new();
        let bytes = match self.pager.read(id) {
            Ok(bytes) => bytes,
            Err(error) => {
                problems.push(reason_of(error, id));
                // The overflow is unreadable, so only the first page is shown. If the first page is
                // unreadable as well, the call fails.
                self.pager.read_run(PageRun { first: id, count: 1 })?
            }
        };
        let header = PageHeader::parse(&bytes);
        if header.id != id {
            problems.push(format!("has the id {} in its header", header.id));
        }
        let mut kind = PageKind::of_flags(header.flags);
        if self.table_root().is_some_and(|root| root.first == id) {
            kind = PageKind::ChecksumRoot;
        }
        let body = self.body(id, kind, &bytes, &mut problems);
        let PageHeader { id: said_id, flags, count, overflow } = header;
        Ok(PageView { id, kind, flags, said_id, count, overflow, bytes, body, problems })
    }

    fn body(
        &self,
        id: PageId,
        kind: PageKind,
        bytes: &Bytes,
        problems: &mut Vec<String>,
    ) -> PageBody {
        match kind {
            _ if id < 2 => self.meta_body(id, problems),
            PageKind::Meta => {
                problems
                    .push("is a meta page, but only pages 0 and 1 can be meta pages".to_owned());
                PageBody::Meta(parse_meta_page(&bytes[..META_PAGE_BYTES], id))
            }
            PageKind::Branch | PageKind::Leaf => elements_body(id, bytes, problems),
            PageKind::Freelist => {
                let (count, ids) = freelist_entries(bytes);
                if count > ids.len() as u64 {
                    problems.push(format!("a freelist of {count} pages, more than fit"));
                }
                PageBody::Freelist(ids.take(count as usize).collect())
            }
            PageKind::ChecksumRoot => {
                let pages = root_entries(bytes).take_while(|(page, _)| *page != 0);
                PageBody::ChecksumRoot(pages.collect())
            }
            PageKind::ChecksumTable => {
                let position = self.table.position(id);
                let first = position.map(|index| (index * sums_per_page(self.page_size())) as u64);
                PageBody::ChecksumTable { first, sums: table_entries(bytes).collect() }
            }
            PageKind::Free | PageKind::Unknown => {
                problems.push(format!("invalid flags {:#x}", PageHeader::parse(bytes).flags));
                PageBody::Unknown
            }
        }
    }

    fn meta_body(&self, id: PageId, problems: &mut Vec<String>) -> PageBody {
        let meta = &self.metas()[id as usize];
        match meta {
            Ok(MetaPage { is_damaged: true, .. }) => problems
                .push("the first copy or the header is damaged; the second copy is intact".into()),
            Ok(_) => {}
            Err(reason) => problems.push(reason.clone()),
        }
        PageBody::Meta(meta.clone())
    }
}

fn elements_body(id: PageId, bytes: &Bytes, problems: &mut Vec<String>) -> PageBody {
    if let Err(damage) = Page::parse(bytes.clone(), id)
        && !problems.contains(&damage.reason)
    {
        problems.push(damage.reason);
    }
    let Ok(Salvage { page, elements }) = Page::salvage(bytes.clone(), id) else {
        return PageBody::Unknown;
    };
    let elements = elements.into_iter();
    if !page.is_leaf() {
        let item = |index| BranchItem { key: page.shared_key(index), child: page.child(index) };
        return PageBody::Branch(elements.map(|index| (index, item(index))).collect());
    }
    let items = elements.map(|index| (index, leaf_item(&page, index, problems)));
    PageBody::Leaf(items.collect())
}

fn leaf_item(page: &Page, index: usize, problems: &mut Vec<String>) -> LeafItem {
    let (key, value) = (page.shared_key(index), page.shared_value(index));
    let bucket = page.is_bucket(index).then(|| match BucketHead::parse(&value) {
        Ok(head) => bucket_value(&head),
        Err(damage) => {
            problems.push(format!("element {index}: {}", damage.reason));
            let root = (value.len() >= BUCKET_HEADER_BYTES).then(|| u64_at(&value, 0));
            BucketValue { root: root.filter(|root| *root != 0), sequence: 0, records: Vec::new() }
        }
    });
    LeafItem { key, value, bucket }
}

pub(super) fn bucket_value(head: &BucketHead) -> BucketValue {
    let (root, records) = match &head.root {
        BucketRoot::Stored(root) => (Some(*root), Vec::new()),
        BucketRoot::Inline(page) => {
            let item = |index| LeafItem {
                key: page.shared_key(index),
                value: page.shared_value(index),
                bucket: None,
            };
            (None, (0..page.count()).map(item).collect())
        }
    };
    BucketValue { root, sequence: head.sequence, records }
}

/// Returns the text of a page's error, without the path and without the page's number.
pub(super) fn reason_of(error: Error, id: PageId) -> String {
    match error {
        Error::Corrupt { detail, .. } => match detail.strip_prefix(&format!("page {id}: ")) {
            Some(reason) => reason.to_owned(),
            None => detail,
        },
        other => other.to_string(),
    }
}
