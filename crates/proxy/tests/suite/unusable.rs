//! An endpoint that accepts connections, but is no member that the proxy can use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_proxy::upstream::{MemberState, Upstream, UpstreamConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::log::Log;
use crate::member::Member;
use crate::running::{TIMEOUT, until};

fn start(listener: &TcpListener) -> Arc<Upstream> {
    let endpoints = vec![listener.local_addr().unwrap().to_string()];
    Upstream::start(&UpstreamConfig { endpoints, ..UpstreamConfig::default() })
}

/// Each attempt has a longer delay than the one before, up to a second, and there is one warning.
#[tokio::test]
async fn a_server_that_is_no_member_is_logged_once_and_left_alone() {
    const ATTEMPTS: u32 = 6;
    const DELAYS: Duration = Duration::from_millis(50 + 100 + 200 + 400 + 800);
    for greeting in ["", "SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = start(&listener);
        let mut first = None;
        for _ in 0..ATTEMPTS {
            let (mut stream, _) = timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
            first.get_or_insert_with(Instant::now);
            let _ = stream.write_all(greeting.as_bytes()).await;
            let _ = stream.read(&mut [0; 4096]).await;
        }
        let elapsed = first.unwrap().elapsed();
        // The first connection is noticed a little earlier by the proxy than by this server.
        assert!(elapsed >= DELAYS * 9 / 10, "{greeting:?}: {ATTEMPTS} attempts in {elapsed:?}");
        let warnings = log.lines_with("WARN");
        let endpoint = listener.local_addr().unwrap().to_string();
        let is_named = |line: &String| line.contains(&endpoint) && line.contains("error=");
        assert!(warnings.len() == 1 && warnings.iter().all(is_named), "{greeting:?}: {warnings:?}");
        assert_eq!(log.lines_with("again"), [""; 0], "{greeting:?}");

        // A member takes the port over.
        let _member = Member::start_on(listener);
        until("the member is ready", || upstream.members()[0].state() == MemberState::Ready).await;
        assert_eq!(log.lines_with("connected to the member again").len(), 1, "{greeting:?}");
    }
}
