//! A key is put three times and deleted; then it is read as it was at each revision.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example read_old_revision
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let mut client = KvClient::new(tonic::transport::Endpoint::from_shared(at)?.connect().await?);
    let mut last = 0;
    for colour in ["red", "green", "blue"] {
        let put = PutRequest { key: "colour".into(), value: colour.into(), ..Default::default() };
        last = client.put(put).await?.into_inner().header.unwrap_or_default().revision;
    }
    let delete = DeleteRangeRequest { key: "colour".into(), ..Default::default() };
    client.delete_range(delete).await?;

    for revision in last - 2..=last + 1 {
        let get = RangeRequest { key: "colour".into(), revision, ..Default::default() };
        match client.range(get).await?.into_inner().kvs.first() {
            Some(record) => println!("at revision {revision}: {}", record.value.escape_ascii()),
            None => println!("at revision {revision}: no such key"),
        }
    }
    Ok(())
}
