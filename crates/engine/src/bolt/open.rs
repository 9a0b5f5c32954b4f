//! Opens a file, or creates a new one.
//!
//! 1. The current state is given by the valid meta page with the larger txid. One of the two meta
//!    pages may be damaged. If the damaged page had the last commit, the store opens one commit
//!    earlier. The member then applies the entries of that commit again from its log, or it refuses
//!    to start (`open_at_start` in crate `replica`).
//! 2. If the chosen meta page names a checksum table, the table is read. If there is no table, or
//!    if it is damaged, the checksums are computed from the pages in use, and the next commit
//!    writes a new table.
//! 3. The [walk](super::walk) checks all pages in use. All other pages are free.
//! 4. The chosen meta page is written again and synced, because the previous process may have died
//!    before its sync. It is written to page `txid % 2`, although bbolt's `Tx.WriteTo` may have put
//!    it on the other page. The next commit writes that other page, which also repairs it if it was
//!    damaged.
//!
//! A file that cannot be opened stays unchanged. Damage that was found and repaired is listed in
//! the [notes](BoltStore::notes).

use std::io;
use std::path::Path;

use bytes::Bytes;

use super::checksums::{ChecksumTable, TableRoot};
use super::commit::commit;
use super::file::StoreFile;
use super::freelist::Freelist;
use super::meta::{
    META_PAGE_BYTES, Meta, MetaPage, NO_FREELIST, PAGE_SIZE_MAX, PAGE_SIZE_MIN, encode_meta_page,
    parse_meta_page,
};
use super::page::{Damage, PageId, PageRun, encode_leaf};
use super::pager::Pager;
use super::store::{BoltStore, Buckets, Committed, WriterState, load_buckets};
use super::walk::{InUse, Walk};
use crate::error::{Error, Result};
use crate::interface::OpeningNote;
use crate::options::Options;
use crate::place::SharedPath;

/// The page size of a new file.
pub(super) const PAGE_SIZE: usize = 4096;

impl BoltStore {
    /// Creates a store with the ten buckets in an empty file. The store is on disk when the call
    /// returns.
    pub(super) fn create_on(
        file: Box<dyn StoreFile>,
        page_size: usize,
        path: impl Into<SharedPath>,
        options: &Options,
    ) -> Result<BoltStore> {
        let (root, high_water) = (2, 3);
        let meta = |txid| Meta {
            page_size: page_size as u32,
            root,
            sequence: 0,
            freelist: NO_FREELIST,
            high_water,
            txid,
        };
        let pager = Pager::new(file, page_size, path, options);
        let empty = encode_leaf(root, page_size, page_size, &[]);
        pager.set_sums(&[(root, crc32c::crc32c(&empty))]);
        let meta_page = |txid| Bytes::from(encode_meta_page(&meta(txid), None));
        pager.grow(high_water)?;
        pager.write(&[(0, meta_page(0)), (1, meta_page(1)), (root, empty)])?;
        let writer =
            WriterState { freelist: Freelist::new(high_water), table: ChecksumTable::default() };
        let newest = Committed { meta: meta(1), buckets: Buckets::default(), size_in_use: 0 };
        let store = BoltStore::new(pager, newest, writer, Vec::new());
        commit(&store, Default::default(), 0)?;
        Ok(store)
    }

    pub(super) fn open_on(
        file: Box<dyn StoreFile>,
        path: impl Into<SharedPath>,
        options: &Options,
    ) -> Result<BoltStore> {
        let (shared, mut notes) = (path.into(), Vec::new());
        let path = &*shared.get();
        let len = file.len().map_err(Error::at(path))?;
        let chosen = choose_meta(&*file, path, &mut notes)?;
        let MetaPage { meta, table: root, is_damaged, is_of_bbolt, is_misplaced } = chosen;
        let needed = meta.high_water * u64::from(meta.page_size);
        if needed > len {
            let detail =
                format!("cut short: the file has {len} bytes, but its pages need {needed}");
            return Err(Error::corrupt(path, detail));
        }
        let pager = Pager::new(file, meta.page_size as usize, shared, options);
        let table = load_table(&pager, (&meta, root, is_of_bbolt), &mut notes)?;
        let root = root.filter(|_| table.is_some());
        let mut walk = Walk::new(&pager, meta.high_water, root.is_some());
        let mut in_use = InUse::new();
        walk.walk(meta.root, &mut in_use)?;
        let table = table.unwrap_or_default();
        table.runs().try_for_each(|run| walk.claim(run))?;
        let mut freelist = Freelist::new(meta.high_water);
        if meta.freelist != NO_FREELIST {
            // The freelist's own pages stay in use until the next commit, because the current meta
            // page refers to them.
            let run = walk.check_freelist(meta.freelist)?;
            freelist.free_after(meta.txid + 1, vec![run]);
        }
        walk.unused().into_iter().for_each(|run| freelist.free(run));
        for bucket in &in_use.foreign_buckets {
            let note = format!("bucket {bucket:?} is not etcd's: a defragmentation omits it");
            notes.push(OpeningNote::Expected(note));
        }
        let size_in_use = in_use.size;
        let has_foreign_buckets = !in_use.foreign_buckets.is_empty();
        let buckets = load_buckets(&pager, meta.root)?;
        // The state that was found must be on disk before anything is built on it. The previous
        // process may have died between a commit's last write and its sync, or the sync may have
        // failed.
        let meta_page = match is_damaged || is_misplaced {
            true => Bytes::from(encode_meta_page(&meta, root)),
            false => pager.read_run(PageRun { first: meta.place(), count: 1 })?,
        };
        pager.write_meta(meta.place(), &meta_page)?;
        let newest = Committed { meta, buckets, size_in_use };
        let writer = WriterState { freelist, table };
        let mut store = BoltStore::new(pager, newest, writer, notes);
        store.has_foreign_buckets = has_foreign_buckets;
        Ok(store)
    }
}

/// Reads both meta pages and returns the one with the current state. Adds notes about damaged meta
/// pages. Fails if neither is valid.
fn choose_meta(
    file: &dyn StoreFile,
    path: &Path,
    notes: &mut Vec<OpeningNote>,
) -> Result<MetaPage> {
    let page_size = find_page_size(file).map_err(Error::at(path))?;
    let read = |place| {
        let found = read_meta(file, place, page_size).map_err(Error::at(path))?;
        Ok::<_, Error>(found.and_then(|found| match found.meta.page_size {
            size if size as usize == page_size => Ok(found),
            size => Err(format!(
                "page size {size}, but it was found at the place for page size {page_size}"
            )),
        }))
    };
    let (chosen, lost) = match (read(0)?, read(1)?) {
        (Ok(even), Ok(odd)) if even.rank() > odd.rank() => (even, None),
        (Ok(_), Ok(odd)) => (odd, None),
        (Ok(even), Err(reason)) => (even, Some((1, reason))),
        (Err(reason), Ok(odd)) => (odd, Some((0, reason))),
        (Err(even), Err(odd)) => {
            let detail = format!("no meta page is valid: page 0: {even}; page 1: {odd}");
            return Err(Error::corrupt(path, detail));
        }
    };
    let MetaPage { meta: Meta { txid, .. }, is_damaged, .. } = chosen;
    if let Some((place, reason)) = lost {
        let detail = format!("meta page {place} is damaged: {reason}");
        let note = format!("{detail}; the state is of transaction {txid}; a later one may be lost");
        notes.push(OpeningNote::Repaired(note));
    }
    if is_damaged {
        let note = format!("the meta page of transaction {txid} was damaged and is repaired");
        notes.push(OpeningNote::Repaired(note));
    }
    Ok(chosen)
}

/// Returns the page size that the first meta page states. If the first is damaged, searches for the
/// second, which follows it at a distance of one page. Returns [`PAGE_SIZE`] if neither is valid.
pub(super) fn find_page_size(file: &dyn StoreFile) -> io::Result<usize> {
    if let Ok(found) = read_meta(file, 0, PAGE_SIZE)? {
        return Ok(found.meta.page_size as usize);
    }
    let mut page_size = PAGE_SIZE_MIN;
    while page_size <= PAGE_SIZE_MAX {
        match read_meta(file, 1, page_size)? {
            Ok(found) if found.meta.page_size as usize == page_size => return Ok(page_size),
            _ => page_size *= 2,
        }
    }
    Ok(PAGE_SIZE)
}

pub(super) fn read_meta(
    file: &dyn StoreFile,
    place: PageId,
    page_size: usize,
) -> io::Result<std::result::Result<MetaPage, String>> {
    let offset = place * page_size as u64;
    let mut bytes = [0; META_PAGE_BYTES];
    if file.len()? < offset + META_PAGE_BYTES as u64 {
        return Ok(Err("the file is too short".to_owned()));
    }
    file.read_at(offset, &mut bytes)?;
    Ok(parse_meta_page(&bytes, place))
}

const RECALCULATED: &str = "the next commit writes new ones";

/// Reads the checksum table and gives its checksums to the pager. If the table is missing or
/// damaged, adds a note and returns `None`.
fn load_table(
    pager: &Pager,
    (meta, root, is_of_bbolt): (&Meta, Option<TableRoot>, bool),
    notes: &mut Vec<OpeningNote>,
) -> Result<Option<ChecksumTable>> {
    let Some(root) = root else {
        notes.push(match is_of_bbolt {
            true => OpeningNote::Expected(format!(
                "another program, such as etcd, wrote this state without checksums; {RECALCULATED}"
            )),
            false => OpeningNote::Repaired(format!(
                "the checksums of this state are missing; {RECALCULATED}"
            )),
        });
        return Ok(None);
    };
    match read_table(pager, meta.high_water, root) {
        Ok((table, sums)) => {
            pager.replace_sums(sums);
            Ok(Some(table))
        }
        Err(LoadError::Table(Damage { page, reason })) => {
            let note = format!("page {page}: {reason}; {RECALCULATED}");
            notes.push(OpeningNote::Repaired(note));
            Ok(None)
        }
        Err(LoadError::File(error)) => Err(error),
    }
}

pub(super) fn read_table(
    pager: &Pager,
    high_water: PageId,
    root: TableRoot,
) -> std::result::Result<(ChecksumTable, Vec<u32>), LoadError> {
    let mut read = |run| pager.read_run(run).map_err(LoadError::File);
    ChecksumTable::load(root, pager.page_size(), high_water, &mut read)
}

/// The reason why a checksum table was not read.
#[derive(Debug)]
pub(super) enum LoadError {
    /// The table is damaged.
    Table(Damage),
    File(Error),
}

impl From<Damage> for LoadError {
    fn from(damage: Damage) -> LoadError {
        LoadError::Table(damage)
    }
}
