//! What happens to keys, as it happens.
//!
//! ```text
//! cargo run --release --example server &
//! cargo run --release --example watch -- greet &
//! etcdctl put greeting hello && etcdctl del greeting
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use tokio_stream::StreamExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let prefix = arguments.next().unwrap_or_else(|| "greet".to_owned());
    let at = arguments.next().unwrap_or_else(|| "http://127.0.0.1:2379".to_owned());
    let endpoint = tonic::transport::Endpoint::from_shared(at)?;
    let mut client = WatchClient::new(endpoint.connect().await?);
    let mut behind = prefix.clone().into_bytes(); // The first key that does not begin with it.
    behind.last_mut().into_iter().for_each(|last| *last += 1);
    let (key, range_end) = (prefix.into(), behind.into());
    let create = WatchCreateRequest { key, range_end, ..Default::default() };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The stream of requests stays open: its end would be the watcher's.
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let mut responses = client.watch(requests).await?.into_inner();
    while let Some(response) = responses.message().await? {
        for event in response.events {
            let (what, kv) = (event.r#type().as_str_name(), event.kv.unwrap_or_default());
            println!("{what} {} {}", kv.key.escape_ascii(), kv.value.escape_ascii());
        }
    }
    Ok(())
}
