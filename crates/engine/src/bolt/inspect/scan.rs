//! Visits the records of a bucket in order.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::page_view::{BucketValue, bucket_value};
use super::{BoltFile, PageId};
use crate::bolt::page::Page;
use crate::bolt::tree::{self, BucketHead, BucketRoot, TreePage};
use crate::bolt::walk::{Visit, Walk};
use crate::error::{Error, Result};

/// A record, or a bucket inside a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Bytes,
    pub value: Bytes,
    /// The contents of the bucket, or `None` if the element is a record.
    pub bucket: Option<BucketValue>,
}

impl BoltFile {
    /// Calls `visit` for the records of the bucket at `path`, until `visit` returns `Break`. `path`
    /// lists names from the outermost bucket to the innermost. If `path` is empty, the buckets
    /// themselves are visited. Fails if there is no such bucket, and at the first damaged page.
    pub fn scan(
        &self,
        path: &[&[u8]],
        visit: &mut dyn FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        let root = self.find_bucket(path)?;
        let mut walk = Walk::new(&self.pager, self.pages(), self.has_sums());
        match walk.walk_tree(&root, &mut Scan { visit }) {
            Ok(()) | Err(Stop::Enough) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    pub(super) fn find_bucket(&self, path: &[&[u8]]) -> Result<BucketRoot> {
        let mut root = BucketRoot::Stored(self.newest()?.meta.root);
        for (index, name) in path.iter().enumerate() {
            let page = match root {
                BucketRoot::Inline(page) => page,
                BucketRoot::Stored(id) => self.pager.page(id)?,
            };
            let element = tree::find(TreePage::Committed(page), name, &self.pager)?;
            let Some(element) = element.filter(|element| element.is_bucket) else {
                let (_, above) = path[..=index].split_last().expect("it has the name");
                return Err(self.no_bucket(name, above));
            };
            let head = BucketHead::parse(&element.shared_value());
            root = head.map_err(|damage| damage.in_file(self.path()))?.root;
        }
        Ok(root)
    }

    fn no_bucket(&self, name: &[u8], above: &[&[u8]]) -> Error {
        let mut names = Vec::new();
        // The names are only a hint in the error message, so damage in the bucket above is ignored.
        // A scan of that bucket reports the damage.
        let _ = self.scan(above, &mut |record| {
            if record.bucket.is_some() {
                names.push(format!("{:?}", String::from_utf8_lossy(&record.key)));
            }
            ControlFlow::Continue(())
        });
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let name = String::from_utf8_lossy(name);
        Error::NoBucket { path: self.path().to_owned(), name: name.into_owned(), found }
    }
}

struct Scan<'s> {
    visit: &'s mut dyn FnMut(Record) -> ControlFlow<()>,
}

enum Stop {
    Enough,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Scan<'_> {
    fn show(
        &mut self,
        leaf: &Page,
        index: usize,
        bucket: Option<BucketValue>,
    ) -> std::result::Result<(), Stop> {
        let (key, value) = (leaf.shared_key(index), leaf.shared_value(index));
        match (self.visit)(Record { key, value, bucket }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop::Enough),
        }
    }
}

impl Visit for Scan<'_> {
    type Stop = Stop;

    fn damaged(&mut self, _page: PageId, error: Error) -> std::result::Result<(), Stop> {
        Err(Stop::Failed(error))
    }

    fn record(&mut self, leaf: &Page, index: usize) -> std::result::Result<(), Stop> {
        self.show(leaf, index, None)
    }

    fn begin_bucket(
        &mut self,
        leaf: &Page,
        index: usize,
        head: &BucketHead,
    ) -> std::result::Result<bool, Stop> {
        self.show(leaf, index, Some(bucket_value(head)))?;
        Ok(false)
    }
}
