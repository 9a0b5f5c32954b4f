//! A data directory: etcd's names for what lies where.
//!
//! ```text
//!   data-dir/member/wal/     the write-ahead log
//!   data-dir/member/snap/    the store, and copies of others' stores on their way in
//! ```

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clearlane_engine::{EngineKind, Options};
use clearlane_member::copies::DirectoryVault;
use clearlane_member::core::{Ground, Settings, bootstrap};
use clearlane_member::membership::{self, Member};
use clearlane_member::node::{NoNetwork, Node};
use clearlane_mvcc::{OneAfterTheOther, StoreParts};
use clearlane_raft_log::files::Disk;
use clearlane_raft_log::{Metadata, wal};

/// Starts the member whose data lies in a directory. If there is none yet it is the first and only
/// one of a new cluster, under this name and peer address.
pub fn open_alone(
    data_dir: &Path,
    parts: StoreParts,
    name: &str,
    peer_url: &str,
) -> clearlane_member::Result<Node> {
    let member_dir = data_dir.join("member");
    make(&member_dir)?;
    let options = Options::default();
    let files = Arc::new(Disk);
    let snap = member_dir.join("snap");
    let vault = DirectoryVault::new(Arc::clone(&files) as _, &snap, EngineKind::Redb, options)?;
    let ground = Ground {
        files,
        wal_dir: member_dir.join("wal"),
        wal: wal::Options::default(),
        vault: Arc::new(vault),
        parts,
        backend: Default::default(),
        learners_max: membership::LEARNERS_MAX,
        workers: Arc::new(OneAfterTheOther),
    };
    if !wal::exists(&*ground.files, &ground.wal_dir)? {
        let peer_urls = vec![peer_url.to_owned()];
        let node_id = membership::member_id(&peer_urls, "etcd-cluster", None);
        let first = Member { id: node_id, peer_urls, name: name.to_owned(), ..Member::default() };
        let cluster_id = membership::cluster_id(&[node_id]);
        bootstrap(&ground, Metadata { node_id, cluster_id }, &[first])?;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let settings = Settings::new(since.as_nanos() as u64, since.as_millis() as u64);
    Node::start(ground, settings, Box::new(NoNetwork))
}

fn make(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::File::open(dir)?.sync_all()
}
