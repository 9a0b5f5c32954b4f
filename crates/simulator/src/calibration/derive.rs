//! From what was measured of a server to what things cost in it.
//!
//! Each load differs in one thing from another, and the difference is a cost; `docs/scenarios.md`
//! lists the loads. What happens inside the locks is told from the rest by how long `store` was
//! held, which a read of the old eras does from its first key to its last. In Clearlane's era no
//! lock says so, and the shares are taken to be those of 3.2: the records are the same, and so is
//! the work on them.
//!
//! What no such load shows (a scan for watchers, the copy of a file) stays as estimated by hand.

use super::queue::Puts;
use super::sleep::WakeupCosts;
use crate::costs::Costs;
use crate::spread::{P99_MAX, Spread};

/// Bytes of a small record and of a large one, as the model counts them.
pub const SMALL: f64 = 152.0;
/// See [`SMALL`].
pub const LARGE: f64 = 1_112.0;
/// And of one that is put.
pub const PUT: f64 = 16_472.0;
/// So many small ones are read at once.
pub const MANY: f64 = 10_000.0;
/// So many large ones.
pub const LONG: f64 = 16_000.0;
/// Their bytes.
pub(super) const LONG_MIB: f64 = LONG * LARGE / (1 << 20) as f64;
/// So many small ones are handed to another thread already, by the old eras.
pub const FEW: f64 = 10.0;
/// Keys that are walked over to send one of them.
pub const WALKED: f64 = 20_000.0;
/// Puts beside which reads copy what is pending, per second.
pub const PUTS_BESIDE: f64 = 1_000.0;
/// Small reads, per second; if they are few; and if they are so few that most find a machine that
/// sleeps.
pub const OFTEN: f64 = 2_000.0;
/// See [`OFTEN`].
pub const SELDOM: f64 = 300.0;
/// See [`OFTEN`].
pub const RARELY: f64 = 25.0;
/// Seen on timelines of the real server: of seven threads that wake beside busy ones, one waits for
/// its turn.
const IMPATIENCE: f64 = 0.85;
/// Whatever is said to be computed for a sync, so much of it is waiting for the disk.
const SYNC_WAITS: f64 = 0.1;
/// Each comes nearer to what puts have beside the log.
const TRIALS: usize = 6;
/// Puts, per second, if they are few; and if they are many.
pub const PUTS_SELDOM: f64 = 100.0;
/// See [`PUTS_SELDOM`].
pub const PUTS_OFTEN: f64 = 1_000.0;
/// Between two commits.
const COMMIT_INTERVAL_S: f64 = 0.1;

/// What a load has shown, per request; all times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadMeasurement {
    /// Processor time of the server, beyond what it takes to do nothing.
    pub server_ns: f64,
    /// Of the client.
    pub client_ns: f64,
    /// Latencies.
    pub median_ns: f64,
    /// See [`LoadMeasurement::median_ns`].
    pub p99_ns: f64,
    /// How long `store` was held, each time.
    pub store_held_ns: f64,
    /// How long `readTx` was held by a reader, each time.
    pub read_tx_held_ns: f64,
    /// How long an entry of the log took to apply.
    pub applied_ns: f64,
    /// Syncs of the log.
    pub sync: Option<MeasuredTimes>,
    /// Commits of the backend.
    pub commit: Option<MeasuredTimes>,
    /// Writes for each of them.
    pub per_commit: f64,
}

impl LoadMeasurement {
    /// Figure by figure the middle of several; none are all nothing.
    #[must_use]
    pub fn middle(windows: &[LoadMeasurement]) -> LoadMeasurement {
        let of = |by: &dyn Fn(&LoadMeasurement) -> f64| middle(windows.iter().map(by).collect());
        let measured = |by: &dyn Fn(&LoadMeasurement) -> Option<MeasuredTimes>| {
            let all: Vec<MeasuredTimes> = windows.iter().filter_map(by).collect();
            let of = |by: &dyn Fn(&MeasuredTimes) -> f64| middle(all.iter().map(by).collect());
            let (mean_ns, p99_ns) = (of(&|one| one.mean_ns), of(&|one| one.p99_ns));
            (!all.is_empty()).then_some(MeasuredTimes { mean_ns, p99_ns })
        };
        LoadMeasurement {
            server_ns: of(&|window| window.server_ns),
            client_ns: of(&|window| window.client_ns),
            median_ns: of(&|window| window.median_ns),
            p99_ns: of(&|window| window.p99_ns),
            store_held_ns: of(&|window| window.store_held_ns),
            read_tx_held_ns: of(&|window| window.read_tx_held_ns),
            applied_ns: of(&|window| window.applied_ns),
            sync: measured(&|window| window.sync),
            commit: measured(&|window| window.commit),
            per_commit: of(&|window| window.per_commit),
        }
    }
}

/// Of an even number the smaller one, since what disturbs makes nothing quicker.
pub(super) fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Times of a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredTimes {
    /// The mean, in nanoseconds.
    pub mean_ns: f64,
    /// About the 99th percentile.
    pub p99_ns: f64,
}

impl MeasuredTimes {
    fn spread(self) -> Spread {
        // In files they are whole nanoseconds.
        let mean_ns = self.mean_ns.max(1_000.0);
        let p99_ns = self.p99_ns.clamp(mean_ns + 1.0, 0.99 * P99_MAX * mean_ns);
        Spread { mean_ns, p99_ns: Some(p99_ns) }
    }
}

/// What an era has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EraMeasurements {
    /// One key, serializable.
    pub point: LoadMeasurement,
    /// The same, seldom.
    pub seldom: LoadMeasurement,
    /// The same, rarely.
    pub rarely: LoadMeasurement,
    /// The same as the first, linearizable.
    pub fresh: LoadMeasurement,
    /// And beside `seldom`.
    pub fresh_seldom: LoadMeasurement,
    /// [`FEW`] small records.
    pub few: LoadMeasurement,
    /// And beside `seldom`.
    pub few_seldom: LoadMeasurement,
    /// [`WALKED`] keys, and one is sent.
    pub walk: LoadMeasurement,
    /// [`MANY`] small records.
    pub many: LoadMeasurement,
    /// [`LONG`] large ones.
    pub large: LoadMeasurement,
    /// Small puts, few.
    pub put: LoadMeasurement,
    /// And many.
    pub puts: LoadMeasurement,
    /// Large puts.
    pub large_put: LoadMeasurement,
    /// Reads of one key beside many puts.
    pub beside: LoadMeasurement,
}

/// What is known from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeriveInputs {
    /// Which part of what a record, and a byte, costs a read is reading; the rest is sending.
    pub reading: (f64, f64),
    /// One pending operation, copied.
    pub buffer_op_ns: f64,
    /// How long a core works for one while another waits.
    pub quantum_ns: f64,
    /// How many there are.
    pub cores: f64,
    /// Whether a long answer is sent while the rest of it is read.
    pub in_pieces: bool,
    /// What the system computes for a sync.
    pub sync_ns: f64,
    /// What threads take to hand a request to each other.
    pub sleep: WakeupCosts,
}

/// What a record and a byte of it cost.
#[derive(Clone, Copy, Debug)]
struct Each {
    record: f64,
    byte: f64,
}

impl Each {
    /// From what many small ones and a long answer of large ones cost beyond a single small one.
    fn of(one: f64, many: f64, large: f64) -> Each {
        let (records, bytes) = (MANY - 1.0, (MANY - 1.0) * SMALL);
        let (long_records, long_bytes) = (LONG - 1.0, LONG * LARGE - SMALL);
        let (many, long) = ((many - one).max(0.0), (large - one).max(0.0));
        let byte =
            (long * records - many * long_records) / (long_bytes * records - bytes * long_records);
        let byte = byte.clamp(0.0, long / long_bytes);
        Each { record: ((many - byte * bytes) / records).max(0.0), byte }
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 1.0 }
}

/// Which part of what a record, and a byte, costs a read is done while `store` is held: in an era
/// that has it.
pub fn reading(seen: &EraMeasurements) -> (f64, f64) {
    let whole = Each::of(seen.point.server_ns, seen.many.server_ns, seen.large.server_ns);
    let held =
        Each::of(seen.point.store_held_ns, seen.many.store_held_ns, seen.large.store_held_ns);
    (share(held.record, whole.record), share(held.byte, whole.byte))
}

/// What it costs in 3.4 to copy one pending operation.
pub fn buffer_op_ns(seen: &EraMeasurements) -> f64 {
    let pending = PUTS_BESIDE * COMMIT_INTERVAL_S / 2.0;
    ((seen.beside.read_tx_held_ns - seen.point.read_tx_held_ns) / pending).max(0.0)
}

/// What things cost in the era that has shown this.
pub fn costs(seen: &EraMeasurements, known: DeriveInputs) -> Costs {
    let EraMeasurements {
        point,
        seldom,
        fresh,
        fresh_seldom,
        few,
        few_seldom,
        walk,
        many,
        large,
        ..
    } = seen;
    let (record_share, byte_share) = known.reading;
    let each = Each::of(point.server_ns, many.server_ns, large.server_ns);
    let (record, byte) = (each.record * record_share, each.byte * byte_share);
    let seek = (point.store_held_ns - record - byte * SMALL).max(0.0);
    let request = (point.server_ns - seek - each.record - each.byte * SMALL).max(0.0);
    let received = (large.client_ns - point.client_ns).max(0.0) / (LONG * LARGE - SMALL);
    let client = (point.client_ns - received * SMALL).max(0.0);
    let turn = (fresh.server_ns - point.server_ns).max(0.0);
    let records = (FEW - 1.0) * (each.record + each.byte * SMALL);
    let pool = (few.server_ns - point.server_ns - records).max(0.0);
    let index_key = (walk.server_ns - point.server_ns - pool).max(0.0) / (WALKED - 1.0);
    let WakeupCosts { awake, wakeups_ns, doze_ns } = known.sleep;
    // Beyond what is computed. It is the same, more or less, however many there are.
    let woken = |latency: &LoadMeasurement, computed: f64| {
        (latency.median_ns - seldom.median_ns - computed).max(0.0) as u64
    };
    let received_few = (FEW - 1.0) * SMALL * received;
    let costs = Costs {
        quantum_ns: known.quantum_ns.max(1.0) as u64,
        impatience: IMPATIENCE,
        request_ns: request as u64,
        client_ns: client as u64,
        awake,
        wakeups_ns: wakeups_ns as u64,
        doze_ns: doze_ns as u64,
        round_wakeups_ns: woken(fresh_seldom, turn),
        pool_ns: pool as u64,
        pool_wakeups_ns: woken(few_seldom, pool + records + received_few),
        sent_record_ns: (each.record - record) as u64,
        sent_byte_ns: each.byte - byte,
        received_byte_ns: received,
        raft_turn_ns: turn as u64,
        index_seek_ns: seek as u64,
        index_key_ns: index_key as u64,
        record_ns: (record - index_key).max(0.0) as u64,
        record_byte_ns: byte,
        buffer_op_ns: known.buffer_op_ns as u64,
        ..Costs::BY_HAND
    };
    let sent_waits = sent_waits(seen, &costs, known);
    with_writes(seen, Costs { sent_waits, ..costs }, known)
}

/// To read a long answer, to send it, and to receive it.
fn long_answer(costs: &Costs) -> (f64, f64, f64) {
    let (bytes, keys) = (LONG * LARGE, LONG * (costs.index_key_ns + costs.record_ns) as f64);
    let sent = LONG * costs.sent_record_ns as f64 + bytes * costs.sent_byte_ns;
    (keys + bytes * costs.record_byte_ns, sent, bytes * costs.received_byte_ns)
}

/// What is computed for one that is read, and then sent while it is received.
pub(super) fn in_turn(costs: &Costs) -> f64 {
    let (read, sent, received) = long_answer(costs);
    read + sent.max(received)
}

/// What a long answer takes beyond what is computed for it.
fn sent_waits(seen: &EraMeasurements, costs: &Costs, known: DeriveInputs) -> Spread {
    let EraMeasurements { point, large, .. } = seen;
    let (read, sent, received) = long_answer(costs);
    let computed = match known.in_pieces {
        // On two cores the client has to wait until one of the others is done.
        true if known.cores < 3.0 => read.max(read.min(sent) + received),
        true => read.max(sent).max(received),
        false => in_turn(costs),
    };
    // They come far apart, and find all threads asleep.
    let woken = known.sleep.awake.median_ns() + known.sleep.wakeups_ns;
    let in_the_pool = (costs.pool_ns + costs.pool_wakeups_ns) as f64;
    let request = point.server_ns + point.client_ns + woken + in_the_pool;
    let per_mib = |ns: f64| (ns - request - computed).max(0.0) / LONG_MIB;
    Spread::around(per_mib(large.median_ns), per_mib(large.p99_ns))
}

/// What a put, and what a commit, take of the processor: there are as many commits, however many
/// puts.
fn put_and_commit(seen: &EraMeasurements) -> (f64, f64) {
    let EraMeasurements { put, puts, .. } = seen;
    if puts.per_commit <= put.per_commit {
        return (put.server_ns, 0.0);
    }
    let (few, many) = (put.server_ns * put.per_commit, puts.server_ns * puts.per_commit);
    let each = (many - few) / (puts.per_commit - put.per_commit);
    let each = each.clamp(0.0, put.server_ns);
    (each, few - each * put.per_commit)
}

/// And what writes cost.
fn with_writes(seen: &EraMeasurements, costs: Costs, known: DeriveInputs) -> Costs {
    let EraMeasurements { put, puts, large_put, .. } = seen;
    let (each, commit) = put_and_commit(seen);
    // What syncs compute is in it, too: at least half of the time that a commit takes is the
    // disk's.
    let commit = commit.min(put.commit.map_or(0.0, |whole| whole.mean_ns / 2.0));
    let beyond = (each - costs.request_ns as f64).max(0.0);
    let applied = puts.applied_ns.min(beyond);
    let commit_op = match (put.commit, puts.commit) {
        (Some(few), Some(many)) if puts.per_commit > put.per_commit => {
            (many.mean_ns - few.mean_ns) / (puts.per_commit - put.per_commit)
        }
        _ => 0.0,
    };
    let commit_op = commit_op.clamp(0.0, beyond - applied);
    let commit_sync = put.commit.map_or(costs.commit_sync, |whole| {
        let computed = commit + commit_op * put.per_commit;
        MeasuredTimes { mean_ns: whole.mean_ns - computed, p99_ns: whole.p99_ns - computed }
            .spread()
    });
    // A large put waits for its bytes to be logged, and for no commit.
    let more_ns = (large_put.server_ns - put.server_ns).max(0.0);
    let later_ns = (large_put.median_ns - put.median_ns).clamp(0.0, more_ns);
    let (more, later) = (more_ns / (PUT - SMALL), later_ns / (PUT - SMALL));
    let log_entry = beyond - applied - commit_op;
    let DeriveInputs { sync_ns, sleep, .. } = known;
    let computed = Put { ns: each - commit_op, entry_ns: log_entry, sync_ns };
    let (log_sync, wakeups) = log_sync_and_wakeups(seen, sleep, computed, costs.log_sync);
    Costs {
        apply_ns: (applied - costs.index_seek_ns as f64).max(0.0) as u64,
        commit_ns: commit as u64,
        commit_op_ns: commit_op as u64,
        commit_byte_ns: more - later,
        commit_sync,
        log_sync,
        log_entry_ns: log_entry as u64,
        log_byte_ns: (later - costs.record_byte_ns).max(0.0),
        write_awake_ns: wakeups.awake_ns as u64,
        write_wakeups_ns: wakeups.ns as u64,
        ..costs
    }
}

/// How long the log waits for its disk, and what a put has beside it: each is found with the help
/// of the other. If there were no syncs, they take so long.
fn log_sync_and_wakeups(
    seen: &EraMeasurements,
    sleep: WakeupCosts,
    put: Put,
    if_none: Spread,
) -> (Spread, WriteWakeups) {
    let EraMeasurements { puts, .. } = seen;
    let Some(sync) = puts.sync else {
        return (if_none, WriteWakeups::of(seen, sleep, put, if_none));
    };
    // A server counts to a sync what the system computes for it, which is part of an entry here;
    // and on a machine that sleeps, how long it takes to wake. So it is taken from many puts.
    let mean_ns = (sync.mean_ns - put.sync_ns).max(sync.mean_ns * SYNC_WAITS);
    let wakeups = WriteWakeups::of(seen, sleep, put, MeasuredTimes { mean_ns, ..sync }.spread());
    let tail_ns = (puts.p99_ns - puts.median_ns).max(0.0);
    let log_sync = wakeups.puts(sleep, put, PUTS_OFTEN).syncs(mean_ns, tail_ns);
    (log_sync, WriteWakeups::of(seen, sleep, put, log_sync))
}

/// What is computed for a put.
#[derive(Clone, Copy, Debug)]
struct Put {
    /// By all, but for its share of a commit.
    ns: f64,
    /// By the log.
    entry_ns: f64,
    /// And of that, by the system, for a sync.
    sync_ns: f64,
}

/// Threads that hand a put to each other, beside those of any request: on a machine that is awake,
/// and how much longer they take on one that sleeps.
#[derive(Clone, Copy, Debug)]
struct WriteWakeups {
    awake_ns: f64,
    ns: f64,
}

impl WriteWakeups {
    /// What is left of the latency of puts; and the more of them there are, the less.
    fn of(seen: &EraMeasurements, sleep: WakeupCosts, put: Put, log_sync: Spread) -> WriteWakeups {
        let (deep, shallow) = (sleep.found_by(PUTS_SELDOM), sleep.found_by(PUTS_OFTEN));
        let mut found = WriteWakeups { awake_ns: 0.0, ns: 0.0 };
        for _ in 0..TRIALS {
            // What they take beyond a trial of what was found up to now.
            let left = |window: &LoadMeasurement, rate: f64| {
                let logged = found.puts(sleep, put, rate).with(log_sync).median_ns;
                window.median_ns - logged - (put.ns - put.entry_ns + seen.point.client_ns)
            };
            let (few, many) = (left(&seen.put, PUTS_SELDOM), left(&seen.puts, PUTS_OFTEN));
            let ns = (found.ns + (few - many) / (deep - shallow)).max(0.0);
            let awake_ns = found.awake_ns + many - (ns - found.ns) * shallow;
            found = match awake_ns > 0.0 {
                true => WriteWakeups { awake_ns, ns },
                // Then all of it is asleep, and few puts show that best.
                false => WriteWakeups {
                    awake_ns: 0.0,
                    ns: (found.ns + (few + found.awake_ns) / deep).max(0.0),
                },
            };
        }
        found
    }

    /// So many puts a second that wake them.
    fn puts(self, sleep: WakeupCosts, put: Put, rate: f64) -> Puts {
        Puts {
            rate,
            sleep,
            write_awake_ns: self.awake_ns,
            write_wakeups_ns: self.ns,
            entry_ns: put.entry_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::queue::Took;
    use crate::costs::CostField::{self, Part, Whole};
    use crate::era::Era;
    use crate::run::run;
    use crate::scenario::Scenario;
    use crate::server::Build;

    const SYNC_NS: f64 = 7_000.0;

    /// What a read would show that comes so often.
    fn read(costs: &Costs, records: f64, bytes: f64, keys: f64) -> LoadMeasurement {
        let held = costs.index_seek_ns as f64
            + costs.index_key_ns as f64 * keys
            + costs.record_ns as f64 * records
            + costs.record_byte_ns * records * bytes;
        let sent = costs.sent_record_ns as f64 * records + costs.sent_byte_ns * records * bytes;
        let client_ns = costs.client_ns as f64 + costs.received_byte_ns * records * bytes;
        let server_ns = costs.request_ns as f64 + held + sent;
        LoadMeasurement { server_ns, client_ns, store_held_ns: held, ..LoadMeasurement::default() }
    }

    fn sleep(costs: &Costs) -> WakeupCosts {
        let (awake, wakeups_ns) = (costs.awake, costs.wakeups_ns as f64);
        WakeupCosts { awake, wakeups_ns, doze_ns: costs.doze_ns as f64 }
    }

    /// What a long read would take beyond a short one.
    fn long(costs: &Costs, waits: f64) -> f64 {
        let bytes = LONG * LARGE;
        let read =
            LONG * (costs.index_key_ns + costs.record_ns) as f64 + bytes * costs.record_byte_ns;
        let sent = LONG * costs.sent_record_ns as f64 + bytes * costs.sent_byte_ns;
        let received = bytes * costs.received_byte_ns;
        read + sent.max(received) + bytes / (1 << 20) as f64 * waits
    }

    fn put(costs: &Costs, bytes: f64, per_commit: f64, rate: f64) -> LoadMeasurement {
        let applied_ns = (costs.apply_ns + costs.index_seek_ns) as f64;
        let more = (costs.log_byte_ns + costs.record_byte_ns) * (bytes - SMALL);
        let commit_ops = costs.commit_op_ns as f64 * per_commit;
        let commit_ns = costs.commit_ns as f64;
        let committed =
            costs.commit_byte_ns * (bytes - SMALL) + (commit_ns + commit_ops) / per_commit;
        let computed = (costs.request_ns + costs.log_entry_ns) as f64 + applied_ns + more;
        let client_ns = costs.client_ns as f64;
        let entry_ns = costs.log_entry_ns as f64;
        let (awake_ns, ns) = (costs.write_awake_ns as f64, costs.write_wakeups_ns as f64);
        let entry = Put { ns: 0.0, entry_ns, sync_ns: SYNC_NS };
        let puts = WriteWakeups { awake_ns, ns }.puts(sleep(costs), entry, rate);
        let Took { median_ns, tail_ns } = puts.with(costs.log_sync);
        let median_ns = computed - entry_ns + client_ns + median_ns;
        let measured = |spread: Spread, more: f64| MeasuredTimes {
            mean_ns: spread.mean_ns + more,
            p99_ns: spread.p99_ns.unwrap() + more,
        };
        LoadMeasurement {
            server_ns: computed + committed,
            client_ns,
            median_ns,
            p99_ns: median_ns + tail_ns,
            applied_ns,
            sync: Some(measured(costs.log_sync, SYNC_NS)),
            commit: Some(measured(costs.commit_sync, commit_ns + commit_ops)),
            per_commit,
            ..LoadMeasurement::default()
        }
    }

    /// What a server with these costs would show, if nothing else were on the machine.
    fn shown(costs: &Costs) -> EraMeasurements {
        let point = read(costs, 1.0, SMALL, 1.0);
        let turn = costs.raft_turn_ns as f64;
        let alone = |window: LoadMeasurement| window.server_ns + window.client_ns;
        let seldom = LoadMeasurement { median_ns: alone(point) + 123_456.0, ..point };
        let later = turn + costs.round_wakeups_ns as f64;
        let pool_ns = costs.pool_ns as f64;
        let (few, walk) = (read(costs, FEW, SMALL, FEW), read(costs, 1.0, SMALL, WALKED));
        let few = LoadMeasurement { server_ns: few.server_ns + pool_ns, ..few };
        let pool_wakeups = costs.pool_wakeups_ns as f64;
        let later_few = alone(few) - alone(point) + pool_wakeups;
        let few_seldom = LoadMeasurement { median_ns: seldom.median_ns + later_few, ..seldom };
        let large = |spread: Spread| {
            let woken = costs.awake.median_ns() + costs.wakeups_ns as f64;
            let request = alone(point) + woken + pool_ns + pool_wakeups;
            let beyond = |ns: f64| request + long(costs, ns);
            (beyond(spread.median_ns()), beyond(spread.p99_ns.unwrap_or_default()))
        };
        let (median_ns, p99_ns) = large(costs.sent_waits);
        let read_tx_held_ns = costs.buffer_op_ns as f64 * 50.0;
        EraMeasurements {
            point,
            seldom,
            rarely: seldom,
            fresh: LoadMeasurement { server_ns: point.server_ns + turn, ..point },
            fresh_seldom: LoadMeasurement { median_ns: seldom.median_ns + later, ..seldom },
            few,
            few_seldom,
            walk: LoadMeasurement { server_ns: walk.server_ns + pool_ns, ..walk },
            many: read(costs, MANY, SMALL, MANY),
            large: LoadMeasurement { median_ns, p99_ns, ..read(costs, LONG, LARGE, LONG) },
            put: put(costs, SMALL, 20.0, PUTS_SELDOM),
            puts: put(costs, SMALL, 100.0, PUTS_OFTEN),
            large_put: put(costs, PUT, 20.0, PUTS_SELDOM),
            beside: LoadMeasurement { read_tx_held_ns, ..point },
        }
    }

    #[test]
    fn what_was_put_in_comes_out() {
        let put_in = Costs {
            impatience: IMPATIENCE,
            awake: Spread::around(50_000.0, 200_000.0),
            wakeups_ns: 90_000,
            doze_ns: 5_000_000,
            write_awake_ns: 30_000,
            write_wakeups_ns: 120_000,
            round_wakeups_ns: 60_000,
            pool_ns: 9_000,
            pool_wakeups_ns: 80_000,
            sent_record_ns: 200,
            sent_waits: Spread::around(1_000_000.0, 2_500_000.0),
            log_sync: Spread::around(600_000.0, 2_000_000.0),
            commit_ns: 700_000,
            commit_byte_ns: 3.0,
            commit_sync: Spread::around(1_500_000.0, 6_000_000.0),
            ..Costs::BY_HAND
        };
        let seen = shown(&put_in);
        let (reading, buffer_op_ns) = (reading(&seen), buffer_op_ns(&seen));
        let mut found = costs(
            &seen,
            DeriveInputs {
                reading,
                buffer_op_ns,
                quantum_ns: 3e6,
                cores: 2.0,
                in_pieces: false,
                sync_ns: SYNC_NS,
                sleep: sleep(&put_in),
            },
        );
        let mut put_in = put_in;
        let found_costs = found.clone();
        for ((name, found), (_, put_in)) in found.fields().into_iter().zip(put_in.fields()) {
            // What is tried in a queue is found by trying, of puts that take more than a
            // millisecond.
            let is_tried = ["write_awake_ns", "write_wakeups_ns", "log_sync_ns"].contains(&name);
            let (ns, share) = if is_tried { (10_000.0, 0.02) } else { (2.0, 0.01) };
            let near =
                |found: f64, put_in: f64| (found - put_in).abs() <= ns + put_in.abs() * share;
            let fits = match (found, put_in) {
                (Whole(found), Whole(put_in)) => near(*found as f64, *put_in as f64),
                (Part(found), Part(put_in)) => (*found - *put_in).abs() < 0.01,
                (CostField::Spread(found), CostField::Spread(put_in)) => {
                    let p99 = |spread: &Spread| spread.p99_ns.unwrap();
                    near(found.mean_ns, put_in.mean_ns) && near(p99(found), p99(put_in))
                }
                _ => false,
            };
            assert!(fits, "{name}: {found_costs:?}");
        }
    }

    /// Puts are tried in a queue of one log. In the model there is a server around it.
    #[test]
    fn puts_that_are_tried_take_what_they_take_in_the_model() {
        let costs = Costs {
            awake: Spread::around(60e3, 200e3),
            wakeups_ns: 250_000,
            doze_ns: 8_000_000,
            write_awake_ns: 40_000,
            write_wakeups_ns: 400_000,
            log_entry_ns: 100_000,
            log_sync: Spread::around(60e3, 500e3),
            ..Costs::BY_HAND
        };
        let rest = costs.client_ns + costs.request_ns + costs.apply_ns + costs.index_seek_ns;
        let (entry_ns, sync_ns) = (costs.log_entry_ns as f64, 0.0);
        for rate in [PUTS_SELDOM, PUTS_OFTEN] {
            let woken = WriteWakeups { awake_ns: 40_000.0, ns: 400_000.0 };
            let puts = woken.puts(sleep(&costs), Put { ns: 0.0, entry_ns, sync_ns }, rate);
            let Took { median_ns, tail_ns } = puts.with(costs.log_sync);
            let text = format!(
                "seconds = 60\n[keys]\ncount = 1000\nsize = 64\nvalue = 64\n[[class]]\nname = \"put\"\n\
                 operation = \"put\"\narrivals = \"poisson\"\nrate = {rate}\n"
            );
            let scenario = Scenario::parse(&text).unwrap();
            let results = run(&scenario, &Build::new(Era::Clearlane, costs.clone())).unwrap();
            let ns = |quantile| results.classes[0].latency_ms(quantile).unwrap() * 1e6;
            let (median, tail) = (ns(0.5), ns(0.99) - ns(0.5));
            let tried = median_ns + rest as f64;
            assert!((median / tried - 1.0).abs() < 0.1, "{rate}: {median} in the model, {tried}");
            assert!((tail / tail_ns - 1.0).abs() < 0.2, "{rate}: {tail} in the model, {tail_ns}");
        }
    }

    #[test]
    fn what_disturbs_one_turn_is_left_out() {
        let sync = |mean_ns| Some(MeasuredTimes { mean_ns, p99_ns: 3.0 * mean_ns });
        let turn = |ns, sync| LoadMeasurement {
            server_ns: ns,
            median_ns: 2.0 * ns,
            sync,
            ..LoadMeasurement::default()
        };
        let turns = [turn(5.0, sync(9.0)), turn(400.0, sync(7.0)), turn(6.0, sync(8.0))];
        assert_eq!(LoadMeasurement::middle(&turns), turn(6.0, sync(8.0)), "each figure by itself");
        // A load without writes has no syncs, and of two the quicker one was disturbed less.
        assert_eq!(LoadMeasurement::middle(&[turn(5.0, None), turn(4.0, None)]), turn(4.0, None));
        assert_eq!(
            LoadMeasurement::middle(&[turn(5.0, None), turn(4.0, sync(9.0))]).sync,
            sync(9.0)
        );
    }

    #[test]
    fn nonsense_gives_costs_that_are_possible() {
        // A machine that was busy with something else in the wrong moment.
        let mut seen = shown(&Costs {
            awake: Spread::around(9e4, 3e5),
            log_sync: Spread::around(6e5, 2e6),
            commit_sync: Spread::around(1e6, 2e6),
            ..Costs::BY_HAND
        });
        seen.point = LoadMeasurement { server_ns: 9e9, client_ns: 9e9, p99_ns: 1.0, ..seen.point };
        seen.puts.applied_ns = 9e9;
        let costs = costs(
            &seen,
            DeriveInputs {
                reading: reading(&seen),
                buffer_op_ns: 0.0,
                quantum_ns: 0.0,
                cores: 2.0,
                in_pieces: true,
                sync_ns: 9e9,
                sleep: WakeupCosts::of(&[&seen]),
            },
        );
        // A minute.
        assert!(costs.write_awake_ns + costs.write_wakeups_ns < 60_000_000_000);
        assert!(costs.awake.is_possible() && costs.log_sync.is_possible());
        // Whatever is computed for a sync, some of it is the disk's.
        let (said, found) = (seen.puts.sync.unwrap().mean_ns, costs.log_sync.mean_ns);
        assert!((found / said - SYNC_WAITS).abs() < 0.01, "{found} of {said}");
        assert!(costs.quantum_ns > 0);
    }
}
