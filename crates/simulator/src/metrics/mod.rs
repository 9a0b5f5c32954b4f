//! From a running server to a scenario: what its `/metrics` say about the load that it has.
//!
//! # The problem
//!
//! "What would this cluster do with twice as many expensive reads?" is a question about *this* cluster, and the
//! user has no workload file of it. But every etcd counts what it does.
//!
//! # The idea
//!
//! A page of metrics is a row of sums since the server started. Two of them, some seconds apart, say what it did in
//! between: counters become rates, and histograms become distributions.
//!
//! ```text
//!   first page     handled{Range} 1,204,511     fsync{le=1ms} 88,100  {le=2ms} 90,003
//!   10 s later     handled{Range} 1,206,511     fsync{le=1ms} 88,140  {le=2ms} 90,063
//!                  ──────────────────────────────────────────────────────────────────
//!   in between     200 Ranges per second        40 below 1 ms, 20 from 1 to 2 ms
//! ```
//!
//! [`page`] reads a page, [`buckets`] are its histograms, [`delta`] is the difference of two, under the names that
//! the versions of etcd have for it, and [`scenario_file`] is the scenario that is made of it.
//!
//! # What metrics cannot tell
//!
//! They count requests, and not what is in them. How many keys a range has on average is estimated from the bytes
//! that were sent; that ten in a thousand of them were a hundred times as large is not to be seen. So the file
//! says in a comment, beside each number, whether it was counted, estimated, or is a default.

pub mod buckets;
pub mod page;
pub mod delta;
pub mod scenario_file;

pub use delta::MetricsDelta;
pub use page::Page;
