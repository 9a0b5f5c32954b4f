//! One page, as far as it can be read.

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
    /// The first page of the checksum table: where its pages are.
    ChecksumRoot,
    /// A page of the checksum table.
    ChecksumTable,
    /// No tree reaches it, and it has no other use.
    Free,
    /// Its header says none of these.
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

/// A page, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct PageView {
    pub id: PageId,
    /// What its header says, also of a page that is free by now.
    pub kind: PageKind,
    pub flags: u16,
    /// The id that its header has.
    pub said_id: PageId,
    /// The number of elements that its header has.
    pub count: u16,
    pub overflow: u32,
    /// The page with its overflow, as far as the file has it.
    pub bytes: Bytes,
    pub body: PageBody,
    /// Each in one line.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug)]
pub enum PageBody {
    /// Or why it cannot be used.
    Meta(std::result::Result<MetaPage, String>),
    Branch(ElementsView<BranchItem>),
    Leaf(ElementsView<LeafItem>),
    /// The pages that are free.
    Freelist(Vec<PageId>),
    /// The pages of the checksum table, and the checksum of each.
    ChecksumRoot(Vec<(PageId, u32)>),
    ChecksumTable {
        /// The page that the first of the sums is of; `None` if the table does not count any more.
        first: Option<PageId>,
        sums: Vec<u32>,
    },
    Unknown,
}

/// The elements that can be read, and their numbers.
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
    /// If it is a bucket.
    pub bucket: Option<BucketValue>,
}

/// What the value of a bucket says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketValue {
    /// `None` if it is inline.
    pub root: Option<PageId>,
    pub sequence: u64,
    /// The records of an inline bucket.
    pub records: Vec<LeafItem>,
}

impl BoltFile {
    /// A page, whatever its state. Refused is one behind the end of the file.
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
                // Without its overflow, it can be read or there is nothing to be shown.
                self.pager.read_run(PageRun { first: id, count: 1 })?
            }
        };
        let header = PageHeader::parse(&bytes);
        if header.id != id {
            problems.push(format!("says that it is page {}", header.id));
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
                problems.push("a meta page, which is page 0 or 1".to_owned());
                PageBody::Meta(parse_meta_page(&bytes[..META_PAGE_BYTES], id))
            }
            PageKind::Branch | PageKind::Leaf => elements_body(id, bytes, problems),
            PageKind::Freelist => {
                let (count, ids) = freelist_entries(bytes);
                if count > ids.len() as u64 {
                    problems.push(format!("a freelist of {count} pages"));
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
                problems.push(format!("flags {:#x}", PageHeader::parse(bytes).flags));
                PageBody::Unknown
            }
        }
    }

    fn meta_body(&self, id: PageId, problems: &mut Vec<String>) -> PageBody {
        let meta = &self.metas()[id as usize];
        match meta {
            Ok(MetaPage { is_damaged: true, .. }) => {
                problems.push("the first copy or the header is damaged, the second is whole".into())
            }
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

/// An error of a page, without the path and the number of the page.
pub(super) fn reason_of(error: Error, id: PageId) -> String {
    match error {
        Error::Corrupt { detail, .. } => match detail.strip_prefix(&format!("page {id}: ")) {
            Some(reason) => reason.to_owned(),
            None => detail,
        },
        other => other.to_string(),
    }
}
