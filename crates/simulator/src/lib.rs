//! A model of etcd's read path, era by era, in virtual time: which request waits for which, and
//! why. The same seed gives the same run, on every machine.
//!
//! Begin with [`world`] (time and processes); processes wait for [`cores`], a [`lock`] or a
//! [`signal`], and a [`sim_task`] keeps an [`account`] of it; [`rng`] and [`spread`] are the
//! sources of chance. A [`cluster`] of members, each a [`server`], takes [`requests`]; it is what
//! all eras share, [`era`] what tells them apart, [`costs`] what things cost (kept in a
//! [`cost_file`]; [`validation`] compares with the real server). A [`scenario`] on machines that a
//! [`model`] describes has [`knobs`]; [`run`] runs it, [`results`] has what came of it,
//! [`verdict`] in sentences, a [`timeline`] shows it, which a [`recorder`] makes. [`compare`] sets
//! two eras side by side; [`shipped`] is what comes with the program. See `docs/simulator.md`.

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
