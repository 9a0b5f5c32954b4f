//! Records of bucket `key` that are visible but not yet in the engine.
//!
//! The records arrive in key order and are never overwritten. So they form a list that grows at its
//! end and shrinks at its start. The list consists of chunks of write-once slots. Each state stores
//! where its part of the list begins and ends, and every slot in between is filled. A chunk can
//! instead contain *computed* records, whose values are computed when they are read. Such a chunk
//! has no slots and can have any length. A record's position is the number of records that were
//! written before it since the backend was opened. A record at a higher position has a larger key.
//!
//! ```text
//!   chunk at 0          computed, at 512    chunk at 9000
//!   [■■■■■■■■■■■■■■■]   [7.0t .. 7.8487t]   [■■■■■■□□□□□□□□□]
//!          ▲                                       ▲
//!          begin: records below are in the engine  end: the writer fills the next slot here,
//!                                                  which no published state shows
//! ```

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::error::Result;
use crate::interface::ComputedRecords;
use crate::record_key::RecordKey;

const CHUNK_SLOTS: usize = 512;
/// Number of bytes of values at which a chunk accepts no further record. The last chunk cannot be
/// freed after a commit, because it is still being filled, so it must not be large.
const CHUNK_BYTES: u64 = 1 << 20;

#[derive(Debug)]
struct Record {
    key: RecordKey,
    value: Bytes,
}

/// The records from position `first` up to the start of the next chunk.
#[derive(Debug)]
struct Chunk {
    first: u64,
    records: ChunkRecords,
}

#[derive(Debug)]
enum ChunkRecords {
    /// Records that are filled in one by one.
    Slots(Box<[OnceLock<Record>]>),
    /// Records that are added together, and whose values are computed when they are read.
    Computed(Arc<dyn ComputedRecords>),
}

impl Chunk {
    fn key(&self, position: u64) -> RecordKey {
        match &self.records {
            ChunkRecords::Slots(slots) => filled(&slots[self.number_of(position)]).key,
            ChunkRecords::Computed(computed) => computed.key(position - self.first),
        }
    }

    fn slots(&self, positions: Range<u64>) -> &[OnceLock<Record>] {
        match &self.records {
            ChunkRecords::Slots(slots) => {
                &slots[self.number_of(positions.start)..self.number_of(positions.end)]
            }
            ChunkRecords::Computed(_) => &[],
        }
    }

    fn number_of(&self, position: u64) -> usize {
        (position - self.first) as usize
    }

    fn is_computed(&self) -> bool {
        matches!(self.records, ChunkRecords::Computed(_))
    }

    /// Calls `visit` for the records at these positions until `visit` returns `Break`.
    fn visit(&self, positions: Range<u64>, visit: &mut RecordVisitor<'_>) -> ControlFlow<()> {
        let ChunkRecords::Computed(computed) = &self.records else {
            let mut records = self.slots(positions).iter().map(filled);
            return records.try_for_each(|record| visit(&record.key, &record.value));
        };
        let (mut position, mut flow) = (positions.start, ControlFlow::Continue(()));
        if positions.is_empty() {
            return flow;
        }
        computed.visit_values(position - self.first, &mut |value| {
            flow = visit(&self.key(position), value);
            position += 1;
            if position == positions.end { ControlFlow::Break(()) } else { flow }
        });
        flow
    }
}

fn filled(slot: &OnceLock<Record>) -> &Record {
    slot.get().expect("every position below a published end is filled")
}

pub(crate) type RecordVisitor<'v> = dyn FnMut(&[u8], &Bytes) -> ControlFlow<()> + 'v;

/// A function that is called with several records at a time.
pub(crate) type PartVisitor<'v> =
    dyn FnMut(&mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()> + 'v;

/// The part of the list that one state shows. Cloning it copies only a pointer.
#[derive(Clone, Debug)]
pub(crate) struct PendingRecords {
    /// The chunks of the list, from the chunk that contains `begin`. An open write transaction
    /// copies this vector before it adds its first chunk, and adds further chunks in place.
    /// Otherwise a large transaction would copy the vector once per chunk.
    chunks: Arc<Vec<Arc<Chunk>>>,
    /// The position where this part begins. All records below it are in the engine.
    pub(crate) begin: u64,
    /// The position where this part ends. After a commit of this part, all records below it are
    /// durable.
    pub(crate) end: u64,
}

impl PendingRecords {
    pub(crate) fn empty() -> PendingRecords {
        PendingRecords { chunks: Arc::default(), begin: 0, end: 0 }
    }

    /// Returns the key of the oldest pending record, or `None` if no record is pending. Records
    /// with smaller keys are in the engine, and all other records are in this list.
    pub(crate) fn first_key(&self) -> Option<RecordKey> {
        let index = self.chunk_index(self.begin);
        (self.begin < self.end).then(|| self.chunks[index].key(self.begin))
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<Bytes> {
        let mut found = None;
        let _ = self.visit_from(key, &mut |next, value| {
            found = (*next == *key).then(|| value.clone());
            ControlFlow::Break(())
        });
        found
    }

    /// Calls `visit` for all records whose key is at least `from`, in order, until `visit` returns
    /// `Break`.
    pub(crate) fn visit_from(&self, from: &[u8], visit: &mut RecordVisitor<'_>) -> ControlFlow<()> {
        let position = self.lower_bound(from);
        let first = self.chunk_index(position);
        (first..self.chunks.len()).try_for_each(|index| {
            let chunk = &self.chunks[index];
            chunk.visit(position.max(chunk.first)..self.end_of(index), visit)
        })
    }

    /// Calls `visit` with all records in order. Records in adjacent chunks of slots are passed
    /// together in one call. Computed records are passed in groups of up to 512. Stops at the first
    /// error of `visit` and returns this error.
    pub(crate) fn try_for_each_part(&self, visit: &mut PartVisitor<'_>) -> Result<()> {
        let positions = |index: usize| self.begin.max(self.chunks[index].first)..self.end_of(index);
        let mut index = self.chunk_index(self.begin);
        while let Some(chunk) = self.chunks.get(index) {
            if chunk.is_computed() {
                visit_computed(chunk, positions(index), visit)?;
                index += 1;
                continue;
            }
            let behind = &self.chunks[index..];
            let end = index + behind.iter().take_while(|chunk| !chunk.is_computed()).count();
            let records = (index..end).flat_map(|at| self.chunks[at].slots(positions(at)));
            visit(&mut records.map(filled).map(|record| (&*record.key, &*record.value)))?;
            index = end;
        }
        Ok(())
    }

    /// Returns this part of the list without the records below position `durable`, which are in the
    /// engine. The last chunk is kept if it has slots, because the writer is still filling it. A
    /// last chunk of computed records is dropped if all its records are in the engine. If it were
    /// kept, its source data would stay in memory for no reason.
    pub(crate) fn without_committed(&self, durable: u64) -> PendingRecords {
        let begin = durable.clamp(self.begin, self.end);
        if begin == self.end && self.chunks.last().is_some_and(|last| last.is_computed()) {
            return PendingRecords { chunks: Arc::default(), begin, end: self.end };
        }
        let behind = self.chunks.partition_point(|chunk| chunk.first <= begin);
        let keep = match behind.saturating_sub(1) {
            0 => Arc::clone(&self.chunks),
            superfluous => Arc::new(self.chunks[superfluous..].to_vec()),
        };
        PendingRecords { chunks: keep, begin, end: self.end }
    }

    /// Returns the position of the first record whose key is at least `key`, or `end` if there is
    /// no such record. The search first finds the chunk by the first keys of the chunks, and then
    /// continues inside this chunk. So it touches few cache lines.
    fn lower_bound(&self, key: &[u8]) -> u64 {
        if self.begin == self.end {
            return self.end;
        }
        let index =
            self.chunks.partition_point(|chunk| *chunk.key(chunk.first) <= *key).saturating_sub(1);
        let chunk = &self.chunks[index];
        let (mut low, mut high) = (self.begin.max(chunk.first), self.end_of(index));
        while low < high {
            let middle = low + (high - low) / 2;
            if *chunk.key(middle) < *key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn chunk_index(&self, position: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.first <= position).saturating_sub(1)
    }

    /// Returns the position after the last record of chunk number `index` that belongs to this part
    /// of the list.
    fn end_of(&self, index: usize) -> u64 {
        self.chunks.get(index + 1).map_or(self.end, |next| next.first)
    }
}

/// Visits computed records in groups, because a list of all computed records could need much
/// memory.
fn visit_computed(chunk: &Chunk, positions: Range<u64>, visit: &mut PartVisitor<'_>) -> Result<()> {
    let mut position = positions.start;
    while position < positions.end {
        let end = positions.end.min(position + CHUNK_SLOTS as u64);
        let mut part: Vec<Record> = Vec::with_capacity(CHUNK_SLOTS);
        let _ = chunk.visit(position..end, &mut |_, value| {
            let key = chunk.key(position);
            part.push(Record { key, value: value.clone() });
            position += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(position, end, "there are as many computed records as they count");
        visit(&mut part.iter().map(|record| (&*record.key, &*record.value)))?;
    }
    Ok(())
}

/// The writer's end of the list. It fills slots that no published state shows yet.
#[derive(Debug, Default)]
pub(crate) struct RecordAppender {
    chunk: Option<Arc<Chunk>>,
    used: usize,
    bytes: u64,
}

impl RecordAppender {
    /// Appends a record to `records`, the writer's own list, which is not published yet.
    pub(crate) fn append(&mut self, records: &mut PendingRecords, key: RecordKey, value: Bytes) {
        let full = self.used == CHUNK_SLOTS || self.bytes >= CHUNK_BYTES;
        let chunk = match self.chunk.take().filter(|_| !full) {
            Some(chunk) => chunk,
            None => self.start_chunk(records),
        };
        self.bytes += value.len() as u64;
        let ChunkRecords::Slots(slots) = &chunk.records else {
            unreachable!("the applier keeps a chunk that it fills");
        };
        let filled = slots[self.used].set(Record { key, value });
        assert!(filled.is_ok(), "the applier alone fills slots, each once");
        self.used += 1;
        records.end += 1;
        self.chunk = Some(chunk);
    }

    /// Appends a chunk of computed records. The next single record starts a new chunk.
    pub(crate) fn append_computed(
        &mut self,
        records: &mut PendingRecords,
        computed: Arc<dyn ComputedRecords>,
    ) {
        self.chunk = None;
        let (first, count) = (records.end, computed.count());
        let chunk = Arc::new(Chunk { first, records: ChunkRecords::Computed(computed) });
        Arc::make_mut(&mut records.chunks).push(chunk);
        records.end += count;
    }

    fn start_chunk(&mut self, records: &mut PendingRecords) -> Arc<Chunk> {
        let slots = (0..CHUNK_SLOTS).map(|_| OnceLock::new()).collect();
        let chunk = Arc::new(Chunk { first: records.end, records: ChunkRecords::Slots(slots) });
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

    fn count_from(records: &PendingRecords, from: &[u8]) -> u64 {
        let mut count = 0;
        let _ = records.visit_from(from, &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        count
    }

    fn count(records: &PendingRecords) -> u64 {
        count_from(records, b"")
    }

    /// Returns the keys, grouped as a commit receives them. Also checks the values.
    fn parts(records: &PendingRecords) -> Vec<Vec<Vec<u8>>> {
        let mut parts = Vec::new();
        let visited = records.try_for_each_part(&mut |records| {
            let part = records.map(|(key, value)| {
                assert_eq!(value, value_of(key), "{key:?}");
                key.to_vec()
            });
            parts.push(part.collect());
            Ok(())
        });
        visited.unwrap();
        parts
    }

    fn value_of(key: &[u8]) -> Bytes {
        Bytes::from(vec![key[7]; 1])
    }

    /// Computed records whose keys are consecutive numbers, starting at `from`.
    #[derive(Debug)]
    struct Numbers {
        from: u64,
        count: u64,
    }

    impl ComputedRecords for Numbers {
        fn count(&self) -> u64 {
            self.count
        }

        fn key(&self, skip: u64) -> RecordKey {
            key(self.from + skip)
        }

        fn visit_values(&self, skip: u64, visit: &mut dyn FnMut(&Bytes) -> ControlFlow<()>) {
            let _ = (skip..self.count).try_for_each(|skip| visit(&value_of(&self.key(skip))));
        }

        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    /// Returns a list of the records 0 to 2110. Records 0 to 99 and 2000 to 2099 are in slots.
    /// Records 100 to 1999, record 2100, and records 2101 to 2110 are three chunks of computed
    /// records.
    fn mixed() -> (PendingRecords, RecordAppender) {
        let (mut records, mut tail) = records_of(0..100, 1);
        let computed = |from, count| Arc::new(Numbers { from, count });
        tail.append_computed(&mut records, computed(100, 1_900));
        for number in 2_000..2_100 {
            tail.append(&mut records, key(number), value_of(&key(number)));
        }
        tail.append_computed(&mut records, computed(2_100, 1));
        tail.append_computed(&mut records, computed(2_101, 10));
        (records, tail)
    }

    #[test]
    fn computed_records_are_found_as_others_are() {
        let (records, _) = mixed();
        for number in 0..2_111 {
            let key = key(number);
            assert_eq!(records.find(&key), Some(value_of(&key)), "key {number}");
            assert_eq!(count_from(&records, &key), 2_111 - number, "from {number}");
            let between = [&*key, b"+"].concat();
            assert_eq!(records.find(&between), None);
            assert_eq!(count_from(&records, &between), 2_110 - number, "behind {number}");
        }
        assert_eq!(records.find(&key(2_111)), None);
        let mut first = Vec::new();
        let _ = records.visit_from(&key(98), &mut |key, _| {
            first.push(key[7]);
            if first.len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(first, [98, 99, 100, 101], "a visit ends where it breaks");
    }

    #[test]
    fn a_commit_is_given_each_record_once_wherever_the_list_begins() {
        let (records, _) = mixed();
        assert_eq!(parts(&records)[0].len(), 100, "slots are one part");
        assert!(parts(&records).iter().all(|part| part.len() <= CHUNK_SLOTS));
        for begin in [0, 1, 99, 100, 101, 611, 612, 1_999, 2_000, 2_099, 2_100, 2_101, 2_111] {
            let cut = records.without_committed(begin);
            let expected: Vec<Vec<u8>> =
                (begin..2_111).map(|number| key(number).to_vec()).collect();
            assert_eq!(parts(&cut).concat(), expected, "from {begin}");
            assert_eq!(cut.first_key().map(|key| key.to_vec()), expected.first().cloned());
            assert_eq!((count(&cut), cut.find(&key(99)).is_some()), (2_111 - begin, begin < 100));
        }
    }

    #[test]
    fn committed_computed_records_are_kept_by_nothing() {
        let (records, mut tail) = mixed();
        let mut cut = records.without_committed(2_111);
        assert_eq!((cut.chunks.len(), count(&cut)), (0, 0));
        tail.append(&mut cut, key(3_000), value_of(&key(3_000)));
        assert_eq!((cut.begin, cut.end, count(&cut)), (2_111, 2_112, 1));
        assert!(cut.find(&key(3_000)).is_some() && cut.find(&key(2_110)).is_none());
    }

    #[test]
    fn finds_every_record_and_no_other_across_chunks() {
        let (records, _) = records_of((0..2_000).map(|number| number * 2), 1);
        for number in 0..4_000 {
            let found = records.find(&key(number)).is_some();
            assert_eq!(found, number % 2 == 0, "key {number}");
            let behind = count_from(&records, &key(number));
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
        assert_eq!((count(&records), count(&later)), (700, 3_000));
        assert_eq!((records.chunks.len(), later.chunks.len()), (2, 6));
        assert!(records.find(&key(700)).is_none() && later.find(&key(2_999)).is_some());
    }

    #[test]
    fn a_cut_list_shows_what_is_left_and_frees_whole_chunks() {
        let (records, _) = records_of(0..2_000, 1);
        let cut = records.without_committed(1_100);
        assert_eq!(cut.first_key().as_deref(), Some(&*key(1_100)));
        assert_eq!(count(&cut), 900);
        assert_eq!(cut.chunks.len(), 2, "two of four chunks lie below the cut");
        assert!(cut.find(&key(1_099)).is_none());
        let all = records.without_committed(2_000);
        assert_eq!((all.first_key().as_deref(), count(&all), all.chunks.len()), (None, 0, 1));
        assert!(all.find(&key(7)).is_none());
        assert_eq!(count(&records), 2_000, "the list that was cut still shows everything");
    }

    #[test]
    fn big_values_close_a_chunk_early() {
        let (records, _) = records_of(0..10, CHUNK_BYTES as usize / 2);
        assert_eq!(records.chunks.len(), 5, "two values fill a chunk");
        assert_eq!(count(&records), 10);
        assert_eq!(records.without_committed(10).chunks.len(), 1);
    }
}
