//! Tests that all inputs in the corpora of the fuzz targets pass. An ignored test writes new
//! inputs, most of them from recorded requests and responses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corpus;
mod from_oracle;
