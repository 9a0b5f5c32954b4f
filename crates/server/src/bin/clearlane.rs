//! The server, and what can be done with its data.

use std::process::ExitCode;

/// Requests are made of many small pieces: see `docs/decisions/server-allocator.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    clearlane_server::run::main()
}
