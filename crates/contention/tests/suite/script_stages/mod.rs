//! The stages of the scripts.

pub(crate) mod rules;
pub(crate) mod threads;
