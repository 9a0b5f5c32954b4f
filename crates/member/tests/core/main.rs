//! One member and a few, step by step: what the core promises, each on its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alarms;
mod both;
mod copies;
mod lab;
mod leases;
mod reads;
mod starts;
mod writes;

use clearlane_member::core::Settings;

/// Small numbers, so that a short test sees the log shortened.
fn settings() -> Settings {
    Settings { snapshot_count: 20, catch_up_entries: 5, ..Settings::new(7, 0) }
}
