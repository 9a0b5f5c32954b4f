//! Tests that all inputs in the corpora of the fuzz targets pass. An ignored test writes inputs
//! that are made from recorded requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corpus;
mod from_oracle;
