//! What a seed decides before anything happens: how the cluster is set up, and how long it is tormented.
//!
//! Sizes are small where a server's are large: a log of some hundred entries is cut into segments,
//! shortened and replaced by copies as one of millions is, and a simulation comes to those places
//! within seconds.

use clearlane_backend::Design;
use clearlane_member::core::Bug;
use clearlane_mvcc::StoreParts;
use clearlane_raft_log::driver;
use clearlane_raft_log::wal;
use clearlane_read_index::ReadMode;

use crate::chance::Chance;
use crate::clients::Habits;
use crate::network::Weather;
use crate::world::{MILLISECOND, Micros, SECOND};

/// A tick of raft, on a member's own clock.
pub const TICK: Micros = 100 * MILLISECOND;

/// How a simulation goes.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How linearizable reads are made.
    pub read_mode: ReadMode,
    /// Which era's store.
    pub parts: StoreParts,
    /// Raft's settings.
    pub raft: driver::Settings,
    /// After so many entries the log takes note of the store.
    pub snapshot_count: u64,
    /// So many entries are kept behind that.
    pub catch_up_entries: u64,
    /// The log's files.
    pub wal: wal::Options,
    /// The longest time between two commits of a store.
    pub commit_pause: Micros,
    /// The longest time that a healthy disk takes for a batch.
    pub write: Micros,
    /// The longest time until the apply loop has its turn.
    pub apply: Micros,
    /// How far off a clock may be, in parts of a million.
    pub drift_ppm_max: u64,
    /// The network when no fault changes it.
    pub weather: Weather,
    /// How clients behave.
    pub habits: Habits,
    /// How many there are.
    pub clients: u64,
    /// How often a leader says how much is left of leases, if it does.
    pub lease_checkpoints: Option<Micros>,
    /// How long faults happen.
    pub torment: Micros,
    /// Members may leave until one is left.
    pub shrinks: bool,
}

impl Terms {
    /// The terms of a seed. A bug that needs a certain mode gets it.
    pub fn draw(chance: &mut Chance, bug: Option<Bug>) -> Terms {
        let read_mode = match (bug, chance.between(0, 7)) {
            (Some(Bug::LeaseKeptOverTransfer), _) => ReadMode::Lease,
            (Some(Bug::ReusedReadId | Bug::SkippedQuorumCheck | Bug::LeaseBasedOption), _) => {
                ReadMode::ReadIndex
            }
            (_, 0..=3) => ReadMode::ReadIndex,
            (_, 4..=5) => ReadMode::Lease,
            _ => ReadMode::Log,
        };
        let design = match chance.between(0, 9) {
            old @ 0..=3 => Design::ALL[old as usize],
            _ => Design::SnapshotReadTx,
        };
        let snapshot_count = chance.of_any_size(5, 400);
        Terms {
            read_mode,
            parts: design.into(),
            raft: raft(chance, bug),
            snapshot_count,
            catch_up_entries: chance.between(0, snapshot_count),
            wal: wal::Options {
                segment_bytes: chance.of_any_size(2048, 65536),
                segments_max: Some(chance.between(1, 4) as usize),
            },
            commit_pause: chance.of_any_size(10 * MILLISECOND, 4 * SECOND),
            write: chance.of_any_size(500, 30 * MILLISECOND),
            apply: chance.of_any_size(100, 300 * MILLISECOND),
            // A lease allows for a tenth of an election time-out between two clocks.
            drift_ppm_max: if read_mode == ReadMode::Lease { 40_000 } else { 300_000 },
            weather: match bug {
                Some(Bug::ReusedReadId) => ECHOES,
                _ if chance.permille(500) => Weather::FAIR,
                _ => breeze(chance),
            },
            habits: Habits::any(chance),
            clients: chance.between(2, 8),
            torment: chance.between(8, 30) * SECOND,
            lease_checkpoints: chance.permille(300).then_some(2 * SECOND),
            shrinks: chance.permille(150),
        }
    }
}

impl Terms {
    /// Whether a read need ask no other member if this one is alone, as in a server.
    pub fn reads_alone(&self) -> bool {
        self.read_mode == ReadMode::ReadIndex && self.parts == Design::SnapshotReadTx.into()
    }
}

fn raft(chance: &mut Chance, bug: Option<Bug>) -> driver::Settings {
    driver::Settings {
        inflight_max: chance.of_any_size(2, 256) as usize,
        message_bytes_max: chance.of_any_size(64, 1 << 20),
        committed_bytes_max: chance.of_any_size(64, 1 << 20),
        lease_based: bug == Some(Bug::LeaseBasedOption),
        ..driver::Settings::new(0, chance.number())
    }
}

/// Answers often come a second time, much later.
const ECHOES: Weather = Weather {
    delay: 2 * MILLISECOND,
    slow_permille: 100,
    slow_delay: 500 * MILLISECOND,
    lost_permille: 20,
    doubled_permille: 300,
};

/// A network that is never quite in order.
fn breeze(chance: &mut Chance) -> Weather {
    Weather {
        delay: chance.of_any_size(500, 20 * MILLISECOND),
        slow_permille: chance.of_any_size(0, 20),
        slow_delay: chance.of_any_size(MILLISECOND, 500 * MILLISECOND),
        lost_permille: chance.of_any_size(0, 30),
        doubled_permille: chance.of_any_size(0, 60),
    }
}
