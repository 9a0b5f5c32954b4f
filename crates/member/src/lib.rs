//! In what order do things happen? From a proposal to the answer, and from a read to its moment.

pub mod progress;
pub mod copies;
pub mod core;
pub mod membership;
pub mod requests;
mod error;

pub use error::{Error, Result};
pub use progress::Progress;
