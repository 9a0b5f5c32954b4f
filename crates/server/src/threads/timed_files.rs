//! Wrappers for the files of the log. They time writes and syncs, and count successful operations
//! for [stalls](super::stalls). After startup, creating a file or writing waits for space while the
//! disk is [full](super::disk_space). If a sync or another operation fails, it is not retried.
//!
//! The log itself must not read a clock, because the simulated cluster also runs the log.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use clearlane_wal::DURABLE_END_FILE;
use clearlane_wal::files::{File, FileSystem};

use super::disk_space::DiskSpace;
use super::metrics::Metrics;
use super::stalls::Stalls;

#[derive(Clone, Debug)]
pub(super) struct TimedFiles {
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) disk_space: Arc<DiskSpace>,
    pub(super) stalls: Arc<Stalls>,
}

impl TimedFiles {
    /// Wraps a file of the log, so that its writes are timed and wait while the disk is full. The
    /// file with the log's durable end is not wrapped: it is not part of the log, and the log
    /// ignores a failed write to it.
    fn wrap(&self, path: &Path, file: Box<dyn File>) -> Box<dyn File> {
        match path.ends_with(DURABLE_END_FILE) {
            true => file,
            false => Box::new(TimedFile { file, shared: self.clone() }),
        }
    }

    /// Counts an operation that has ended without an error: the disk makes progress.
    fn count<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_ok() {
            self.stalls.log_operations.fetch_add(1, Relaxed);
        }
        done
    }
}

impl FileSystem for TimedFiles {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.files.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.files.create_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let mut created = None;
        self.disk_space
            .retry_while_full(|| self.files.create(path).map(|file| created = Some(file)))?;
        let created = created.ok_or_else(|| io::Error::other("a created file does not exist"))?;
        self.count(Ok(self.wrap(path, created)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.files.open(path).map(|file| self.wrap(path, file))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.files.open_to_read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count(self.files.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.count(self.files.remove(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.files.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.count(self.files.sync_dir(dir))
    }

    fn free_space(&self, dir: &Path) -> u64 {
        self.files.free_space(dir)
    }

    fn syncs(&self) -> bool {
        self.files.syncs()
    }
}

#[derive(Debug)]
struct TimedFile {
    file: Box<dyn File>,
    shared: TimedFiles,
}

impl File for TimedFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn zeros_from(&self) -> io::Result<u64> {
        self.file.zeros_from()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let begin = Instant::now();
        let written = self.shared.disk_space.retry_while_full(|| self.file.write_at(offset, data));
        self.shared.count(written)?;
        self.shared.metrics.log_writes.record(begin.elapsed());
        self.shared.metrics.log_bytes.fetch_add(data.len() as u64, Relaxed);
        Ok(())
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.shared.count(self.file.set_length(length))
    }

    fn allocate(&mut self, length: u64) -> io::Result<()> {
        self.shared.count(self.file.allocate(length))
    }

    fn is_in_memory(&self) -> bool {
        self.file.is_in_memory()
    }

    fn sync(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        self.shared.count(self.file.sync())?;
        self.shared.metrics.log_syncs.record(begin.elapsed());
        Ok(())
    }

    fn try_lock(&mut self) -> io::Result<bool> {
        self.file.try_lock()
    }
}
