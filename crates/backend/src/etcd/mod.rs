//! The backends of etcd's generations: one file for each way to read, and the code that they share.
//!
//! | lock | guards | taken by |
//! |---|---|---|
//! | `batchTx` | the engine's transaction, the write buffer | writes, commits, upkeep; 3.1: reads |
//! | `readTx` | the read buffer, the engine's snapshot | reads (shared), write ends, commits |
//! | `txMu` | the engine's read cursor | 3.2: each read; 3.4, 3.5: opening a cursor, locked reads |
//! | `cache` | the shared copy of the read buffer | 3.5: looking up or storing the copy |
//!
//! In this table, upkeep is a removal of records, a defragmentation, or a copy of the store. A
//! query of the sizes and, up to 3.4, the lookup of a user also take `batchTx`. Since 3.2 a
//! defragmentation also takes `readTx`.
//!
//! A [locked read](crate::Backend::begin_locked_read) holds `txMu` during each whole `get` or
//! `range` of the engine. So does each read of era 3.2. If there is no copy of the read buffer yet,
//! a read of era 3.5 also makes the copy while it holds `cache`.
//!
//! Lock order: `batchTx`, then `readTx`, then `cache` or `txMu`. Era 3.1 has only `batchTx`.

pub mod v3_1_mutex;
pub mod v3_2_read_tx;
pub mod v3_4_concurrent_read_tx;
pub mod v3_5_cached_read_tx;

pub(crate) mod backend;
mod batch_tx;
mod read_state;
mod tx_buffer;
