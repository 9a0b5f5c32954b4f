//! The program Clearlane, a server for etcd's clients: flags, config file, data directory,
//! subcommands and log, and how the process starts and ends.
//!
//! | module | content |
//! |---|---|
//! | [`run`] | the process, from its flags to its end |
//! | [`command_line`] | the flags of a member, or a tool with its own flags |
//! | [`config`] | flags, environment, config file |
//! | [`data`], [`discovery`] | a member's data directory; how new members find each other |
//! | `listeners`, `process_limits` | ports and sockets; open files, file modes, core files |
//! | [`tools`] | subcommands: snapshots, data of a stopped member, version, completions, `man` |
//! | [`logging`] | the log |
//! | [`timeline`] | the file of `--timeline` |
//! | [`auto_compaction`], [`corruption_check`] | background work of a member |
//! | [`allocator`], `profiling` | the allocator of the program; the pages of `--enable-pprof` |

pub mod allocator;
pub mod auto_compaction;
pub mod command_line;
pub mod config;
pub mod corruption_check;
pub mod data;
pub mod discovery;
mod listeners;
pub mod logging;
mod process_limits;
mod profiling;
pub mod run;
pub mod timeline;
pub mod tools;
