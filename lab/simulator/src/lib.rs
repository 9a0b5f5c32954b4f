//! A model of etcd's read path in virtual time, for each era: which request waits for which, and
//! why. The same seed gives the same run, on every machine.
//!
//! ```text
//!   scenario, knobs ─▶ run ─▶ cluster of servers ─▶ results, verdict, compare
//!                               │ era, costs            recorder, timeline, show
//!                               ▼
//!   world: processes wait for cores, locks and signals
//! ```
//!
//! * [`world`] has time and processes. Read it first. Processes wait for [`cores`], a [`lock`] or a
//!   [`signal`]. A [`sim_task`] records in its [`account`] how its time was spent. [`rng`] and
//!   [`spread`] are the sources of randomness.
//! * A [`cluster`] of members, each a [`server`], handles [`requests`]. All eras share it. [`era`]
//!   has the differences between them.
//! * [`costs`] has the duration of each step. A [`cost_file`] stores them, and [`validation`]
//!   compares the model with the real server.
//! * A [`scenario`] describes the load, and a [`model`] describes the machines. Both have
//!   [`knobs`]. [`shipped`] has the scenarios that are included in the program.
//! * [`run`] runs a scenario. [`results`] has the outcome, [`verdict`] describes it in sentences,
//!   and [`compare`] compares two eras. A [`recorder`] makes a [`timeline`], and [`show`] draws it.
//!
//! See `docs/simulator.md`.

pub mod account;
mod background;
pub mod rng;
pub mod cluster;
pub mod compare;
pub mod cores;
pub mod cost_file;
pub mod costs;
mod entries;
pub mod era;
pub mod knobs;
mod link;
pub mod lock;
pub mod model;
mod raft;
mod reads;
pub mod recorder;
pub mod requests;
pub mod results;
pub mod run;
pub mod scenario;
pub mod server;
pub mod shipped;
pub mod show;
pub mod signal;
pub mod spread;
pub mod sim_task;
pub mod validation;
pub mod verdict;
pub mod world;

pub use clearlane_contention::timeline;
pub use cores::Cores;
pub use lock::Lock;
pub use rng::Rng;
pub use signal::{Queue, Signal};
pub use sim_task::SimTask;
pub use world::World;
