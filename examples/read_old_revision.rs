//! Puts a key three times and deletes it, and then reads it at each revision.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example read_old_revision
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use clearlane_client::{Client, Get, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> clearlane_client::Result<()> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let client = Client::connect([at], Options::default()).await?;
    let first = client.put("colour", "red").await?.revision();
    client.put("colour", "green").await?;
    client.put("colour", "blue").await?;
    let deleted = client.delete("colour").await?.revision();

    for revision in first..=deleted {
        match client.get(Get::from("colour").revision(revision)).await?.value() {
            Some(value) => println!("at revision {revision}: {}", value.escape_ascii()),
            None => println!("at revision {revision}: no such key"),
        }
    }
    Ok(())
}
