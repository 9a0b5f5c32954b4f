//! The `bolt` engine: bbolt's file, to the byte, written to be read.

mod page;
mod meta;
mod checksums;
mod file;
mod page_cache;
mod freelist;
mod pager;
mod search;
