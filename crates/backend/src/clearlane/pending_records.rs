//! Records of bucket `key` that are visible but not yet in the engine.
//!
//! They arrive in key order and are not overwritten: a list that grows at its end and shrinks at
//! its beginning, in chunks of write-once slots. Each state says where its part begins and ends;
//! every slot between is filled. Positions count records since the backend was opened, and keys
//! rise with positions.
//!
//! ```text
//!   chunk at 0          chunk at 512        chunk at 1024
//!   [■■■■■■■■■■■■■■■]   [■■■■■■■■■■■■■■■]   [■■■■■■□□□□□□□□□]
//!          ▲                                       ▲
//!          begin: records below are in the engine  end: the applier fills the next slot here,
//!                                                  which no published state shows
//! ```

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::record_key::RecordKey;

const CHUNK_SLOTS: usize = 512;
/// A chunk that holds this many bytes of values takes no further record, so that the chunk that is
/// still being filled keeps little memory from being freed after a commit.
const CHUNK_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) key: RecordKey,
    pub(crate) value: Bytes,
}

/// A run of slots that starts at position `first` and ends where the next chunk starts.
#[derive(Debug)]
struct Chunk {
    first: u64,
    slots: Box<[OnceLock<Record>]>,
}

impl Chunk {
    fn starting_at(first: u64) -> Chunk {
        Chunk { first, slots: (0..CHUNK_SLOTS).map(|_| OnceLock::new()).collect() }
    }

    fn record(&self, position: u64) -> &Record {
        let slot = (position - self.first) as usize;
        self.slots[slot].get().expect("every position below a published end is filled")
    }
}

/// The part of the list that one state shows. Cloning it copies a pointer.
#[derive(Clone, Debug)]
pub(crate) struct PendingRecords {
    /// An open write transaction has a list of its own from its first new chunk on, and adds the
    /// others where it is: a large one would copy its list for each of them.
    chunks: Arc<Vec<Arc<Chunk>>>,
    /// Where this part begins; everything below is in the engine.
    pub(crate) begin: u64,
    /// Where this part ends; a commit of it makes everything below durable.
    pub(crate) end: u64,
}

impl PendingRecords {
    pub(crate) fn empty() -> PendingRecords {
        PendingRecords { chunks: Arc::default(), begin: 0, end: 0 }
    }

    /// The key of the oldest pending record. Smaller keys are in the engine, others are here.
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        (self.begin < self.end).then(|| &*self.record(self.begin).key)
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<&Bytes> {
        let position = self.lower_bound(key);
        let record = (position < self.end).then(|| self.record(position))?;
        (*record.key == *key).then_some(&record.value)
    }

    pub(crate) fn iter_from(&self, from: &[u8]) -> impl Iterator<Item = &Record> {
        self.iter_at(self.lower_bound(from))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.iter_at(self.begin)
    }

    /// What is left of this part when everything below `durable` is in the engine. The last chunk
    /// stays, because the applier is still filling it.
    pub(crate) fn without_committed(&self, durable: u64) -> PendingRecords {
        let begin = durable.clamp(self.begin, self.end);
        let behind = self.chunks.partition_point(|chunk| chunk.first <= begin);
        let keep = match behind.saturating_sub(1) {
            0 => Arc::clone(&self.chunks),
            superfluous => Arc::new(self.chunks[superfluous..].to_vec()),
        };
        PendingRecords { chunks: keep, begin, end: self.end }
    }

    fn iter_at(&self, position: u64) -> impl Iterator<Item = &Record> {
        let first = self.chunk_index(position);
        (first..self.chunks.len()).flat_map(move |index| {
            let chunk = &self.chunks[index];
            (position.max(chunk.first)..self.end_of(index)).map(|position| chunk.record(position))
        })
    }

    /// The position of the first record whose key is `key` or greater. Finds the chunk by its
    /// first key, then searches inside it, so that a search touches few cache lines.
    fn lower_bound(&self, key: &[u8]) -> u64 {
        if self.begin == self.end {
            return self.end;
        }
        let index = self
            .chunks
            .partition_point(|chunk| *chunk.record(chunk.first).key <= *key)
            .saturating_sub(1);
        let chunk = &self.chunks[index];
        let (mut low, mut high) = (self.begin.max(chunk.first), self.end_of(index));
        while low < high {
            let middle = low + (high - low) / 2;
            if *chunk.record(middle).key < *key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn record(&self, position: u64) -> &Record {
        self.chunks[self.chunk_index(position)].record(position)
    }

    fn chunk_index(&self, position: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.first <= position).saturating_sub(1)
    }

    /// Where the slots of the chunk end that belong to this part.
    fn end_of(&self, index: usize) -> u64 {
        self.chunks.get(index + 1).map_or(self.end, |next| next.first)
    }
}

/// The applier's end of the list: fills slots that no published state shows yet.
#[derive(Debug, Default)]
pub(crate) struct RecordAppender {
    chunk: Option<Arc<Chunk>>,
    used: usize,
    bytes: u64,
}

impl RecordAppender {
    /// Appends a record to `records`, which is the applier's own and not published yet.
    pub(crate) fn append(&mut self, records: &mut PendingRecords, key: RecordKey, value: Bytes) {
        let full = self.used == CHUNK_SLOTS || self.bytes >= CHUNK_BYTES;
        let chunk = match self.chunk.take().filter(|_| !full) {
            Some(chunk) => chunk,
            None => self.start_chunk(records),
        };
        self.bytes += value.len() as u64;
        let filled = chunk.slots[self.used].set(Record { key, value });
        assert!(filled.is_ok(), "the applier alone fills slots, each once");
        self.used += 1;
        records.end += 1;
        self.chunk = Some(chunk);
    }

    fn start_chunk(&mut self, records: &mut PendingRecords) -> Arc<Chunk> {
        let chunk = Arc::new(Chunk::starting_at(records.end));
        Arc::make_mut(&mut records.chunks).push(Arc::clone(&chunk));
        self.used = 0;
        self.bytes = 0;
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> RecordKey {
        RecordKey::new(&number.to_be_bytes()).unwrap()
    }

    fn records_of(
        numbers: impl Iterator<Item = u64>,
        size: usize,
    ) -> (PendingRecords, RecordAppender) {
        let (mut records, mut tail) = (PendingRecords::empty(), RecordAppender::default());
        for number in numbers {
            tail.append(&mut records, key(number), Bytes::from(vec![number as u8; size]));
        }
        (records, tail)
    }

    #[test]
    fn finds_every_record_and_no_other_across_chunks() {
        let (records, _) = records_of((0..2_000).map(|number| number * 2), 1);
        for number in 0..4_000 {
            let found = records.find(&key(number)).is_some();
            assert_eq!(found, number % 2 == 0, "key {number}");
            let behind = records.iter_from(&key(number)).count() as u64;
            assert_eq!(behind, 2_000 - number.div_ceil(2), "from {number}");
        }
        assert!(records.find(&key(4_000)).is_none());
    }

    #[test]
    fn a_list_that_goes_on_leaves_earlier_ones_as_they_were() {
        let (records, mut tail) = records_of(0..700, 1);
        let mut later = records.clone();
        for number in 700..3_000 {
            tail.append(&mut later, key(number), Bytes::new());
        }
        assert_eq!((records.iter().count(), later.iter().count()), (700, 3_000));
        assert_eq!((records.chunks.len(), later.chunks.len()), (2, 6));
        assert!(records.find(&key(700)).is_none() && later.find(&key(2_999)).is_some());
    }

    #[test]
    fn a_cut_list_shows_what_is_left_and_frees_whole_chunks() {
        let (records, _) = records_of(0..2_000, 1);
        let cut = records.without_committed(1_100);
        assert_eq!(cut.first_key(), Some(&*key(1_100)));
        assert_eq!(cut.iter().count(), 900);
        assert_eq!(cut.chunks.len(), 2, "two of four chunks lie below the cut");
        assert!(cut.find(&key(1_099)).is_none());
        let all = records.without_committed(2_000);
        assert_eq!((all.first_key(), all.iter().count(), all.chunks.len()), (None, 0, 1));
        assert!(all.find(&key(7)).is_none());
        assert_eq!(records.iter().count(), 2_000, "the list that was cut still shows everything");
    }

    #[test]
    fn big_values_close_a_chunk_early() {
        let (records, _) = records_of(0..10, CHUNK_BYTES as usize / 2);
        assert_eq!(records.chunks.len(), 5, "two values fill a chunk");
        assert_eq!(records.iter().count(), 10);
        assert_eq!(records.without_committed(10).chunks.len(), 1);
    }
}
