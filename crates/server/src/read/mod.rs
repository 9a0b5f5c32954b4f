//! Reads of keys: the steps of a range, the threads on which reads run, and long responses, which
//! are read while they are being sent.

pub mod range;
pub mod executor;
pub mod streamed_range;
pub mod range_stream;
pub mod streamed_response;
pub mod response_memory;
