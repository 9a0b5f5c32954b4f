//! Records timelines and the stages of requests, and checks whether all members have the same data.

pub mod request_trace;
pub mod trace;
pub mod task_labels;
pub mod checksums;
pub mod corruption;
