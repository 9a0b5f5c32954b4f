//! Runs libFuzzer on one target. The environment variable `FUZZ_TARGET` contains the target's name.
//! The script `lab/fuzz/run` builds and calls this program.

#![no_main]

use std::env;
use std::sync::LazyLock;

use clearlane_fuzz::targets::{self, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = env::var("FUZZ_TARGET").unwrap_or_default();
    targets::find(&name).unwrap_or_else(|| {
        let names = targets::ALL.map(|(name, _)| name).join(", ");
        panic!("FUZZ_TARGET is {name:?}; it must be one of {names}")
    })
});

fuzz_target!(|data: &[u8]| TARGET(data));
