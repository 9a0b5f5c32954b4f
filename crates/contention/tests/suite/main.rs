//! Tests of the locks: their guarantees, and scripts that show which actor waits for which.

mod script;
mod script_stages;
mod locks;
mod scripts;
