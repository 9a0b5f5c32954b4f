//! An open file: its newest commit, its open snapshots, and the state of the writer.

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
    /// The root page, or `None` if there is no such bucket. The root page is always in memory,
    /// because every read needs it.
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
    /// This lock is held for only a few instructions at a time.
    readers: Mutex<ReaderState>,
    /// This lock is held during a commit. Commits do not wait for each other, because there is only
    /// one writer. `free_bytes` also takes this lock, so it waits while a commit writes and syncs.
    writer: Mutex<WriterState>,
    /// If true, the file has buckets that are not among etcd's ten buckets. No commit changes these
    /// buckets.
    pub(super) has_foreign_buckets: bool,
    /// The notes from the opening: damage that was repaired, and expected differences such as
    /// missing checksums after a commit by etcd.
    pub(super) notes: Vec<OpeningNote>,
    /// The path of the store, or `None` on a simulated disk. The field is declared last, so that
    /// the file is closed before its path is removed.
    pub(super) data_path: Option<DataPath>,
}

#[derive(Debug)]
struct ReaderState {
    newest: Arc<Committed>,
    /// The number of open snapshots of each commit, by the commit's txid.
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

    /// Opens a snapshot of the newest state. Its pages do not change until
    /// [`close_snapshot`](BoltStore::close_snapshot) is called.
    pub(super) fn open_snapshot(&self) -> Arc<Committed> {
        let mut readers = self.readers.lock();
        let newest = Arc::clone(&readers.newest);
        *readers.open_snapshots.entry(newest.meta.txid).or_default() += 1;
        newest
    }

    /// Closes a snapshot. This frees no page: the next commit finds the pages that it can use
    /// again.
    pub(super) fn close_snapshot(&self, txid: u64) {
        let mut readers = self.readers.lock();
        if let Some(count) = readers.open_snapshots.get_mut(&txid) {
            *count -= 1;
            if *count == 0 {
                readers.open_snapshots.remove(&txid);
            }
        }
    }

    /// Returns the txids of all states that a snapshot shows, and of the newest state, which a new
    /// snapshot would show.
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

/// Reads the ten buckets from the tree of buckets with this root. A bucket that is missing has no
/// root page.
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
