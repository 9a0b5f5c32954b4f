//! What several benches share: a store on disk filled with records, and where results go.

pub mod store;
