//! The program: flags, config file, data directory, subcommands, log; how a process begins and
//! ends.
//!
//! | module | what it does |
//! |---|---|
//! | [`run`] | the process, from its flags to its end |
//! | [`command_line`] | a member's flags, or a tool with its own |
//! | [`config`] | flags, environment, config file |
//! | [`data`] | a member's data directory, and how it is opened |
//! | `listeners`, `process_limits` | ports and sockets; rights of files, core files |
//! | [`tools`] | subcommands: snapshots, data of a stopped member, version, completions, `man` |
//! | [`logging`] | the log |
//! | [`timeline`] | the file of `--timeline` |
//! | [`auto_compaction`], [`corruption_check`] | what a member does by itself |
//! | [`allocator`] | the allocator of the program |

pub mod allocator;
pub mod auto_compaction;
pub mod command_line;
pub mod config;
pub mod corruption_check;
pub mod data;
mod listeners;
pub mod logging;
mod process_limits;
pub mod run;
pub mod timeline;
pub mod tools;
