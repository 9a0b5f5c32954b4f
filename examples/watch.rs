//! Prints changes of keys when they occur. The watch continues after a restart of the server, and
//! misses no change.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example watch -- greet &
//! etcdctl put greeting hello && etcdctl del greeting
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use clearlane_client::{Client, Event, Options, WatchKeys};

#[tokio::main(flavor = "current_thread")]
async fn main() -> clearlane_client::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let prefix = arguments.next().unwrap_or_else(|| "greet".to_owned());
    let at = arguments.next().unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let client = Client::connect([at], Options::default()).await?;

    let mut watch = client.watch(WatchKeys::prefix(prefix)).await?;
    while let Some(event) = watch.next().await {
        match event? {
            Event::Put { kv, .. } => {
                println!("PUT {} {}", kv.key.escape_ascii(), kv.value.escape_ascii());
            }
            Event::Delete { kv, .. } => println!("DELETE {}", kv.key.escape_ascii()),
        }
    }
    Ok(())
}
