//! The receiving side: chunks of any size become a complete store, or nothing.
//!
//! A store is staged once a valid header has arrived. It is abandoned after any error, and when the
//! receiver is dropped before the end, for example because a connection breaks.
//!
//! ```text
//!   staged ── complete, on disk ─▶ kept ── snapshot record synced ─▶ current
//!             SnapshotReceiver             raft loop: WAL batch       apply loop: Applier installs
//! ```
//!
//! After a crash, the start promotes the kept store if the log has its snapshot record, and deletes
//! all other received stores (`start.rs`).

use std::sync::Arc;

use bytes::BytesMut;
use clearlane_engine::stream::Importer;
use clearlane_raft::Message;

use super::error::{Error, Result};
use super::sender::{MAGIC, MESSAGE_BYTES_MAX};
use super::store_dir::{StagedStore, StoreDir};
use crate::applied_position::AppliedPosition;

#[derive(Debug)]
pub struct SnapshotReceiver {
    store_dir: Arc<dyn StoreDir>,
    state: ReceiverState,
}

#[derive(Debug)]
enum ReceiverState {
    /// The bytes of the header received so far.
    Header(BytesMut),
    Records(Box<RecordImport>),
    /// An error has occurred. Nothing more is accepted.
    Failed,
}

#[derive(Debug)]
struct RecordImport {
    message: Message,
    /// Declared before `staging`, so that it is dropped first: `abandon` needs a closed store.
    importer: Importer,
    staging: StagingGuard,
}

/// A complete raft snapshot, kept by the store directory at the position in `message`.
#[derive(Debug)]
pub struct ReceivedSnapshot {
    /// The message to pass to raft.
    pub message: Message,
    pub index: u64,
}

impl SnapshotReceiver {
    pub fn new(store_dir: Arc<dyn StoreDir>) -> SnapshotReceiver {
        SnapshotReceiver { store_dir, state: ReceiverState::Header(BytesMut::new()) }
    }

    /// Processes a chunk. After an error nothing of the raft snapshot is left, and every further
    /// chunk fails.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        // After an error below, the state stays `Failed`.
        let taken = match std::mem::replace(&mut self.state, ReceiverState::Failed) {
            ReceiverState::Header(waiting) => self.feed_header(waiting, bytes),
            ReceiverState::Records(records) => feed_records(records, bytes),
            ReceiverState::Failed => {
                Err(Error::Damaged("an earlier chunk was rejected".to_owned()))
            }
        };
        self.state = taken?;
        Ok(())
    }

    fn feed_header(&self, mut waiting: BytesMut, bytes: &[u8]) -> Result<ReceiverState> {
        waiting.extend_from_slice(bytes);
        let Some((message, records)) = parse_header(&waiting)? else {
            return Ok(ReceiverState::Header(waiting));
        };
        let staging = StagingGuard::new(&self.store_dir)?;
        let importer = Importer::new(Arc::clone(&staging.staged().engine))?;
        feed_records(Box::new(RecordImport { message, importer, staging }), records)
    }

    /// Checks that the raft snapshot is complete, and keeps its store.
    pub fn finish(mut self) -> Result<ReceivedSnapshot> {
        match std::mem::replace(&mut self.state, ReceiverState::Failed) {
            ReceiverState::Records(records) => records.finish(),
            ReceiverState::Header(_) => Err(Error::Damaged("it ends within its header".to_owned())),
            ReceiverState::Failed => {
                Err(Error::Damaged("an earlier chunk was rejected".to_owned()))
            }
        }
    }
}

fn feed_records(mut records: Box<RecordImport>, bytes: &[u8]) -> Result<ReceiverState> {
    records.importer.feed(bytes)?;
    Ok(ReceiverState::Records(records))
}

impl RecordImport {
    fn finish(self) -> Result<ReceivedSnapshot> {
        let RecordImport { message, importer, staging } = self;
        importer.finish()?;
        let progress = AppliedPosition::read(&*staging.staged().engine.snapshot()?);
        let has = progress.map_err(|error| Error::Damaged(error.to_string()))?.position();
        let said = message.snapshot_position();
        if has != said {
            let words = format!("its store is at {has:?}, but its message is for {said:?}");
            return Err(Error::Damaged(words));
        }
        staging.keep(has.index)?;
        Ok(ReceivedSnapshot { message, index: has.index })
    }
}

/// Returns the message and the bytes after the header, or `None` if the header is incomplete.
fn parse_header(bytes: &[u8]) -> Result<Option<(Message, &[u8])>> {
    let damaged = |words: &str| Error::Damaged(words.to_owned());
    let known = bytes.len().min(MAGIC.len());
    // Reports a wrong magic without waiting for more bytes.
    if bytes[..known] != MAGIC[..known] {
        return Err(damaged("wrong magic or version"));
    }
    let rest = &bytes[known..];
    let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(damaged("its message is too long"));
    }
    let Some((message, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    let Some((sum, records)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let summed = &bytes[..bytes.len() - rest.len()];
    if crc32c::crc32c(summed).to_be_bytes() != *sum {
        return Err(damaged("header checksum mismatch"));
    }
    let message = Message::decode(message).map_err(|error| Error::Damaged(error.to_string()))?;
    if !message.is_snapshot() {
        return Err(Error::NotSnapshot(message.to_string()));
    }
    Ok(Some((message, records)))
}

/// Abandons the staged store when dropped, unless the store was kept.
#[derive(Debug)]
struct StagingGuard {
    store_dir: Arc<dyn StoreDir>,
    staged: Option<StagedStore>,
}

impl StagingGuard {
    fn new(store_dir: &Arc<dyn StoreDir>) -> Result<StagingGuard> {
        Ok(StagingGuard { store_dir: Arc::clone(store_dir), staged: Some(store_dir.stage()?) })
    }

    fn staged(&self) -> &StagedStore {
        self.staged.as_ref().expect("it is taken by what ends the staging")
    }

    fn keep(mut self, index: u64) -> Result<()> {
        match self.staged.take() {
            Some(staged) => Ok(self.store_dir.keep(staged, index)?),
            None => Ok(()),
        }
    }
}

impl Drop for StagingGuard {
    fn drop(&mut self) {
        if let Some(staged) = self.staged.take() {
            // If this fails, the next start removes the leftover.
            let _ = self.store_dir.abandon(staged);
        }
    }
}
