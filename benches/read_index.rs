//! The cost of a linearizable read in each mode, for one to a thousand readers that wait at the
//! same time.
//!
//! `cargo bench --bench read_index`; `-- --test` makes each run short. One thread runs a ReadIndex
//! queue and its readers, which start again when they are released. raft is simulated by a timer: a
//! ReadIndex request or an entry completes after 0.1, 0.5 or 2 ms, and is applied immediately.
//! **Timed:** the number of released reads per second, the number of ReadIndex requests per second,
//! and the busy time of the thread per read, without spinning. Mode `log` proposes etcd 3.0's
//! encoded range request, with a key of 32 bytes, as a WAL record. All entries of a poll are
//! written to a file in `TMPDIR` with one sync. Busy time includes the encoding, but not the
//! writing and the syncing.
//!
//! **Not timed:** raft and its heartbeats, waking the threads of readers, the read, and the
//! network. At the end, the rate of `read-index` with 1,000 readers and 0.5 ms is printed next to
//! its required minimum.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use clearlane_proto::Message as _;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest, RequestHeader};
use clearlane_proto::{raftpb, walpb};
use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexConfig, ReadIndexQueue, ReadMode, ReadNeed, RequestIdGenerator,
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
        // Mode `lease` runs for at least two renewals of the lease. In modes where almost no read
        // waits for a round trip, one value of the round trip is enough.
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

/// Makes several runs, and returns the run with the median rate of reads.
fn median(mode: ReadMode, readers: u64, round_trip: Duration, length: Duration) -> Measurement {
    let mut turns: Vec<Measurement> =
        (0..RUNS).map(|_| ClosedLoop::new(mode, readers, round_trip).run(length)).collect();
    turns.sort_by(|a, b| a.reads_per_second().total_cmp(&b.reads_per_second()));
    turns.swap_remove(RUNS / 2)
}

/// The measurements of one run.
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
    /// The contexts of pending ReadIndex requests or entries, each with the time when it completes,
    /// in the order of these times.
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
            barrier.enqueue(reader, ReadNeed::Applied).expect("the queue takes it");
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

    /// Completes and applies each ReadIndex request and each entry that is due.
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
                // The longest round trip is 2 ms, so a response arrives long before a retry is due.
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
                    self.queue.enqueue(reader, ReadNeed::Applied).expect("the queue takes it");
                }
            }
            ReadIndexAction::Fail { error, .. } => panic!("nothing fails here: {error}"),
        }
    }

    /// Writes and syncs the proposed entries, if there are any.
    fn sync_entries(&mut self, proposed_at: Duration, entries: &[u8]) {
        if entries.is_empty() {
            return;
        }
        self.wal.write_all(entries).expect("TMPDIR can be written");
        self.wal.sync_data().expect("TMPDIR can be synced");
        self.measurement.rounds += 1;
        self.measurement.syncs += 1;
        self.measurement.bytes += entries.len() as u64;
        // An entry is committed after both the sync and the round trip, which run at the same time.
        let synced = self.start.elapsed();
        let due = proposed_at + self.round_trip;
        self.answers.iter_mut().for_each(|(at, _)| {
            if *at == due {
                *at = synced.max(due);
            }
        });
    }
}

/// Returns the frame of a proposed range request in the write-ahead log.
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
