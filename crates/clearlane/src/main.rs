//! The program `clearlane`: the server, and tools for its data.

use std::process::ExitCode;

use clearlane::allocator::{self, Allocator};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    allocator::configure();
    clearlane::run::main()
}
