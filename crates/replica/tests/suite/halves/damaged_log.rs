//! Randomly damages the log of a member that has acknowledged writes. The next start of the member
//! must fail, or the member must have every acknowledged write.
//!
//! The only exception is a loss at the very end of the log after a power failure, if a torn write
//! explains the loss. [`explain_as_torn`] proves that a single write leaves the same bytes if only
//! some of its sectors reach the disk. This may be the write that the member made. It may also be
//! another write, which [`with_completed_record`] constructs: a valid record that contains the
//! bytes that are left. The losses of at most 2 % of the damaged logs may be explained by a torn
//! write.
//!
//! Each seed makes one log, and damages 20 copies of it. `CLEARLANE_SEED` sets the first seed
//! (default 1), and `CLEARLANE_DAMAGES` sets the total number of damaged copies over all seeds
//! (default 2,000). To repeat only seed 17:
//!
//! ```text
//! CLEARLANE_SEED=17 CLEARLANE_DAMAGES=20 cargo test -p clearlane-replica --test suite damaged
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_replica::{ReplicaConfig, RequestOutcome};
use clearlane_wal::files::{FileSystem, SECTOR, SimulatedDisk};
use clearlane_wal::{DURABLE_END_FILE, Options};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::halves::replica_cluster::{DIR, ReplicaCluster};

const DAMAGES: u64 = 2_000;
/// Number of damaged copies of the log of one seed.
const DAMAGES_PER_LOG: u64 = 20;
/// Maximum share of damaged copies whose loss may look like a torn write, in percent.
const UNNOTICED_MAX: u64 = 2;

/// A stopped member, and the values that it has acknowledged.
struct Stopped {
    cluster: ReplicaCluster,
    acknowledged: BTreeMap<String, String>,
    /// If true, the power failed. Otherwise the process was killed.
    power_failed: bool,
}

fn number_or(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |number| number.parse().unwrap())
}

fn settings(rng: &mut StdRng) -> ReplicaConfig {
    let snapshot_count = rng.random_range(10..200);
    ReplicaConfig { snapshot_count, catch_up_entries: 5, ..ReplicaConfig::new(7, 0) }
}

/// Returns a stopped member that has written some segments.
fn stopped_member(rng: &mut StdRng) -> Stopped {
    let mut cluster = ReplicaCluster::new(1, settings(rng));
    // The existing segment may have been created with another size. The next start must not report
    // this difference as a loss.
    let segment_bytes = 1 << rng.random_range(12..17);
    cluster.host(1).running = None;
    cluster.host(1).wal = Options { segment_bytes, segments_max: Some(3), ..Options::default() };
    cluster.start(1);
    cluster.leader();
    let segments = rng.random_range(1..4);
    let commit_every = rng.random_range(3..40);
    let mut acknowledged = BTreeMap::new();
    let mut written = 0;
    for number in 0_u64.. {
        if written > segments * segment_bytes + segment_bytes / 2 {
            break;
        }
        let key = format!("key {}", rng.random_range(0..50));
        let value = value(rng, number, segment_bytes);
        written += value.len() as u64 + 60;
        let answer = cluster.put(1, &key, &value);
        assert!(matches!(answer, RequestOutcome::Applied(Ok(_))), "{answer:?}");
        acknowledged.insert(key, value);
        if number.is_multiple_of(commit_every) {
            cluster.commit(1);
        }
    }
    let power_failed = rng.random_ratio(1, 3);
    let host = cluster.host(1);
    host.running = None;
    host.disk = Arc::new(match power_failed {
        true => host.disk.after_power_cut(rng.random()),
        false => host.disk.after_kill(),
    });
    Stopped { cluster, acknowledged, power_failed }
}

/// Returns a random value. Some values are long, and some have sectors of zeros.
fn value(rng: &mut StdRng, number: u64, segment_bytes: u64) -> String {
    let length = match rng.random_range(0..20) {
        0 => rng.random_range(0..=(segment_bytes as usize / 4).min(20_000)),
        _ => rng.random_range(0..600),
    };
    let fill = if rng.random_ratio(1, 10) { "\0" } else { "v" };
    format!("{number} {}", fill.repeat(length))
}

type Segments = Vec<(String, Vec<u8>)>;

fn segments(disk: &SimulatedDisk) -> Segments {
    let names = disk.list(Path::new(DIR)).unwrap().into_iter();
    let names = names.filter(|name| name.ends_with(".wal"));
    names.map(|name| (name.clone(), bytes(disk, &path(&name)))).collect()
}

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn bytes(disk: &SimulatedDisk, path: &Path) -> Vec<u8> {
    let file = disk.open_to_read(path).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Returns the offset after the last byte that is not zero.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Damages one or two segments, and returns a description of the damage.
fn damage(rng: &mut StdRng, segments: &mut Segments) -> String {
    let at = rng.random_range(0..segments.len());
    let count = segments.len();
    let (name, bytes) = &mut segments[at];
    let end = written(bytes).max(1);
    let from = rng.random_range(0..end);
    let words = match rng.random_range(0..7) {
        0 => {
            let bits = rng.random_range(1..4);
            for _ in 0..bits {
                bytes[rng.random_range(0..end)] ^= 1 << rng.random_range(0..8);
            }
            format!("{bits} bits")
        }
        1 => {
            let length = rng.random_range(1..100.min(end - from).max(2)).min(bytes.len() - from);
            rng.fill(&mut bytes[from..from + length]);
            format!("{length} bytes from {from}")
        }
        2 | 3 => {
            let from = from as u64 / SECTOR * SECTOR;
            let length = SECTOR << rng.random_range(0..8);
            let to = (from + length).min(bytes.len() as u64);
            bytes[from as usize..to as usize].fill(0);
            format!("{length} zeros from {from}")
        }
        4 => {
            let length = rng.random_range(0..bytes.len());
            bytes.truncate(length);
            format!("cut to {length}")
        }
        5 => {
            segments.remove(at);
            return format!("segment {at} of {count} deleted");
        }
        _ => {
            let other = rng.random_range(0..count);
            let first = std::mem::take(&mut segments[at].1);
            segments[at].1 = std::mem::replace(&mut segments[other].1, first);
            return format!("segments {at} and {other} of {count} swapped");
        }
    };
    format!("{name} of {count}: {words}")
}

/// Returns a copy of the disk whose log has the segments `found`.
fn disk_with(disk: &SimulatedDisk, found: &Segments) -> SimulatedDisk {
    let disk = disk.after_kill();
    for (name, _) in segments(&disk) {
        disk.remove(&path(&name)).unwrap();
    }
    for (name, bytes) in found {
        let mut file = disk.create(&path(name)).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync().unwrap();
    }
    disk
}

/// Proves that a torn write can leave the segments `found` instead of `whole`, or returns why not.
/// `end` is the offset in the last segment where the log ends for the member that started with
/// `found`.
///
/// The torn write starts at `end`. So no segment is missing, and all bytes before `end` are
/// unchanged. Each later sector of the last segment is as in `whole`, or was not written and has
/// only zeros.
fn explain_as_torn(whole: &Segments, found: &Segments, end: usize) -> Result<(), String> {
    let names = |segments: &Segments| segments.iter().map(|(name, _)| name.clone()).collect();
    let (before, after): (Vec<String>, Vec<String>) = (names(whole), names(found));
    if before != after || before.is_empty() {
        return Err("a segment is missing".to_owned());
    }
    let last = whole.len() - 1;
    if whole[..last] != found[..last] {
        return Err("an earlier segment has changed".to_owned());
    }
    let (old, new) = (&whole[last].1, &found[last].1);
    if old.len() != new.len() || old[..end] != new[..end] {
        return Err(format!("the last segment has changed before {end}"));
    }
    let mut from = end;
    while from < old.len() {
        let to = ((from as u64 / SECTOR + 1) * SECTOR).min(old.len() as u64) as usize;
        let is_unwritten = new[from..to].iter().all(|byte| *byte == 0);
        if !is_unwritten && old[from..to] != new[from..to] {
            return Err(format!("no write leaves the bytes from {from} to {to}"));
        }
        from = to;
    }
    Ok(())
}

/// Returns the offset at which the log's last record ends, and the running crc at this offset. The
/// start that opened the log has cut off everything after it.
fn log_end(disk: &SimulatedDisk) -> (usize, u32) {
    let text = String::from_utf8(bytes(disk, &path(DURABLE_END_FILE))).unwrap();
    let hex = |line| usize::from_str_radix(text.lines().nth(line).unwrap(), 16).unwrap();
    (hex(2), hex(3) as u32)
}

/// Returns a complete log that a torn write could turn into `found`.
///
/// If the record at `end` has a sector of zeros, four bytes in this sector are replaced so that the
/// record has the crc that it names. Returns `None` if there is no such record or no such sector.
fn with_completed_record(found: &Segments, (end, crc): (usize, u32)) -> Option<Segments> {
    let mut completed = found.clone();
    let bytes = &mut completed.last_mut()?.1;
    let length = u64::from_le_bytes(bytes.get(end..end + 8)?.try_into().unwrap()) << 8 >> 8;
    let record_end = (end + 8).checked_add(length as usize)?;
    let (named_crc, data) = crc_and_data(bytes.get(..record_end)?, end + 8)?;
    let sector_of = |at: usize| (at as u64 / SECTOR * SECTOR) as usize;
    let mut sectors = (sector_of(data)..record_end).step_by(SECTOR as usize);
    let hole = sectors.find_map(|sector| {
        let (from, to) = (sector.max(end), (sector + SECTOR as usize).min(record_end));
        let is_hole = bytes[from..to].iter().all(|byte| *byte == 0);
        (is_hole && from.max(data) + 4 <= to).then_some(from.max(data))
    })?;
    let mut crc_with = |patch: u32| {
        bytes[hole..hole + 4].copy_from_slice(&patch.to_le_bytes());
        crc32c::crc32c_append(crc, &bytes[data..record_end])
    };
    // A crc is linear: a change of one of the 32 bits always flips the same bits of the crc. So
    // Gaussian elimination finds the bits to set.
    let without = crc_with(0);
    let mut basis = [None; 32];
    let reduced = |basis: &[Option<(u32, u32)>; 32], (mut sum, mut bits): (u32, u32)| {
        while sum != 0 {
            let Some((other, others_bits)) = basis[sum.ilog2() as usize] else { break };
            (sum, bits) = (sum ^ other, bits ^ others_bits);
        }
        (sum, bits)
    };
    for bit in (0..32).map(|number| 1 << number) {
        let (sum, bits) = reduced(&basis, (crc_with(bit) ^ without, bit));
        basis[sum.ilog2() as usize] = Some((sum, bits));
    }
    let (_, patch) = reduced(&basis, (named_crc ^ without, 0));
    assert_eq!(crc_with(patch), named_crc);
    Some(completed)
}

/// Returns the crc that a record names, and the offset of the record's data, its last field.
/// Returns `None` if the record is not valid.
fn crc_and_data(record: &[u8], mut at: usize) -> Option<(u32, usize)> {
    let mut crc = None;
    loop {
        let tag = *record.get(at)?;
        let mut rest = record.get(at + 1..)?;
        let value = prost::encoding::decode_varint(&mut rest).ok()?;
        at = record.len() - rest.len();
        match tag {
            0x08 => {}
            0x10 => crc = Some(u32::try_from(value).ok()?),
            0x1a if value == rest.len() as u64 => return Some((crc?, at)),
            _ => return None,
        }
    }
}

/// Proves that a torn write can leave the segments `found`, or returns why not: first for the write
/// that the member made, then for the write of a completed record. For the second proof, member 1
/// is started with the completed log and must accept the record.
fn explain(
    cluster: &mut ReplicaCluster,
    disk: &SimulatedDisk,
    (whole, found): (&Segments, &Segments),
    end: (usize, u32),
) -> Result<(), String> {
    let Err(why) = explain_as_torn(whole, found, end.0) else { return Ok(()) };
    let Some(completed) = with_completed_record(found, end) else { return Err(why) };
    explain_as_torn(&completed, found, end.0)?;
    let completed = Arc::new(disk_with(disk, &completed));
    let config = cluster.config.clone();
    let host = cluster.host(1);
    host.running = None;
    host.disk = Arc::clone(&completed);
    host.try_start(config).map_err(|error| format!("{why}, and if it is completed: {error}"))?;
    if log_end(&completed).0 > end.0 { Ok(()) } else { Err(why) }
}

enum Outcome {
    Refused,
    Kept,
    /// Acknowledged writes are missing, as after a torn write.
    Torn,
}

/// Changes the log of a stopped member by `damage`, and tries to start the member. Fails if the
/// member starts without an acknowledged write, and no torn write explains the loss.
fn start_damaged(
    stopped: &mut Stopped,
    damage: impl FnOnce(&mut Segments),
) -> Result<Outcome, String> {
    let Stopped { cluster, acknowledged, power_failed } = stopped;
    let disk = Arc::clone(&cluster.host(1).disk);
    let whole = segments(&disk);
    let mut found = whole.clone();
    damage(&mut found);
    let damaged = disk_with(&disk, &found);
    cluster.host(1).disk = Arc::new(damaged.clone());
    let config = cluster.config.clone();
    let opened = cluster.host(1).try_start(config).map(|()| log_end(&damaged));
    let outcome = match opened {
        Err(_) => Ok(Outcome::Refused),
        Ok(end) => {
            cluster.start(1);
            cluster.leader();
            let has = |(key, value): (&String, &String)| {
                cluster.host(1).get(key).0.as_ref() == Some(value)
            };
            match acknowledged.iter().all(has) {
                true => Ok(Outcome::Kept),
                false if *power_failed => {
                    explain(cluster, &disk, (&whole, &found), end).map(|()| Outcome::Torn)
                }
                false => Err("an acknowledged write is lost".to_owned()),
            }
        }
    };
    let host = cluster.host(1);
    host.running = None;
    host.disk = disk;
    outcome
}

#[test]
fn a_damaged_log_is_refused_or_has_every_acknowledged_write() {
    let first = number_or("CLEARLANE_SEED", 1);
    let damages = number_or("CLEARLANE_DAMAGES", DAMAGES);
    let (mut refused, mut kept, mut torn) = (0, 0, 0);
    for seed in first..first + damages.div_ceil(DAMAGES_PER_LOG) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut stopped = stopped_member(&mut rng);
        let undamaged = start_damaged(&mut stopped, |_| {});
        assert!(matches!(undamaged, Ok(Outcome::Kept)), "seed {seed}: it does not start again");
        for _ in 0..DAMAGES_PER_LOG {
            let mut words = String::new();
            let damage = |found: &mut Segments| words = damage(&mut rng, found);
            match start_damaged(&mut stopped, damage) {
                Ok(Outcome::Refused) => refused += 1,
                Ok(Outcome::Kept) => kept += 1,
                Ok(Outcome::Torn) => torn += 1,
                Err(why) => panic!("seed {seed}: {words}: {why}"),
            }
        }
    }
    println!("{refused} refused, {kept} with everything, {torn} as after a torn write");
    assert!(refused > kept, "{refused} refused of {damages}");
    assert!(torn * 100 <= damages * UNNOTICED_MAX, "{torn} of {damages} are as after a torn write");
}
