//! A linearizable read first asks the cluster what is committed; a serializable one reads at once.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example serializable_vs_linearizable
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::time::Instant;

use clearlane_client::{Client, Get, Options};

/// Number of reads of each kind, one after the other.
const READS: u32 = 2_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> clearlane_client::Result<()> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let client = Client::connect([at], Options::default()).await?;
    let linearizable = Get::from("greeting");
    let serializable = linearizable.clone().serializable();
    for (name, get) in [("linearizable", linearizable), ("serializable", serializable)] {
        let begin = Instant::now();
        let mut revision = 0;
        for _ in 0..READS {
            revision = client.get(get.clone()).await?.revision();
        }
        println!("{name}: {:?} each, and has seen revision {revision}", begin.elapsed() / READS);
    }
    println!("Cut a member off from the others: it goes on answering the second kind.");
    Ok(())
}
