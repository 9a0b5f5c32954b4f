//! The store as one file: what `etcdctl snapshot save` gets, and what a restore reads.
//!
//! ```text
//!   stream of the store        any number of bytes: the one that goes to another member
//!   zeros                      0 to 511
//!   length of the stream       8 bytes, big endian      ─── up to here: a multiple of 512
//!   SHA-256 of all before      32 bytes
//! ```
//!
//! etcd's clients check that multiple and the sum. The [stream](clearlane_engine::stream) takes
//! nothing behind its end, so its length is written down.
//!
//! A [`SnapshotWriter`] reads one snapshot of the engine, twice: each message says how much is
//! still to come. [`restore`] verifies the sum before it uses the data, unless told not to.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_engine::Engine;
use clearlane_engine::stream::{Exporter, Importer};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// No piece is longer: etcd's.
const CHUNK_BYTES: usize = 32 << 10;
const ALIGNMENT_BYTES: u64 = 512;
const LENGTH_BYTES: u64 = 8;
const CHECKSUM_BYTES: u64 = 32;

#[derive(Debug)]
pub struct SnapshotWriter {
    exporter: Exporter,
    /// Exported, and not returned yet.
    exported: Bytes,
    stream_length: u64,
    /// Without the checksum.
    bytes_left: u64,
    checksum: Option<Sha256>,
}

impl SnapshotWriter {
    pub fn new(exporter: Exporter) -> Result<SnapshotWriter> {
        let mut first_pass = Exporter::new(Arc::clone(exporter.snapshot()));
        let mut stream_length = 0;
        while let Some(chunk) = first_pass.next_chunk()? {
            stream_length += chunk.len() as u64;
        }
        Ok(SnapshotWriter {
            exporter,
            exported: Bytes::new(),
            stream_length,
            bytes_left: (stream_length + LENGTH_BYTES).next_multiple_of(ALIGNMENT_BYTES),
            checksum: Some(Sha256::new()),
        })
    }

    /// Bytes after what was returned, without the checksum.
    pub fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    /// The last chunk is the checksum.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        if self.bytes_left == 0 {
            let sum = self.checksum.take();
            return Ok(sum.map(|sum| Bytes::copy_from_slice(&sum.finalize())));
        }
        if self.exported.is_empty() {
            self.exported = match self.exporter.next_chunk()? {
                Some(chunk) => chunk,
                None => self.padding(),
            };
        }
        let piece = self.exported.split_to(self.exported.len().min(CHUNK_BYTES));
        self.bytes_left -= piece.len() as u64;
        if let Some(sum) = &mut self.checksum {
            sum.update(&piece);
        }
        Ok(Some(piece))
    }

    fn padding(&self) -> Bytes {
        let mut filling = BytesMut::zeroed((self.bytes_left - LENGTH_BYTES) as usize);
        filling.put_u64(self.stream_length);
        filling.freeze()
    }
}

/// Fills an empty engine from a file, and commits. After an error the engine's directory must be
/// removed. Without `checks_sum` the file may lack the sum, as one that was copied from a disk.
pub fn restore(
    file: &mut (impl Read + Seek),
    engine: Arc<dyn Engine>,
    checks_sum: bool,
) -> Result<()> {
    let stream_length = stream_length(file, checks_sum)?;
    file.rewind().map_err(read_error)?;
    let mut importer = Importer::new(engine)?;
    for_each_chunk(file, stream_length, |piece| Ok(importer.feed(piece)?))?;
    importer.finish()?;
    Ok(())
}

/// The length of the stream in the file, after the checksum was verified.
fn stream_length(file: &mut (impl Read + Seek), checks_sum: bool) -> Result<u64> {
    let length = file.seek(SeekFrom::End(0)).map_err(read_error)?;
    let has_sum = length % ALIGNMENT_BYTES == CHECKSUM_BYTES;
    if !has_sum && (checks_sum || length % ALIGNMENT_BYTES != 0) {
        let why =
            format!("it has {length} bytes, and no sum behind a multiple of {ALIGNMENT_BYTES}");
        return Err(damaged(why));
    }
    let data = if has_sum { length - CHECKSUM_BYTES } else { length };
    if data < ALIGNMENT_BYTES {
        return Err(damaged("it is empty"));
    }
    if checks_sum {
        file.rewind().map_err(read_error)?;
        let mut sum = Sha256::new();
        for_each_chunk(file, data, |piece| {
            sum.update(piece);
            Ok(())
        })?;
        let mut there = [0; CHECKSUM_BYTES as usize];
        file.read_exact(&mut there).map_err(read_error)?;
        if there[..] != sum.finalize()[..] {
            return Err(damaged("its sum does not match"));
        }
    }
    let mut bytes = [0; LENGTH_BYTES as usize];
    file.seek(SeekFrom::Start(data - LENGTH_BYTES)).map_err(read_error)?;
    file.read_exact(&mut bytes).map_err(read_error)?;
    let stream = u64::from_be_bytes(bytes);
    let end = stream.checked_add(LENGTH_BYTES);
    if end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT_BYTES)) == Some(data) {
        Ok(stream)
    } else {
        Err(damaged(format!("its stream cannot be {stream} bytes long")))
    }
}

fn for_each_chunk(
    file: &mut impl Read,
    length: u64,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (mut buffer, mut left) = (vec![0; CHUNK_BYTES], length);
    while left > 0 {
        let piece = &mut buffer[..left.min(CHUNK_BYTES as u64) as usize];
        file.read_exact(piece).map_err(read_error)?;
        take(piece)?;
        left -= piece.len() as u64;
    }
    Ok(())
}

fn damaged(why: impl Into<String>) -> Error {
    Error::damaged("the snapshot", why)
}

fn read_error(error: io::Error) -> Error {
    damaged(format!("it cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use clearlane_engine::MemoryEngine;

    use super::*;

    #[test]
    fn a_stream_of_any_length_is_refused_if_it_is_not_that_of_the_file() {
        for length in [0, 504, 505, u64::MAX - 9, u64::MAX - 8, u64::MAX - 7, u64::MAX] {
            let file = [&[0; 504][..], &length.to_be_bytes()].concat();
            let refused = restore(&mut Cursor::new(file), Arc::new(MemoryEngine::new()), false);
            assert!(refused.is_err(), "{length}");
        }
    }
}
