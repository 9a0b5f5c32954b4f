//! A server that etcdctl can use: the program `clearlane` with all its flags.
//!
//! ```text
//! cargo run --release --example server -- --data-dir=default.etcd --era=clearlane
//! etcdctl put greeting hello && etcdctl get greeting
//! ```

use clearlane::allocator::{self, Allocator};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> std::process::ExitCode {
    allocator::configure();
    clearlane::run::main()
}
