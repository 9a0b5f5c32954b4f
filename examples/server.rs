//! A server that etcdctl can talk to: one member, on disk.
//!
//! ```text
//! cargo run --release --example server -- [data-dir [address [era]]]
//! etcdctl put greeting hello && etcdctl get greeting
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its result")]

use std::process::{ExitCode, exit};
use std::sync::Arc;

use clearlane_backend::Design;
use clearlane_member::requests::Limits;
use clearlane_server::{data, serve::Server};

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("server: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let data_dir = arguments.next().unwrap_or_else(|| "default.clearlane".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:2379".to_owned());
    let design: Design = arguments.next().unwrap_or_else(|| "clearlane".to_owned()).parse()?;
    let listen = address.parse().map_err(|_| format!("{address:?} is no ADDRESS:PORT"))?;
    let peer_url = "http://localhost:2380";
    let node = data::open_alone(data_dir.as_ref(), design.into(), "default", peer_url)?;
    let (mut failure, node) = (node.failure(), Arc::new(node));
    let server = Server::start(&node, listen, 2, Limits::default())
        .map_err(|error| format!("cannot listen on {address}: {error}"))?;
    println!("ready to serve client requests on {}", server.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => println!("stopping"),
            _ = failure.changed() => {
                // Nobody is answered any more, and what was promised is on disk.
                eprintln!("server: {}", failure.borrow().as_ref().expect("it has changed"));
                exit(1);
            }
        }
    });
    server.stop()?;
    node.stop();
    Ok(())
}
