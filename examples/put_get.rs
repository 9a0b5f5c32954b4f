//! A key is put and read back, over the wire.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example put_get -- greeting hello
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let key = arguments.next().unwrap_or_else(|| "greeting".to_owned());
    let value = arguments.next().unwrap_or_else(|| "hello".to_owned());
    let at = arguments.next().unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let mut client = KvClient::new(tonic::transport::Endpoint::from_shared(at)?.connect().await?);

    let put = PutRequest { key: key.clone().into(), value: value.into(), ..Default::default() };
    let revision = client.put(put).await?.into_inner().header.unwrap_or_default().revision;
    println!("put {key} at revision {revision}");

    let get = RangeRequest { key: key.into(), ..Default::default() };
    for record in client.range(get).await?.into_inner().kvs {
        let (key, value) = (record.key.escape_ascii(), record.value.escape_ascii());
        println!("get {key} = {value}, version {}", record.version);
    }
    Ok(())
}
