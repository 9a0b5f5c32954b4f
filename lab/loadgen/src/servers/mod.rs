//! Servers for experiments, each as a separate process: Clearlane in one of its eras, or etcd.
//!
//! ```text
//!   ServerProgram ──▶ Cluster ──▶ member ── a process, its ports, its data, its log
//!                        │           ▲
//!                        └── DelayProxy, if messages between members are to be delayed
//! ```
//!
//! Servers listen on free ports of 127.0.0.1. Each cluster has its data in a separate directory
//! below `TMPDIR`. A gRPC proxy in front of the cluster is one more process. Dropping a [`Cluster`]
//! ends its processes and removes the directory.

mod cluster;
mod delay_proxy;
mod member;
mod program;

pub use self::cluster::{Cluster, ClusterOptions, ClusterUsage};
pub use self::delay_proxy::DelayProxy;
pub use self::program::{ERAS, ETCD, ServerProgram, era_of_version};
