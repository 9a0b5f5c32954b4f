//! A store on the simulated disk, whose power can fail.

use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::BoltStore;
use super::file::StoreFile;
use super::open::PAGE_SIZE;
use crate::options::Options;
use crate::redb::simulated_disk::SimulatedDisk;
use crate::{Error, Result};

impl StoreFile for SimulatedDisk {
    fn len(&self) -> io::Result<u64> {
        StorageBackend::len(self)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        StorageBackend::read(self, offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        StorageBackend::write(self, offset, data)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        StorageBackend::set_len(self, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        StorageBackend::sync_data(self)
    }
}

/// A small cache, so that pages are read again.
fn options() -> Options {
    Options { cache_bytes: 64 << 10, ..Options::default() }
}

pub(super) fn create(disk: &SimulatedDisk) -> Result<Arc<BoltStore>> {
    create_with(disk, PAGE_SIZE)
}

pub(super) fn create_with(disk: &SimulatedDisk, page_size: usize) -> Result<Arc<BoltStore>> {
    let file = Box::new(disk.clone());
    BoltStore::create_on(file, page_size, Path::new("disk"), &options()).map(Arc::new)
}

pub(super) fn open(disk: &SimulatedDisk) -> Result<Arc<BoltStore>> {
    BoltStore::open_on(Box::new(disk.clone()), Path::new("disk"), &options()).map(Arc::new)
}

pub(super) fn open_image(image: Vec<u8>) -> Result<Arc<BoltStore>> {
    open(&SimulatedDisk::with_contents(image))
}

/// Expects a refusal as damaged, and returns its words.
pub(super) fn refused(image: Vec<u8>) -> String {
    let disk = SimulatedDisk::with_contents(image.clone());
    let error = open(&disk).expect_err("it was opened");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(disk.contents() == image, "{error}: the file was changed");
    error.to_string()
}
