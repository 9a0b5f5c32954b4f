//! A server that etcdctl can talk to: the program `clearlane`, with all its flags.
//!
//! ```text
//! cargo run --release --example server -- --data-dir=default.clearlane --era=clearlane
//! etcdctl put greeting hello && etcdctl get greeting
//! ```

fn main() -> std::process::ExitCode {
    clearlane_server::run::main()
}
