//! The stages that run the scripts.

pub(crate) mod rules;
pub(crate) mod threads;
