//! A linearizable read asks the cluster how far it has come; a serializable one takes what is there.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example serializable_vs_linearizable
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::time::Instant;

use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;

/// So many reads one behind the other.
const READS: u32 = 2_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let mut client = KvClient::new(tonic::transport::Endpoint::from_shared(at)?.connect().await?);
    for (name, serializable) in [("linearizable", false), ("serializable", true)] {
        let begin = Instant::now();
        let mut revision = 0;
        for _ in 0..READS {
            let get = RangeRequest { key: "greeting".into(), serializable, ..Default::default() };
            let answer = client.range(get).await?.into_inner();
            revision = answer.header.unwrap_or_default().revision;
        }
        let each = begin.elapsed() / READS;
        println!("{name}: {each:?} each, and has seen revision {revision}");
    }
    println!("Cut a member off from the others: it goes on answering the second kind.");
    Ok(())
}
