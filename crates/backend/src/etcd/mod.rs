//! The backends of etcd's generations, one file for each way to read, and what they share.
//!
//! | lock | guards | taken by |
//! |---|---|---|
//! | `batchTx` | the engine's write transaction, the write buffer | writes, commits; 3.1: reads |
//! | `readTx` | the read buffer, the engine's snapshot | shared: reads; else: write ends, commits |
//! | `txMu` | the engine's read cursor | 3.2: each look; 3.4, 3.5: the opening of a cursor |
//! | `cache` | the shared copy of the read buffer | 3.5: a read that opens: look-up, first copy |
//!
//! Lock order: `batchTx`, then `readTx`, then `cache` or `txMu`. Era 3.1 has `batchTx` alone.

pub mod v3_1_mutex;
pub mod v3_2_read_tx;
pub mod v3_4_concurrent_read_tx;
pub mod v3_5_cached_read_tx;

pub(crate) mod backend;
mod batch_tx;
mod read_state;
mod tx_buffer;
