//! Servers as processes of their own, for experiments: Clearlane in one of its eras, or etcd.
//!
//! ```text
//!   ServerProgram ──▶ Cluster ──▶ member ── a process, its ports, its data, its log
//!                        │           ▲
//!                        └── DelayProxy, if members are to be far from each other
//! ```
//!
//! All of them listen at free ports of 127.0.0.1, and have their data in a directory of their own
//! below `TMPDIR`. A dropped [`Cluster`] has no process any more, and no directory.

mod cluster;
mod delay_proxy;
mod member;
mod program;

pub use self::cluster::{Cluster, ClusterOptions, ClusterUsage};
pub use self::delay_proxy::DelayProxy;
pub use self::program::{ERAS, ETCD, ServerProgram, era_of_version};
