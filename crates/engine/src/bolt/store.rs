//! An open file: the newest commit, which snapshots are open, and what the writer knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::checksums::ChecksumTable;
use super::freelist::Freelist;
use super::meta::Meta;
use super::page::{Page, PageId};
use super::pager::Pager;
use super::tree::{self, BucketHead, BucketRoot, TreePage};
use crate::bucket::Bucket;
use crate::durable::DataPath;
use crate::error::Result;
use crate::interface::OpeningNote;

/// One committed state.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) meta: Meta,
    pub(super) buckets: Buckets,
    pub(super) size_in_use: u64,
}

pub(super) type Buckets = [CommittedBucket; Bucket::ALL.len()];

#[derive(Clone, Debug, Default)]
pub(super) struct CommittedBucket {
    /// Kept at hand, since every read begins there. `None` if there is no such bucket.
    pub(super) root: Option<Page>,
    pub(super) sequence: u64,
}

#[derive(Debug)]
pub(super) struct WriterState {
    pub(super) freelist: Freelist,
    pub(super) table: ChecksumTable,
}

#[derive(Debug)]
pub(crate) struct BoltStore {
    pub(super) pager: Pager,
    /// Held for a few instructions at a time.
    readers: Mutex<ReaderState>,
    /// Held by a commit. There is one writer, so no thread waits here.
    writer: Mutex<WriterState>,
    /// Buckets that are not the ten, which no commit changes.
    pub(super) has_foreign_buckets: bool,
    /// What opening has found and mended.
    pub(super) notes: Vec<OpeningNote>,
    /// Last, so that the file is closed when its path goes. Absent on a simulated disk.
    pub(super) data_path: Option<DataPath>,
}

#[derive(Debug)]
struct ReaderState {
    newest: Arc<Committed>,
    /// How many snapshots show the commit of each txid.
    open_snapshots: BTreeMap<u64, usize>,
}

impl BoltStore {
    pub(super) fn new(
        pager: Pager,
        newest: Committed,
        writer: WriterState,
        notes: Vec<OpeningNote>,
    ) -> BoltStore {
        let (newest, open_snapshots) = (Arc::new(newest), BTreeMap::new());
        let readers = Mutex::new(ReaderState { newest, open_snapshots });
        BoltStore {
            pager,
            readers,
            writer: Mutex::new(writer),
            has_foreign_buckets: false,
            notes,
            data_path: None,
        }
    }

    pub(super) fn at_path(self, data_path: DataPath) -> BoltStore {
        BoltStore { data_path: Some(data_path), ..self }
    }

    pub(super) fn newest(&self) -> Arc<Committed> {
        Arc::clone(&self.readers.lock().newest)
    }

    /// Its pages stay as they are until [`close_snapshot`](BoltStore::close_snapshot).
    pub(super) fn open_snapshot(&self) -> Arc<Committed> {
        let mut readers = self.readers.lock();
        let newest = Arc::clone(&readers.newest);
        *readers.open_snapshots.entry(newest.meta.txid).or_default() += 1;
        newest
    }

    pub(super) fn close_snapshot(&self, txid: u64) {
        let mut readers = self.readers.lock();
        if let Some(count) = readers.open_snapshots.get_mut(&txid) {
            *count -= 1;
            if *count == 0 {
                readers.open_snapshots.remove(&txid);
            }
        }
    }

    /// The txids of the states that snapshots show, and of the newest, which a new one would.
    pub(super) fn visible(&self) -> BTreeSet<u64> {
        let readers = self.readers.lock();
        let newest = readers.newest.meta.txid;
        readers.open_snapshots.keys().copied().chain([newest]).collect()
    }

    pub(super) fn publish(&self, committed: Committed) {
        let committed = Arc::new(committed);
        let old = std::mem::replace(&mut self.readers.lock().newest, committed);
        drop(old);
    }

    pub(super) fn writer(&self) -> MutexGuard<'_, WriterState> {
        self.writer.lock()
    }
}

/// The ten buckets as the tree with this root has them.
pub(super) fn load_buckets(pager: &Pager, root: PageId) -> Result<Buckets> {
    let root_page = pager.page(root)?;
    let mut buckets = Buckets::default();
    for bucket in Bucket::ALL {
        let page = TreePage::Committed(root_page.clone());
        let Some(element) = tree::find(page, bucket.name().as_bytes(), pager)? else { continue };
        if !element.is_bucket {
            return Err(pager.damaged(root, format!("{} is not a bucket", bucket.name())));
        }
        let head = BucketHead::parse(&element.shared_value());
        let head = head.map_err(|damage| damage.in_file(&pager.path()))?;
        let root = match head.root {
            BucketRoot::Inline(page) => page,
            BucketRoot::Stored(id) => pager.page(id)?,
        };
        let sequence = head.sequence;
        buckets[bucket.index()] = CommittedBucket { root: Some(root), sequence };
    }
    Ok(buckets)
}
