//! The configuration of a cluster and of a run, drawn from the seed.
//!
//! Sizes are smaller than in a real server. So a log of some hundred entries is split into
//! segments, purged and replaced by snapshots, as a log of millions of entries would be.

use clearlane_backend::Era;
use clearlane_raft as raft;
use clearlane_raft::read_index::ReadMode;
use clearlane_wal as wal;

use crate::bugs::Bug;
use crate::clients::ClientConfig;
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::network::NetworkFaults;
use crate::rng::Rng;

/// The time between two ticks, on the member's own clock.
pub const TICK_INTERVAL: Micros = 100 * MILLISECOND;

#[derive(Clone, Debug)]
pub struct RunConfig {
    pub bug: Option<Bug>,
    pub read_mode: ReadMode,
    pub era: Era,
    pub raft: raft::RaftNodeConfig,
    /// Number of entries between two snapshots of the log.
    pub snapshot_count: u64,
    /// Number of entries that stay in the log before a snapshot.
    pub catch_up_entries: u64,
    pub wal: wal::Options,
    pub commit_interval_max: Micros,
    /// The longest time to write a batch while no fault slows the disk.
    pub disk_write_max: Micros,
    pub apply_delay_max: Micros,
    /// The highest drift of a clock, in parts per million.
    pub drift_ppm_max: u64,
    /// The network while no fault changes it.
    pub network_faults: NetworkFaults,
    pub client_config: ClientConfig,
    /// Number of clients.
    pub clients: u64,
    /// Time between two checkpoints of remaining TTLs by the leader. If `None`, there are no
    /// checkpoints.
    pub lease_checkpoint_interval: Option<Micros>,
    /// How long faults are injected.
    pub fault_phase: Micros,
    /// If true, members may be removed until one is left.
    pub can_lose_members: bool,
    /// If true, disks are wiped.
    pub wipes_disks: bool,
    /// If true, members publish their client URLs, as the server's members do.
    pub publishes_members: bool,
    /// The lifetime of a simple token. If `None`, the run has no users.
    pub token_ttl: Option<Micros>,
}

impl RunConfig {
    /// Draws a configuration. If a bug needs certain settings, such as a read mode, the run has
    /// them.
    pub fn random(rng: &mut Rng, bug: Option<Bug>) -> RunConfig {
        let read_mode = match (bug, rng.between(0, 7)) {
            (Some(Bug::LeaseKeptOverTransfer | Bug::LeaseTooLong), _) => ReadMode::Lease,
            (Some(Bug::ReusedReadId | Bug::SkippedQuorumCheck), _) => ReadMode::ReadIndex,
            (_, 0..=3) => ReadMode::ReadIndex,
            (_, 4..=5) => ReadMode::Lease,
            _ => ReadMode::Log,
        };
        let era = match rng.between(0, 9) {
            old @ 0..=3 => Era::DISTINCT_STORES[old as usize],
            _ => Era::Clearlane,
        };
        let snapshot_count = rng.log_uniform(5, 400);
        RunConfig {
            bug,
            read_mode,
            era,
            raft: raft_config(rng),
            snapshot_count,
            catch_up_entries: rng.between(0, snapshot_count),
            wal: wal::Options {
                segment_bytes: match (bug, rng.log_uniform(2048, 65536)) {
                    // If the skipped sync were also the sync that ends a segment, more than the
                    // vote would be lost. So with this bug, segments are so large that none ends in
                    // a run.
                    (Some(Bug::LostVote), _) => 1 << 20,
                    (_, drawn) => drawn,
                },
                segments_max: Some(rng.between(1, 4) as usize),
                ..wal::Options::default()
            },
            commit_interval_max: rng.log_uniform(10 * MILLISECOND, 4 * SECOND),
            disk_write_max: rng.log_uniform(500, 30 * MILLISECOND),
            apply_delay_max: rng.log_uniform(100, 300 * MILLISECOND),
            // A lease allows two clocks to drift apart by a tenth of an election time-out. In the
            // worst case one clock is 4 % fast and the other is 4 % slow.
            drift_ppm_max: if read_mode == ReadMode::Lease { 40_000 } else { 300_000 },
            network_faults: match bug {
                Some(Bug::ReusedReadId) => DUPLICATING_NETWORK,
                _ if rng.permille(500) => NetworkFaults::HEALTHY,
                _ => mild_network_faults(rng),
            },
            client_config: ClientConfig::random(rng),
            clients: rng.between(2, 8),
            fault_phase: rng.between(8, 30) * SECOND,
            lease_checkpoint_interval: rng.permille(300).then_some(2 * SECOND),
            can_lose_members: rng.permille(150),
            wipes_disks: false,
            publishes_members: false,
            token_ttl: None,
        }
    }

    /// Gives users to one of four runs without a bug, chosen at random, and to each run whose bug
    /// concerns users. `rng` is used only for users, so all other runs are the same as without this
    /// function.
    pub fn add_users(&mut self, rng: &mut Rng) {
        let ttl = rng.between(2, 30) * SECOND;
        let has_users = self.bug.map_or(rng.permille(250), Bug::is_about_users);
        self.token_ttl = has_users.then_some(ttl);
    }

    /// Wipes disks in one of eight runs without a bug, chosen at random, and in each run whose bug
    /// concerns wiped disks. Such a run has no users and keeps enough voters. `rng` is used only
    /// for wiped disks.
    pub fn add_wiped_disks(&mut self, rng: &mut Rng) {
        let is_chosen = rng.permille(125);
        self.publishes_members = rng.permille(500);
        self.wipes_disks = self.bug.map_or(is_chosen, Bug::is_about_wiped_disks);
        self.publishes_members &= self.wipes_disks;
        if self.wipes_disks {
            self.token_ttl = None;
            self.can_lose_members = false;
        }
    }

    /// Returns whether a sole voter serves linearizable reads without ReadIndex, as in the server.
    pub fn sole_voter_reads_locally(&self) -> bool {
        self.read_mode == ReadMode::ReadIndex && self.era == Era::Clearlane
    }
}

fn raft_config(rng: &mut Rng) -> raft::RaftNodeConfig {
    raft::RaftNodeConfig {
        inflight_max: rng.log_uniform(2, 256) as usize,
        message_bytes_max: rng.log_uniform(64, 1 << 20),
        committed_bytes_max: rng.log_uniform(64, 1 << 20),
        ..raft::RaftNodeConfig::new(0, rng.next_u64())
    }
}

const DUPLICATING_NETWORK: NetworkFaults = NetworkFaults {
    delay_max: 2 * MILLISECOND,
    slow_permille: 100,
    slow_delay_max: 500 * MILLISECOND,
    lost_permille: 20,
    duplicated_permille: 300,
};

fn mild_network_faults(rng: &mut Rng) -> NetworkFaults {
    NetworkFaults {
        delay_max: rng.log_uniform(500, 20 * MILLISECOND),
        slow_permille: rng.log_uniform(0, 20),
        slow_delay_max: rng.log_uniform(MILLISECOND, 500 * MILLISECOND),
        lost_permille: rng.log_uniform(0, 30),
        duplicated_permille: rng.log_uniform(0, 60),
    }
}
