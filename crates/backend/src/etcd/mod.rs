//! The backends of etcd's generations, one file for each way to read, and what they share.
//!
//! | lock | guards | taken exclusively by |
//! |---|---|---|
//! | `batchTx` | the engine's write transaction, the write buffer | write transactions, commits |
//! | `readTx` | the read buffer, the engine's snapshot | the end of a write, commits |
//! | `txMu` | the engine's read cursor | every look into the engine, briefly |
//! | `cache` | the shared copy of the read buffer (era 3.5) | the reader that makes the copy |
//!
//! Lock order: `batchTx`, then `readTx`, then `cache` or `txMu`. Era 3.1 has `batchTx` alone.

pub mod v3_1_mutex;
pub mod v3_2_read_tx;
pub mod v3_4_concurrent_read_tx;
pub mod v3_5_cached_read_tx;

pub(crate) mod buffered_backend;
mod batch_tx;
mod read_state;
mod tx_buffer;
