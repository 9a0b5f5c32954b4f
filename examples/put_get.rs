//! Puts a key and reads it back, over the network.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example put_get -- greeting hello
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use clearlane_client::{Client, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> clearlane_client::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let key = arguments.next().unwrap_or_else(|| "greeting".to_owned());
    let value = arguments.next().unwrap_or_else(|| "hello".to_owned());
    let at = arguments.next().unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let client = Client::connect([at], Options::default()).await?;

    let put = client.put(&*key, value).await?;
    println!("put {key} at revision {}", put.revision());

    let found = client.get(&key).await?;
    if let Some(record) = found.kvs.first() {
        println!("get {key} = {}, version {}", record.value.escape_ascii(), record.version);
    }
    Ok(())
}
