//! Which request waits for which? A model of etcd's read path, era by era, in virtual time.
//!
//! # The problem
//!
//! A server shows what happens on this machine. It does not show what would happen on thirty-two cores, with a
//! slow disk, or with the protocol of another year; and when a put takes 600 ms, it does not show the chain
//! of the requests that stood in front of it.
//!
//! # The idea
//!
//! A model in which time is a number. Requests are [processes](world) that run on [cores], wait for
//! [locks](lock) with the rules of the real ones, and note where their time goes. Nothing in it depends on
//! the machine that it runs on: the same seed gives the same run.
//!
//! # Reading order
//!
//! [`world`] has time and processes; [`cores`], [`lock`] and [`signal`] are what they wait for; a [`sim_task`] is
//! the task that waits, and keeps an [`account`] of it; [`rng`] is the only source of accidents, and [`spread`] of
//! times that differ.
//!
//! Then the model: a [`cluster`] of members, each a [`server`], has what all eras have in common, [`era`] what tells
//! them apart, and [`costs`] what things cost: a [`calibration`] measures that on a machine, and a [`validation`] says
//! how near the model comes to it. A [`scenario`] is what is asked of it, on machines that a [`model`] describes, and its [`knobs`]
//! can be turned; [`run`] runs it, and [`results`] says what came of it. A
//! [`timeline`] shows it moment by moment.
//!
//! And questions to it: [`compare`] has two eras side by side, a [`sweep`] varies a number, and [`metrics`] make a
//! scenario of a server that runs. What comes with the program is in [`shipped`].

pub mod account;
mod background;
pub mod calibration;
pub mod rng;
pub mod cluster;
pub mod compare;
pub mod cores;
pub mod costs;
mod disk;
pub mod era;
pub mod knobs;
mod link;
pub mod lock;
pub mod metrics;
pub mod model;
pub mod plot;
mod raft;
mod reads;
mod recorder;
pub mod results;
pub mod run;
pub mod scenario;
pub mod server;
pub mod shipped;
pub mod show;
pub mod parallel_runs;
pub mod signal;
pub mod spread;
pub mod sweep;
pub mod sim_task;
pub mod validation;
pub mod world;

pub use clearlane_contention::timeline;
pub use cores::Cores;
pub use lock::Lock;
pub use rng::Rng;
pub use signal::{Queue, Signal};
pub use sim_task::SimTask;
pub use world::World;
