//! Reads an open file as a [`Snapshot`]. The file does not change while it is open, because its
//! lock excludes writers.

use bytes::Bytes;

use super::BoltFile;
use crate::bolt::tree::{self, BucketRoot, TreePage};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::{KeyRange, Read, Snapshot, Visitor};

impl BoltFile {
    /// Returns the root of a bucket's tree, or `None` if there is no such bucket.
    fn root(&self, bucket: Bucket) -> Result<Option<TreePage<'static>>> {
        let page = match self.find_bucket(&[bucket.name().as_bytes()]) {
            Ok(BucketRoot::Inline(page)) => page,
            Ok(BucketRoot::Stored(id)) => self.pager.page(id)?,
            Err(Error::NoBucket { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(TreePage::Committed(page)))
    }
}

impl Read for BoltFile {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        self.root(bucket)?.map_or(Ok(None), |root| tree::get(root, key, &self.pager))
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        match self.root(bucket)? {
            Some(root) if !range.is_empty() => tree::scan(root, range, &self.pager, visit),
            _ => Ok(()),
        }
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        self.root(bucket)?.map_or(Ok(None), |root| tree::last_key(&root, &self.pager))
    }
}

impl Snapshot for BoltFile {}
