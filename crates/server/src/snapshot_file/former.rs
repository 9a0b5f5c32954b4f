//! The files that Clearlane saved before it had etcd's format. They are read, and not made:
//!
//! ```text
//!   stream of the store        any number of bytes: the one that goes to another member
//!   zeros                      0 to 511
//!   length of the stream       8 bytes, big endian      ─── up to here: a multiple of 512
//!   SHA-256 of all before      32 bytes
//! ```
//!
//! The [stream](clearlane_engine::stream) takes nothing behind its end, so its length is written
//! down.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use clearlane_engine::Engine;
use clearlane_engine::stream::Importer;

use super::{ALIGNMENT_BYTES, CHECKSUM_BYTES, check, damaged, for_each_chunk, has_sum, read_error};
use crate::error::Result;

const LENGTH_BYTES: u64 = 8;

/// See [`restore`](super::restore).
pub fn restore(
    file: &mut (impl Read + Seek),
    engine: Arc<dyn Engine>,
    checks_sum: bool,
) -> Result<()> {
    check(file, checks_sum)?;
    let stream_length = stream_length(file)?;
    file.rewind().map_err(read_error)?;
    let mut importer = Importer::new(engine)?;
    for_each_chunk(file, stream_length, |piece| Ok(importer.feed(piece)?))?;
    importer.finish()?;
    Ok(())
}

/// Of a file whose length is possible.
fn stream_length(file: &mut (impl Read + Seek)) -> Result<u64> {
    let length = file.seek(SeekFrom::End(0)).map_err(read_error)?;
    let data = if has_sum(length) { length - CHECKSUM_BYTES } else { length };
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
