//! What a seed decides before anything happens: how the cluster is set up, and how long it is
//! tormented.
//!
//! Sizes are small where a server's are large: a log of some hundred entries is cut into segments,
//! shortened and replaced by copies as one of millions is, and a simulation comes to those places
//! within seconds.

use clearlane_backend::Era;
use clearlane_raft as raft;
use clearlane_raft::read_index::ReadMode;
use clearlane_wal as wal;

use crate::bugs::Bug;
use crate::clients::ClientConfig;
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::network::NetworkFaults;
use crate::rng::Rng;

/// A tick of raft, on a member's own clock.
pub const TICK_INTERVAL: Micros = 100 * MILLISECOND;

/// How a simulation goes.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// What is wrong with the members.
    pub bug: Option<Bug>,
    /// How linearizable reads are made.
    pub read_mode: ReadMode,
    /// Which era's store.
    pub era: Era,
    /// Raft's settings.
    pub raft: raft::RaftNodeConfig,
    /// Number of entries after which the log takes note of the store.
    pub snapshot_count: u64,
    /// Number of entries that are kept behind that.
    pub catch_up_entries: u64,
    /// The log's files.
    pub wal: wal::Options,
    /// The longest time between two commits of a store.
    pub commit_interval_max: Micros,
    /// The longest time that a healthy disk takes for a batch.
    pub disk_write_max: Micros,
    /// The longest time until the apply loop has its turn.
    pub apply_delay_max: Micros,
    /// How far off a clock may be, in parts of a million.
    pub drift_ppm_max: u64,
    /// The network when no fault changes it.
    pub network_faults: NetworkFaults,
    /// How clients behave.
    pub client_config: ClientConfig,
    /// How many there are.
    pub clients: u64,
    /// How often a leader says how much is left of leases, if it does.
    pub lease_checkpoint_interval: Option<Micros>,
    /// How long faults happen.
    pub fault_phase: Micros,
    /// Members may leave until one is left.
    pub can_lose_members: bool,
}

impl RunConfig {
    /// The terms of a seed. A bug that needs a certain mode gets it.
    pub fn random(chance: &mut Rng, bug: Option<Bug>) -> RunConfig {
        let read_mode = match (bug, chance.between(0, 7)) {
            (Some(Bug::LeaseKeptOverTransfer | Bug::LeaseTooLong), _) => ReadMode::Lease,
            (Some(Bug::ReusedReadId | Bug::SkippedQuorumCheck), _) => ReadMode::ReadIndex,
            (_, 0..=3) => ReadMode::ReadIndex,
            (_, 4..=5) => ReadMode::Lease,
            _ => ReadMode::Log,
        };
        let era = match chance.between(0, 9) {
            old @ 0..=3 => Era::DISTINCT_STORES[old as usize],
            _ => Era::Clearlane,
        };
        let snapshot_count = chance.log_uniform(5, 400);
        RunConfig {
            bug,
            read_mode,
            era,
            raft: raft_config(chance),
            snapshot_count,
            catch_up_entries: chance.between(0, snapshot_count),
            wal: wal::Options {
                segment_bytes: match (bug, chance.log_uniform(2048, 65536)) {
                    // A vote whose sync ends a segment would not be lost alone.
                    (Some(Bug::LostVote), _) => 1 << 20,
                    (_, drawn) => drawn,
                },
                segments_max: Some(chance.between(1, 4) as usize),
            },
            commit_interval_max: chance.log_uniform(10 * MILLISECOND, 4 * SECOND),
            disk_write_max: chance.log_uniform(500, 30 * MILLISECOND),
            apply_delay_max: chance.log_uniform(100, 300 * MILLISECOND),
            // A lease allows for a tenth of an election time-out between two clocks.
            drift_ppm_max: if read_mode == ReadMode::Lease { 40_000 } else { 300_000 },
            network_faults: match bug {
                Some(Bug::ReusedReadId) => DUPLICATING_NETWORK,
                _ if chance.permille(500) => NetworkFaults::HEALTHY,
                _ => mild_network_faults(chance),
            },
            client_config: ClientConfig::random(chance),
            clients: chance.between(2, 8),
            fault_phase: chance.between(8, 30) * SECOND,
            lease_checkpoint_interval: chance.permille(300).then_some(2 * SECOND),
            can_lose_members: chance.permille(150),
        }
    }
}

impl RunConfig {
    /// Whether a read need ask no other member if this one is alone, as in a server.
    pub fn sole_voter_reads_locally(&self) -> bool {
        self.read_mode == ReadMode::ReadIndex && self.era == Era::Clearlane
    }
}

fn raft_config(chance: &mut Rng) -> raft::RaftNodeConfig {
    raft::RaftNodeConfig {
        inflight_max: chance.log_uniform(2, 256) as usize,
        message_bytes_max: chance.log_uniform(64, 1 << 20),
        committed_bytes_max: chance.log_uniform(64, 1 << 20),
        ..raft::RaftNodeConfig::new(0, chance.next_u64())
    }
}

/// Answers often come a second time, much later.
const DUPLICATING_NETWORK: NetworkFaults = NetworkFaults {
    delay_max: 2 * MILLISECOND,
    slow_permille: 100,
    slow_delay_max: 500 * MILLISECOND,
    lost_permille: 20,
    duplicated_permille: 300,
};

/// A network that is never quite in order.
fn mild_network_faults(chance: &mut Rng) -> NetworkFaults {
    NetworkFaults {
        delay_max: chance.log_uniform(500, 20 * MILLISECOND),
        slow_permille: chance.log_uniform(0, 20),
        slow_delay_max: chance.log_uniform(MILLISECOND, 500 * MILLISECOND),
        lost_permille: chance.log_uniform(0, 30),
        duplicated_permille: chance.log_uniform(0, 60),
    }
}
