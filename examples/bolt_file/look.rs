//! A file as the engine's module `inspect` shows it: its bytes, its meta pages, and each page.

use std::fs;
use std::path::{Path, PathBuf};

use clearlane_engine::bolt::inspect::{
    BoltFile, BranchItem, BucketValue, LeafItem, Meta, MetaPage, PageBody, PageKind, PageView,
    Survey,
};

use crate::story::Outcome;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MetaLook {
    /// The id of this meta page.
    pub(crate) place: u64,
    pub(crate) txid: u64,
    pub(crate) root: u64,
    pub(crate) high_water: u64,
    /// The page of the checksum table's root. 0 if there is none.
    pub(crate) table_root: u64,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Branch,
    Leaf,
    /// The continuation of the page with this id.
    Overflow(u64),
    Table,
    TableRoot,
    Free,
}

pub(crate) struct PageLook {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) overflow: u64,
    /// The bucket whose tree contains the page. Empty if the page is in the tree that contains the
    /// buckets.
    pub(crate) tree: String,
    pub(crate) elements: Vec<Element>,
}

impl PageLook {
    pub(crate) fn is_leaf(&self) -> bool {
        self.kind == Kind::Leaf
    }
}

pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    /// The value. Empty in a branch.
    pub(crate) value: Vec<u8>,
    /// The child page. `None` in a leaf.
    pub(crate) child: Option<u64>,
    pub(crate) bucket: Option<BucketValue>,
}

impl Element {
    /// Returns the root page of a bucket that is not inline.
    pub(crate) fn root(&self) -> Option<u64> {
        self.bucket.as_ref()?.root
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| bucket.root.is_none())
    }
}

/// A file at one point in time.
pub(crate) struct Look {
    bytes: Vec<u8>,
    page_size: u64,
    metas: [MetaLook; 2],
    /// All pages by their id, including the meta pages.
    pages: Vec<PageLook>,
}

/// Returns the path of the store's file in `dir`.
pub(crate) fn data_file(dir: &Path) -> Outcome<PathBuf> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.path()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    let is_data = |path: &&PathBuf| path.file_stem().is_some_and(|stem| stem == "data");
    Ok(names.iter().find(is_data).ok_or("the store has no file")?.clone())
}

/// Returns the revision that `key` encodes, or `None` if it encodes no revision.
pub(crate) fn revision(key: &[u8]) -> Option<(u64, u64)> {
    let (main, rest) = key.split_first_chunk::<8>()?;
    let sub: [u8; 8] = rest.strip_prefix(b"_")?.try_into().ok()?;
    Some((u64::from_be_bytes(*main), u64::from_be_bytes(sub)))
}

impl Look {
    /// Reads the store in `dir`. An open store locks its file, so this function reads a copy of the
    /// file.
    pub(crate) fn at(dir: &Path) -> Outcome<Look> {
        let copy = dir.with_extension("copy");
        fs::copy(data_file(dir)?, &copy)?;
        let file = BoltFile::open(&copy)?;
        let survey = file.survey()?;
        assert!(survey.problems.is_empty(), "{:?}", survey.problems);
        let [even, odd] = file.metas();
        let metas = [meta_look(even, 0)?, meta_look(odd, 1)?];
        let pages = (0..file.pages()).map(|id| page_look(&file, &survey, id));
        let (bytes, page_size) = (fs::read(&copy)?, file.page_size() as u64);
        Ok(Look { bytes, page_size, metas, pages: pages.collect::<Outcome<_>>()? })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn page_size(&self) -> u64 {
        self.page_size
    }

    pub(crate) fn metas(&self) -> &[MetaLook; 2] {
        &self.metas
    }

    pub(crate) fn newest(&self) -> &MetaLook {
        let [even, odd] = &self.metas;
        if even.txid > odd.txid { even } else { odd }
    }

    pub(crate) fn page(&self, id: u64) -> &PageLook {
        &self.pages[id as usize]
    }

    /// Returns the bytes of one page, without its overflow pages.
    pub(crate) fn page_bytes(&self, id: u64) -> Option<&[u8]> {
        let from = (id * self.page_size) as usize;
        self.bytes.get(from..from + self.page_size as usize)
    }

    /// Returns whether the page is in a tree of the newest state.
    pub(crate) fn is_in_tree(&self, id: u64) -> bool {
        let kind = self.pages.get(id as usize).filter(|_| id >= 2).map(|page| &page.kind);
        matches!(kind, Some(Kind::Branch | Kind::Leaf | Kind::Overflow(_)))
    }

    /// Returns whether the newest state uses the page: in a tree, for the checksums, or as a meta
    /// page.
    pub(crate) fn is_used(&self, id: u64) -> bool {
        id < 2 || self.pages.get(id as usize).is_some_and(|page| page.kind != Kind::Free)
    }

    /// Returns the page of the checksum table. Each file of this example has one.
    pub(crate) fn table_page(&self) -> u64 {
        let table = self.pages.iter().find(|page| page.kind == Kind::Table);
        table.map_or(0, |page| page.id)
    }

    /// Returns the leaves of a bucket, in the order of their keys.
    pub(crate) fn leaves_of(&self, bucket: &str) -> Vec<&PageLook> {
        let is_leaf = |page: &&PageLook| page.is_leaf() && page.tree == bucket;
        let mut leaves: Vec<_> = self.pages.iter().filter(is_leaf).collect();
        leaves.sort_by_key(|leaf| leaf.elements.first().map(|element| &element.key));
        leaves
    }
}

fn meta_look(found: &Result<MetaPage, String>, place: u64) -> Outcome<MetaLook> {
    let page = found.as_ref().map_err(String::clone)?;
    let (Meta { txid, root, high_water, .. }, table) = (page.meta, page.table);
    Ok(MetaLook { place, txid, root, high_water, table_root: table.map_or(0, |table| table.page) })
}

fn page_look(file: &BoltFile, survey: &Survey, id: u64) -> Outcome<PageLook> {
    let entry = survey.page(id).ok_or("a page that the survey has not")?;
    let kind = match entry.kind {
        _ if entry.id < id => Kind::Overflow(entry.id),
        PageKind::Branch => Kind::Branch,
        PageKind::Leaf => Kind::Leaf,
        PageKind::ChecksumRoot => Kind::TableRoot,
        PageKind::ChecksumTable => Kind::Table,
        _ => Kind::Free,
    };
    let elements = match kind {
        Kind::Branch | Kind::Leaf => elements_of(file.page(id)?),
        _ => Vec::new(),
    };
    let bucket = entry.bucket.and_then(|index| survey.buckets[index].path.first());
    let tree = bucket.map_or_else(String::new, |name| String::from_utf8_lossy(name).into_owned());
    Ok(PageLook { id, kind, overflow: entry.overflow, tree, elements })
}

fn elements_of(page: PageView) -> Vec<Element> {
    match page.body {
        PageBody::Branch(items) => {
            items.into_iter().map(|(_, item)| branch_element(item)).collect()
        }
        PageBody::Leaf(items) => items.into_iter().map(|(_, item)| leaf_element(item)).collect(),
        _ => Vec::new(),
    }
}

fn branch_element(BranchItem { key, child }: BranchItem) -> Element {
    Element { key: key.to_vec(), value: Vec::new(), child: Some(child), bucket: None }
}

fn leaf_element(LeafItem { key, value, bucket }: LeafItem) -> Element {
    Element { key: key.to_vec(), value: value.to_vec(), child: None, bucket }
}
