//! A member's data, and how it starts: in a new cluster, in one that it joins, or again. In
//! `data-dir/member` are etcd's `wal/` (unless `--wal-dir` names another place) and `snap/` (the
//! store, and raft snapshots being received). An engine other than `bolt` adds the file `format`.
//!
//! * If the log exists, the member continues with its data on disk, and ignores
//!   `--initial-cluster`.
//! * The members of a new cluster derive the same ids from the same flags, and write the same first
//!   entries. Other flags give another cluster, whose calls are refused.
//! * A member that joins a cluster asks the others for the list of members, and finds its id there
//!   by its addresses.
//! * A member without a log first asks the others whether it may start: see `first_start.rs`.

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
use clearlane_rpc::serve::SLOW_APPLY_THRESHOLD;
use clearlane_server::membership;
use clearlane_server::raft_snapshot::open_store_dir;
use clearlane_server::replica::{
    ApplyTimer, ReplicaConfig, StorageConfig, bootstrap_admitted, force_new_cluster,
};
use clearlane_server::threads::{NoNetwork, ServerThreads};
use clearlane_wal as wal;
use clearlane_wal::files::OsFileSystem;

pub use self::error::{Error, Result};
pub use self::first_start::Identity;
pub use self::initial::{InitialCluster, InitialClusterState};

#[derive(Clone, Debug)]
pub struct MemberConfig {
    pub name: String,
    pub data_dir: PathBuf,
    /// `None`: in the data directory.
    pub wal_dir: Option<PathBuf>,
    pub peer_urls: Vec<String>,
    /// Of a new cluster, or of the one that is joined.
    pub initial_cluster: InitialCluster,
    /// Tells clusters apart that began with the same addresses.
    pub cluster_token: String,
    pub initial_cluster_state: InitialClusterState,
    /// Removes all other members, without asking them.
    pub force_new_cluster: bool,
    pub era: Era,
    pub backend: clearlane_backend::Config,
    pub engine_kind: EngineKind,
    pub engine: Options,
    pub wal: wal::Options,
    /// What depends on the time of the start, on heartbeats and on the cluster is set by `open`.
    pub replica: ReplicaConfig,
    /// Must be the same at all members.
    pub learners_max: usize,
    pub heartbeat: Duration,
    pub election_timeout: Duration,
    pub dialer: Dialer,
}

/// A member that runs, and what its network needs: see [`peer::Peers::start`].
#[derive(Debug)]
pub struct OpenedMember {
    pub threads: Arc<ServerThreads>,
    pub transport: TransportParts,
}

impl MemberConfig {
    /// A cluster of one, with etcd's defaults.
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

    /// If so, the first members are read from it.
    pub fn has_data(&self) -> Result<bool> {
        Ok(wal::exists(&OsFileSystem, &self.wal_dir()).map_err(clearlane_server::Error::from)?)
    }

    /// Whether this program can go on with what is there. Creates and changes nothing.
    pub fn check_store(&self) -> Result<()> {
        let file = store_version::file_in(&self.member_dir());
        match self.engine_kind {
            EngineKind::Bolt => store_version::check(&file, self.has_data()?),
            kind if file.exists() => Err(Error::OtherEngine { path: file, kind }),
            _ => Ok(()),
        }
    }

    /// Opens the member's data. In a new cluster a member without data starts without asking the
    /// others: see [`open_as`](MemberConfig::open_as).
    pub fn open(&self) -> Result<OpenedMember> {
        self.open_as(self.identity()?)
    }

    /// Opens the member's data, or creates them with an identity from
    /// [`ask_for_identity`](MemberConfig::ask_for_identity).
    pub fn open_as(&self, identity: Option<Identity>) -> Result<OpenedMember> {
        let (network, transport) = peer::new_transport().map_err(Error::Network)?;
        let joins_as_learner = identity.as_ref().and_then(|identity| identity.joins_as_learner);
        let storage = self.prepare(identity)?;
        let settings = ReplicaConfig { joins_as_learner, ..self.replica_config()? };
        let threads = Arc::new(ServerThreads::start(storage, settings, Box::new(network))?);
        Ok(OpenedMember { threads, transport })
    }

    /// Without a network: for the only member of a cluster.
    pub fn open_alone(&self) -> Result<ServerThreads> {
        let storage = self.prepare(self.identity()?)?;
        Ok(ServerThreads::start(storage, self.replica_config()?, Box::new(NoNetwork))?)
    }

    /// Makes the data of a new member, as [`open`](MemberConfig::open) would, and starts nothing.
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
        create_dir_synced(&member_dir).map_err(error::at(&member_dir))?;
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
            tracing::warn!(?removed, "goes on alone, as a new cluster");
        }
        Ok(storage)
    }

    fn storage_config(&self) -> Result<StorageConfig> {
        // Before the store is opened: its next commit is ours.
        let etcd_wrote_last = self.engine_kind == EngineKind::Bolt
            && store_version::is_of_etcd(&store_version::file_in(&self.member_dir()))?;
        let files = Arc::new(OsFileSystem);
        let snap = self.member_dir().join("snap");
        let store_dir =
            open_store_dir(Arc::clone(&files) as _, &snap, self.engine_kind, self.engine.clone());
        Ok(StorageConfig {
            files,
            wal_dir: self.wal_dir(),
            wal: wal::Options { etcd_wrote_last, ..self.wal },
            store_dir: store_dir.map_err(clearlane_server::Error::from)?,
            era: self.era,
            backend: self.backend.clone(),
            learners_max: self.learners_max,
        })
    }

    fn replica_config(&self) -> Result<ReplicaConfig> {
        let ticks = self.election_timeout.as_millis() / self.heartbeat.as_millis().max(1);
        // Raft asks for more than one heartbeat in a time-out; etcd for five.
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

    fn member_dir(&self) -> PathBuf {
        self.data_dir.join("member")
    }

    fn wal_dir(&self) -> PathBuf {
        match &self.wal_dir {
            // Without a slash at its end: a new log has another name first.
            Some(dir) => dir.components().collect(),
            None => self.member_dir().join("wal"),
        }
    }
}

/// The rights of directories with data, as in etcd.
const PRIVATE_DIR_MODE: u32 = 0o700;

fn create_dir_synced(dir: &Path) -> io::Result<()> {
    create_private_dir(dir)?;
    std::fs::File::open(dir)?.sync_all()
}

/// With those above it, if they are not there.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIR_MODE).create(dir)
}

/// As in etcd, a directory that is there keeps its rights, and is used: it may be a mount point, or
/// have been opened to a program for backups.
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
