//! What the scripts run on.

pub(crate) mod gate;
pub(crate) mod threads;
