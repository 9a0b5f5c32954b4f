//! From a running server to a scenario: what its `/metrics` say about the load that it has.
//!
//! A page of metrics has sums since the server started. The difference of two of them is what
//! happened in between: counters become rates, and histograms become distributions. [`page`] reads
//! a page, [`buckets`] are its histograms, [`delta`] is the difference, under the names that the
//! versions of etcd have for it, and [`scenario_file`] is the scenario that is made of it.
//!
//! Metrics count requests, and not what is in them: the keys of a range are a mean, estimated from
//! the bytes that were sent. So the file says in a comment, beside each number, whether it was
//! counted, estimated, or is a default. See `docs/simulator.md`.

pub mod buckets;
pub mod page;
pub mod delta;
pub mod scenario_file;

pub use delta::MetricsDelta;
pub use page::Page;
