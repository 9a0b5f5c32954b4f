//! A member's data, and how the member starts: in a new cluster, in a cluster that it joins, or
//! again with its data.
//!
//! The directory `data-dir/member` contains etcd's `wal/`, unless `--wal-dir` names another place,
//! and `snap/` with the store and with raft snapshots that are being received. An engine other than
//! `bolt` adds the file `format`.
//!
//! * If the log exists, the member continues with its data on disk, and ignores
//!   `--initial-cluster`.
//! * The members of a new cluster derive the same ids from the same flags, and write the same first
//!   entries. Other flags result in another cluster, and calls between the two clusters are
//!   rejected.
//! * A member that joins a cluster gets the list of members from the others, and finds its id in
//!   this list by its addresses.
//! * A member without a log first asks the others whether it may start, unless it is the only
//!   member of a new cluster: see `first_start.rs`.

mod error;
mod first_start;
mod format;
mod initial;
pub(crate) mod store_version;

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clearlane_backend::Era;
use clearlane_contention::now_ns;
use clearlane_engine::{EngineKind, Options};
use clearlane_net::tls::Dialer;
use clearlane_peer as peer;
use clearlane_peer::TransportParts;
use clearlane_replica::{
    ApplyTimer, ReplicaConfig, StorageConfig, bootstrap_admitted, force_new_cluster, membership,
};
use clearlane_rpc::serve::SLOW_APPLY_THRESHOLD;
use clearlane_server::snapshot::open_store_dir;
use clearlane_server::threads::{NoNetwork, ServerThreads};
use clearlane_wal as wal;
use clearlane_wal::files::{FileSystem, OsFileSystem, UnsyncedFileSystem};

pub use self::error::{Error, Result};
pub use self::first_start::Identity;
pub use self::initial::{InitialCluster, InitialClusterState};

#[derive(Clone, Debug)]
pub struct MemberConfig {
    pub name: String,
    pub data_dir: PathBuf,
    /// The directory of the log. If `None`, it is in the data directory.
    pub wal_dir: Option<PathBuf>,
    pub peer_urls: Vec<String>,
    /// The first members of a new cluster, or the members of the cluster that this one joins.
    pub initial_cluster: InitialCluster,
    /// A token that distinguishes clusters that started with the same addresses.
    pub cluster_token: String,
    pub initial_cluster_state: InitialClusterState,
    /// If true, all other members are removed from the cluster at startup, without a vote.
    pub force_new_cluster: bool,
    pub era: Era,
    pub backend: clearlane_backend::Config,
    pub engine_kind: EngineKind,
    pub engine: Options,
    pub wal: wal::Options,
    /// The settings of the replica. `open` sets the fields that depend on the start time, on the
    /// heartbeats and on the cluster.
    pub replica: ReplicaConfig,
    /// Maximum number of learners. It must be the same on all members.
    pub learners_max: usize,
    pub heartbeat: Duration,
    pub election_timeout: Duration,
    pub dialer: Dialer,
}

/// A running member, and the parts that its network needs: see [`peer::Peers::start`].
#[derive(Debug)]
pub struct OpenedMember {
    pub threads: Arc<ServerThreads>,
    pub transport: TransportParts,
}

impl MemberConfig {
    /// Returns the configuration of a cluster with one member, with etcd's defaults.
    pub fn new(name: &str, data_dir: &Path, peer_url: &str, era: Era) -> MemberConfig {
        let peer_urls = vec![peer_url.to_owned()];
        let apply_timer = Some(ApplyTimer { limit: SLOW_APPLY_THRESHOLD, now_ns });
        MemberConfig {
            name: name.to_owned(),
            data_dir: data_dir.to_owned(),
            wal_dir: None,
            initial_cluster: InitialCluster::single(name, &peer_urls),
            peer_urls,
            cluster_token: "etcd-cluster".to_owned(),
            initial_cluster_state: InitialClusterState::New,
            force_new_cluster: false,
            era,
            backend: Default::default(),
            engine_kind: EngineKind::Bolt,
            engine: Options::default(),
            wal: wal::Options::default(),
            replica: ReplicaConfig { apply_timer, ..ReplicaConfig::new(0, 0) },
            learners_max: membership::LEARNERS_MAX,
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_secs(1),
            dialer: Dialer::default(),
        }
    }

    /// Returns true if there is a log. Then the member continues with its data, and the flags do
    /// not determine the cluster's members.
    pub fn has_data(&self) -> Result<bool> {
        Ok(wal::exists(&OsFileSystem, &self.wal_dir()).map_err(clearlane_replica::Error::from)?)
    }

    /// Checks that this program can use the existing store. Creates and changes nothing. For an
    /// engine other than `bolt`, only checks that there is no file of `bolt`. The version in the
    /// file `format` is checked later, when the data is opened.
    pub fn check_store(&self) -> Result<()> {
        let file = store_version::file_in(&self.member_dir());
        match self.engine_kind {
            EngineKind::Bolt => store_version::check(&file, self.has_data()?),
            kind if file.exists() => Err(Error::OtherEngine { path: file, kind }),
            _ => Ok(()),
        }
    }

    /// Opens or creates the member's data, and starts its threads. A first member of a new cluster
    /// starts without queries to the other members. For these queries, use
    /// [`ask_for_identity`](MemberConfig::ask_for_identity) and [`open_as`](MemberConfig::open_as).
    pub fn open(&self) -> Result<OpenedMember> {
        self.open_as(self.identity()?)
    }

    /// Opens the member's data, or creates it with `identity`, and starts the member's threads. The
    /// identity is the result of [`ask_for_identity`](MemberConfig::ask_for_identity).
    pub fn open_as(&self, identity: Option<Identity>) -> Result<OpenedMember> {
        let (network, transport) = peer::new_transport().map_err(Error::Network)?;
        let joins_as_learner = identity.as_ref().and_then(|identity| identity.joins_as_learner);
        let storage = self.prepare(identity)?;
        let settings = ReplicaConfig { joins_as_learner, ..self.replica_config()? };
        let threads = Arc::new(ServerThreads::start(storage, settings, Box::new(network))?);
        Ok(OpenedMember { threads, transport })
    }

    /// Opens the member's data without a network. The member must be the only one of its cluster.
    pub fn open_alone(&self) -> Result<ServerThreads> {
        let storage = self.prepare(self.identity()?)?;
        Ok(ServerThreads::start(storage, self.replica_config()?, Box::new(NoNetwork))?)
    }

    /// Creates the data of a new member, as [`open`](MemberConfig::open) would, and starts nothing.
    pub fn create(&self) -> Result<()> {
        self.prepare(self.identity()?).map(drop)
    }

    /// Checks the member's data on disk. Creates it for a new member, and carries out
    /// `--force-new-cluster`.
    fn prepare(&self, identity: Option<Identity>) -> Result<StorageConfig> {
        self.check_store()?;
        for dir in [Some(&self.data_dir), self.wal_dir.as_ref()].into_iter().flatten() {
            warn_if_not_private(dir).map_err(error::at(dir))?;
        }
        let member_dir = self.member_dir();
        self.create_member_dir(&member_dir).map_err(error::at(&member_dir))?;
        if let Some(parent) = self.wal_dir().parent().filter(|dir| *dir != Path::new("")) {
            create_private_dir(parent).map_err(error::at(parent))?;
        }
        format::check(&self.member_dir(), self.engine_kind)?;
        let storage = self.storage_config()?;
        if !self.has_data()? {
            let Some(identity) = identity.filter(|_| !self.force_new_cluster) else {
                return Err(Error::NoDataToForce(self.wal_dir()));
            };
            let Identity { metadata, first, admitted_by, .. } = identity;
            bootstrap_admitted(&storage, metadata, &first, admitted_by)?;
        } else if self.force_new_cluster {
            let removed = force_new_cluster(&storage)?;
            let removed: Vec<String> = removed.iter().map(|id| format!("{id:x}")).collect();
            tracing::warn!(?removed, "continues alone, as a new cluster");
        }
        Ok(storage)
    }

    fn storage_config(&self) -> Result<StorageConfig> {
        // This check must come before the store is opened: the next commit marks the store as
        // written by Clearlane.
        let etcd_wrote_last = self.engine_kind == EngineKind::Bolt
            && store_version::is_of_etcd(&store_version::file_in(&self.member_dir()))?;
        let files: Arc<dyn FileSystem> = match self.engine.syncs {
            true => Arc::new(OsFileSystem),
            false => Arc::new(UnsyncedFileSystem),
        };
        let snap = self.member_dir().join("snap");
        let store_dir =
            open_store_dir(Arc::clone(&files), &snap, self.engine_kind, self.engine.clone());
        Ok(StorageConfig {
            files,
            wal_dir: self.wal_dir(),
            wal: wal::Options { etcd_wrote_last, ..self.wal },
            store_dir: store_dir.map_err(clearlane_replica::Error::from)?,
            era: self.era,
            backend: self.backend.clone(),
            learners_max: self.learners_max,
        })
    }

    fn replica_config(&self) -> Result<ReplicaConfig> {
        let ticks = self.election_timeout.as_millis() / self.heartbeat.as_millis().max(1);
        // Raft needs an election timeout of more than one heartbeat. As in etcd, at least five are
        // required.
        if ticks < 5 {
            let (heartbeat, election) = (self.heartbeat, self.election_timeout);
            return Err(Error::Timeouts { heartbeat, election });
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut settings = self.replica.clone();
        (settings.raft.seed, settings.unix_ms) =
            (since.as_nanos() as u64, since.as_millis() as u64);
        settings.raft.election_ticks = ticks as usize;
        settings.read_index.tick_interval = self.heartbeat;
        settings.read_index.election_timeout = self.heartbeat * ticks as u32;
        settings.read_index.drift_margin = settings.read_index.election_timeout / 10;
        Ok(settings)
    }

    fn create_member_dir(&self, dir: &Path) -> io::Result<()> {
        create_private_dir(dir)?;
        if self.engine.syncs { std::fs::File::open(dir)?.sync_all() } else { Ok(()) }
    }

    fn member_dir(&self) -> PathBuf {
        self.data_dir.join("member")
    }

    fn wal_dir(&self) -> PathBuf {
        match &self.wal_dir {
            // Rebuilding the path removes a slash at its end. A new log is first created under this
            // path with the suffix `.tmp`, and a slash would put that name inside the directory.
            Some(dir) => dir.components().collect(),
            None => self.member_dir().join("wal"),
        }
    }
}

/// The mode of directories with data, as in etcd.
const PRIVATE_DIR_MODE: u32 = 0o700;

/// Creates a directory and its missing parents with mode `PRIVATE_DIR_MODE`.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIR_MODE).create(dir)
}

/// Warns if the mode of a directory is not 0700. As in etcd, an existing directory is used and
/// keeps its mode: it may be a mount point, or open to a backup program on purpose.
fn warn_if_not_private(dir: &Path) -> io::Result<()> {
    let mode = match std::fs::metadata(dir) {
        Ok(found) => found.permissions().mode() & 0o777,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if mode != PRIVATE_DIR_MODE {
        tracing::warn!(
            dir = %dir.display(),
            mode = format!("{mode:o}"),
            recommended = format!("{PRIVATE_DIR_MODE:o}"),
            "check file permission: other users may read the data"
        );
    }
    Ok(())
}
