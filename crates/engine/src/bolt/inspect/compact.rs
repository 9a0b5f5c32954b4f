//! A compacted copy: every bucket of a file, its pages filled and in a row, and none free.
//!
//! One [walk](super::super::walk) shows the records in order to a [`BulkWriter`].

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{BoltFile, PageId};
use crate::bolt::bulk::BulkWriter;
use crate::bolt::file::DiskFile;
use crate::bolt::page::Page;
use crate::bolt::pager::Pager;
use crate::bolt::tree::BucketHead;
use crate::bolt::walk::{Visit, Walk};
use crate::directory::sync_parent;
use crate::error::{Error, Result};
use crate::options::Options;

impl BoltFile {
    /// Writes a compacted copy to `to`, which must not exist, and returns its size. The rights of
    /// the copy are those of the file. About `part_bytes` of records are in memory at a time; with
    /// 0, all of the largest bucket. If anything of the file is damaged, there is no copy.
    pub fn compact(&self, to: &Path, part_bytes: usize) -> Result<u64> {
        let mut problems = Vec::new();
        self.note_file_problems(self.newest()?, &mut problems);
        if let Some(problem) = problems.first() {
            let detail = format!("{problem}: a copy would hide that");
            return Err(Error::corrupt(self.path(), detail));
        }
        let rights = fs::metadata(self.path()).map_err(Error::at(self.path()))?.mode();
        let file = DiskFile::create(to, rights & 0o777)?;
        let written = self.write_copy(file, to, part_bytes);
        let written = written.and_then(|bytes| sync_parent(to).map(|()| bytes));
        if written.is_err() {
            // It is of no use, and in the way of the next attempt.
            let _ = fs::remove_file(to);
        }
        written
    }

    fn write_copy(&self, file: DiskFile, to: &Path, part_bytes: usize) -> Result<u64> {
        let source = self.newest()?.meta;
        let pager = Pager::new(Box::new(file), self.page_size(), to, &Options::default());
        let mut copy = BulkWriter::new(&pager, part_bytes);
        Walk::new(&self.pager, self.pages(), self.has_sums()).walk(source.root, &mut copy)?;
        Ok(copy.finish(source.sequence)? * self.page_size() as u64)
    }
}

impl Visit for BulkWriter<'_> {
    type Stop = Error;

    fn damaged(&mut self, _page: PageId, error: Error) -> Result<()> {
        Err(error)
    }

    fn record(&mut self, leaf: &Page, index: usize) -> Result<()> {
        self.push(leaf.leaf_element(index))
    }

    fn begin_bucket(&mut self, leaf: &Page, index: usize, head: &BucketHead) -> Result<bool> {
        BulkWriter::begin_bucket(self, leaf.shared_key(index), head.sequence);
        Ok(true)
    }

    fn end_bucket(&mut self) -> Result<()> {
        BulkWriter::end_bucket(self)
    }
}
