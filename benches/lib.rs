//! What several benches share: a store on disk filled with records, where results go, and the pace
//! of arrivals.

pub mod pace;
pub mod store;
