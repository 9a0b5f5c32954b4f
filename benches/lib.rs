//! The shared parts of several benches: a store on disk filled with records, the directory of
//! results, and the pace of arrivals.

pub mod pace;
pub mod store;
