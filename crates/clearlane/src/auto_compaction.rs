//! Auto-compaction: compactions that a member makes by itself, without a client's request.
//!
//! The [policy](clearlane_mvcc::auto_compaction) decides when to compact, and at which revision.
//! Only the leader compacts. The other members also record revisions, so that the next leader has
//! them.

use std::convert::Infallible;

use clearlane_mvcc::AutoCompaction;
use clearlane_proto::etcdserverpb::CompactionRequest;
use clearlane_replica::{RequestError, apply};
use clearlane_server::Server;
use tokio::time::{Instant, sleep_until};

pub async fn run_auto_compaction(member: Server, mut policy: AutoCompaction) -> Infallible {
    let begin = Instant::now();
    loop {
        sleep_until(begin + policy.next_check()).await;
        if member.is_leader() {
            policy.resume()
        } else {
            policy.pause()
        }
        let Ok(current) = member.store_revision().await else { continue };
        let Some(revision) = policy.check(begin.elapsed(), current) else { continue };
        match member.compact(CompactionRequest { revision, physical: false }).await {
            Ok(_) => {
                tracing::info!(revision, "completed auto compaction");
                policy.compacted(revision);
            }
            // Another compaction has already reached this revision.
            Err(RequestError::Rejected(apply::RequestRejection::Compacted)) => {
                policy.compacted(revision)
            }
            Err(trouble) => {
                tracing::warn!(revision, error = %trouble, "failed auto compaction");
                policy.failed();
            }
        }
    }
}
