//! The server, and what can be done with its data.

use std::process::ExitCode;

use clearlane_server::allocator::{self, Allocator};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    allocator::keep_what_is_free();
    clearlane_server::run::main()
}
