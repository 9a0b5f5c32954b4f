//! What the scripts run on.

pub(crate) mod rules;
pub(crate) mod threads;
