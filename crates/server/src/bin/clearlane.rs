//! The server, and what can be done with its data.

use std::process::ExitCode;

fn main() -> ExitCode {
    clearlane_server::run::main()
}
