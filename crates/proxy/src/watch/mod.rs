//! Watch: any number of clients share one watch upstream per cached range.
//!
//! ```text
//!   client stream ─▶ session ─┬─ watches of cached ranges ◀─ queue ◀─ scope ◀─ feed
//!                             └─ direct watches ◀───── one stream upstream ◀─ member
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`session`] | one client stream: requests, responses, progress |
//! | [`queue`] | what a scope has for a session |
//! | [`progress`] | a client's request for progress |
//! | `direct` | the watches of a session that the cache cannot serve |
//! | [`watcher`] | one watch of a client |

mod direct;
pub mod progress;
pub mod queue;
pub mod session;
pub mod watcher;
