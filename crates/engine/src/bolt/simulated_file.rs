//! Creates and opens stores on the simulated disk, whose power can fail.

use std::path::Path;
use std::sync::Arc;

use super::BoltStore;
use super::open::PAGE_SIZE;
use super::simulated_disk::SimulatedDisk;
use crate::options::Options;
use crate::{Error, Result};

/// The cache is small, so that pages are often read from the disk.
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

/// Asserts that opening `image` fails because the image is damaged, and changes nothing. Returns
/// the error message.
pub(super) fn refused(image: Vec<u8>) -> String {
    let disk = SimulatedDisk::with_contents(image.clone());
    let error = open(&disk).expect_err("it was opened");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(disk.contents() == image, "{error}: the file was changed");
    error.to_string()
}
