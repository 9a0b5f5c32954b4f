//! What a fresh read costs in each mode, for one reader to a thousand that wait at once.
//!
//! `cargo bench --bench read_index`; `-- --test` makes each turn short. One thread runs a ReadIndex
//! queue and its readers, which come again when they are released. raft is a timer: a question or
//! an entry is answered after 0.1, 0.5 or 2 ms, with everything applied.
//!
//! **Timed:** reads released per second of wall clock, rounds per second, and how long the thread
//! was busy per read, without the spinning. Mode `log` proposes etcd 3.0's encoded range request (a
//! key of 32 bytes) as a WAL record; all entries of a poll go to a file in `TMPDIR` with one sync.
//! Encoding counts as busy, writing and syncing do not.
//!
//! **Kept out:** raft and its heartbeats, waking the threads of readers, the read, the network. At
//! the end the rate of `read-index` with 1,000 readers and 0.5 ms is printed beside its bar.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use clearlane_proto::Message as _;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest, RequestHeader};
use clearlane_proto::{raftpb, walpb};
use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexConfig, ReadIndexQueue, ReadMode, RequestIdGenerator,
};

const READERS: [u64; 4] = [1, 10, 100, 1_000];
const ROUND_TRIPS: [Duration; 3] =
    [Duration::from_micros(100), Duration::from_micros(500), Duration::from_millis(2)];
const TARGET_READS_PER_SECOND: f64 = 300_000.0;
const RUNS: usize = 5;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--test");
    let length = Duration::from_millis(if quick { 10 } else { 500 });
    println!(
        "{:<13} {:>7} {:>8} {:>11} {:>9} {:>11} {:>10} {:>11} {:>10}",
        "mode",
        "readers",
        "trip ms",
        "reads/s",
        "rounds/s",
        "reads/round",
        "busy ns/r",
        "syncs/1k r",
        "bytes/r"
    );
    for mode in ReadMode::ALL {
        // Two renewals of a lease, at least. And where hardly anything waits for a round trip, one
        // will do.
        let (round_trips, length) = match mode {
            ReadMode::Log | ReadMode::ReadIndex => (&ROUND_TRIPS[..], length),
            ReadMode::Lease => (&ROUND_TRIPS[1..2], length * 4),
            ReadMode::Serializable => (&ROUND_TRIPS[1..2], length),
        };
        for round_trip in round_trips.iter().copied() {
            for readers in READERS {
                median(mode, readers, round_trip, length).print(mode, readers, round_trip);
            }
        }
    }
    let bar = median(ReadMode::ReadIndex, 1_000, Duration::from_micros(500), length);
    println!("bar: {:.0} reads/s of {TARGET_READS_PER_SECOND:.0}", bar.reads_per_second());
}

/// The turn of the median rate.
fn median(mode: ReadMode, readers: u64, round_trip: Duration, length: Duration) -> Measurement {
    let mut turns: Vec<Measurement> =
        (0..RUNS).map(|_| ClosedLoop::new(mode, readers, round_trip).run(length)).collect();
    turns.sort_by(|a, b| a.reads_per_second().total_cmp(&b.reads_per_second()));
    turns.swap_remove(RUNS / 2)
}

/// What one turn has counted.
#[derive(Default)]
struct Measurement {
    elapsed: Duration,
    busy: Duration,
    reads: u64,
    rounds: u64,
    syncs: u64,
    bytes: u64,
}

impl Measurement {
    fn reads_per_second(&self) -> f64 {
        self.reads as f64 / self.elapsed.as_secs_f64()
    }

    fn print(&self, mode: ReadMode, readers: u64, round_trip: Duration) {
        let per_read = |count: f64| count / self.reads.max(1) as f64;
        println!(
            "{:<13} {readers:>7} {:>8.1} {:>11.0} {:>9.0} {:>11.1} {:>10.0} {:>11.3} {:>10.1}",
            mode.name(),
            round_trip.as_secs_f64() * 1e3,
            self.reads_per_second(),
            self.rounds as f64 / self.elapsed.as_secs_f64(),
            self.reads as f64 / self.rounds.max(1) as f64,
            per_read(self.busy.as_nanos() as f64),
            per_read(self.syncs as f64 * 1e3),
            per_read(self.bytes as f64)
        );
    }
}

/// A leader with its ReadIndex queue, and its readers in a closed loop.
struct ClosedLoop {
    queue: ReadIndexQueue<u64>,
    ids: RequestIdGenerator,
    round_trip: Duration,
    start: Instant,
    /// Contexts and when they are answered, in that order.
    answers: VecDeque<(Duration, u64)>,
    index: u64,
    wal: File,
    measurement: Measurement,
}

impl ClosedLoop {
    fn new(mode: ReadMode, readers: u64, round_trip: Duration) -> ClosedLoop {
        let mut barrier = ReadIndexQueue::new(mode, ReadIndexConfig::new(1));
        barrier.on_leader(Some(1), 2);
        for reader in 0..readers {
            barrier.enqueue(reader).expect("the queue takes it");
        }
        ClosedLoop {
            queue: barrier,
            ids: RequestIdGenerator::new(1, 0),
            round_trip,
            start: Instant::now(),
            answers: VecDeque::new(),
            index: 0,
            wal: tempfile::tempfile().expect("TMPDIR can be written"),
            measurement: Measurement::default(),
        }
    }

    fn run(mut self, length: Duration) -> Measurement {
        self.start = Instant::now();
        let mut now = Duration::ZERO;
        while now < length {
            self.deliver_answers(now);
            let actions = self.queue.poll(now, &mut self.ids);
            let (worked, mut entries) = (!actions.is_empty(), Vec::new());
            for action in actions {
                self.handle_action(now, action, &mut entries);
            }
            let after = self.start.elapsed();
            if worked {
                self.measurement.busy += after - now;
            }
            self.sync_entries(now, &entries);
            now = self.start.elapsed();
        }
        self.measurement.elapsed = now;
        self.measurement
    }

    /// What is due is answered, and applied.
    fn deliver_answers(&mut self, now: Duration) {
        while let Some((_, context)) = self.answers.pop_front_if(|(due, _)| *due <= now) {
            self.index += 1;
            self.queue.on_answer(context, self.index);
            self.queue.on_applied(self.index);
        }
    }

    fn handle_action(
        &mut self,
        now: Duration,
        action: ReadIndexAction<u64>,
        entries: &mut Vec<u8>,
    ) {
        match action {
            ReadIndexAction::RequestReadIndex { context, attempt } => {
                // A round trip of 2 ms is answered long before a retry is due.
                assert!(self.answers.is_empty() && attempt == 1, "one round at a time");
                self.measurement.rounds += 1;
                self.answers.push_back((now + self.round_trip, context));
            }
            ReadIndexAction::Propose { context, .. } => {
                self.answers.push_back((now + self.round_trip, context));
                entries.extend(wal_record(context, self.index));
            }
            ReadIndexAction::Release { readers, .. } => {
                self.measurement.reads += readers.len() as u64;
                for reader in readers {
                    self.queue.enqueue(reader).expect("the queue takes it");
                }
            }
            ReadIndexAction::Fail { error, .. } => panic!("nothing fails here: {error}"),
        }
    }

    /// Writes what was proposed, if anything was, and syncs.
    fn sync_entries(&mut self, proposed_at: Duration, entries: &[u8]) {
        if entries.is_empty() {
            return;
        }
        self.wal.write_all(entries).expect("TMPDIR can be written");
        self.wal.sync_data().expect("TMPDIR can be synced");
        self.measurement.rounds += 1;
        self.measurement.syncs += 1;
        self.measurement.bytes += entries.len() as u64;
        // None of them is committed before the sync, but the round trip runs meanwhile.
        let synced = self.start.elapsed();
        let due = proposed_at + self.round_trip;
        self.answers.iter_mut().for_each(|(at, _)| {
            if *at == due {
                *at = synced.max(due);
            }
        });
    }
}

/// The frame that a proposed range request is in the write-ahead log.
fn wal_record(context: u64, index: u64) -> Vec<u8> {
    let request = InternalRaftRequest {
        header: Some(RequestHeader { id: context, ..RequestHeader::default() }),
        range: Some(RangeRequest { key: vec![b'k'; 32].into(), ..RangeRequest::default() }),
        ..InternalRaftRequest::default()
    };
    let data = Some(request.encode_to_vec().into());
    let entry = raftpb::Entry { r#type: Some(0), term: Some(2), index: Some(index), data };
    let data = Some(entry.encode_to_vec().into());
    let record = walpb::Record { r#type: Some(2), crc: Some(u32::MAX), data };
    let mut frame = (record.encoded_len() as u64).to_le_bytes().to_vec();
    frame.extend(record.encode_to_vec());
    frame.resize(frame.len().next_multiple_of(8), 0);
    frame
}
