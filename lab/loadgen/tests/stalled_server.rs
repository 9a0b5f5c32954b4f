//! A server that is blocked for a second, measured by an open loop and by a closed loop.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser as _;
use clearlane_loadgen::arguments::Subcommand;
use clearlane_loadgen::closed_loop;
use clearlane_loadgen::connection::endpoint;
use clearlane_loadgen::run::{RunOptions, run};
use clearlane_loadgen::stop::Stop;
use clearlane_loadgen::target::OpenTarget;
use clearlane_loadgen::workload::Workload;
use clearlane_test_server::TestServer;
use parking_lot::RwLock;

const STALL: Duration = Duration::from_secs(1);
const WORKLOAD: &str = "
    seconds = 4
    [keys]
    count = 10
    size = 20
    value = 5
    [[class]]
    name = 'put'
    operation = 'put'
    rate = 200
    connections = 2
";

/// A proxy that forwards connections. While it is stalled, it forwards nothing.
#[derive(Clone)]
struct StallingProxy {
    address: SocketAddr,
    gate: Arc<RwLock<()>>,
}

impl StallingProxy {
    fn start(server: SocketAddr) -> StallingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = StallingProxy { address: listener.local_addr().unwrap(), gate: Arc::default() };
        let gate = Arc::clone(&proxy.gate);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let gate = Arc::clone(&gate);
                    to.set_nodelay(true).unwrap();
                    thread::spawn(move || {
                        let mut buffer = vec![0; 64 << 10];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            let _open = gate.read();
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        proxy
    }

    /// Stalls the proxy for a second, and returns when it is stalled.
    fn stall(&self) {
        let (gate, (stalled, is_stalled)) = (Arc::clone(&self.gate), std::sync::mpsc::channel());
        thread::spawn(move || {
            let _closed = gate.write();
            stalled.send(Instant::now()).unwrap();
            thread::sleep(STALL);
        });
        is_stalled.recv().unwrap();
    }

    /// Returns a progress function for a run. Its second call stalls the proxy.
    fn stall_in_the_middle(self) -> impl FnMut(&str) {
        let mut seconds = 0;
        move |_: &str| {
            seconds += 1;
            if seconds == 2 {
                self.stall();
            }
        }
    }
}

#[tokio::test]
async fn the_open_loop_shows_the_second_and_the_closed_one_does_not() {
    let server = TestServer::start().await.unwrap();
    let address = server.endpoint();
    let address = address.trim_start_matches("http://").parse().unwrap();
    let proxy = StallingProxy::start(address);
    let endpoint = endpoint(&proxy.address.to_string()).unwrap();
    let target = OpenTarget::open(endpoint.into(), None).await.unwrap();
    let workload = Workload::parse(WORKLOAD).unwrap();
    let mut stall = proxy.clone().stall_in_the_middle();
    let open = run(&workload, &RunOptions::new(target.clone(), 1), &mut stall).await.unwrap();
    let p999 = open.classes[0].metrics.latency_ms(0.999).unwrap();
    assert!(p999 > 950.0, "{}", open.table());
    // A quarter of the requests are due while the proxy is stalled. Half of these requests wait for
    // at least half a second. So an eighth of all requests wait that long, and the p90 is well
    // above 400 ms.
    let p90 = open.classes[0].metrics.latency_ms(0.9).unwrap();
    assert!(p90 > 400.0, "{}", open.table());

    let line = "clearlane-load put --total 1000000 --rate 200 --seconds 4";
    let Ok(Subcommand::ClosedLoop(asked)) = Subcommand::try_parse_from(line.split(' ')) else {
        panic!("{line} is no closed loop")
    };
    let mut stall = proxy.stall_in_the_middle();
    let closed = closed_loop::run(&asked, target, Stop::default(), &mut stall).await.unwrap();
    let metrics = &closed.classes[0].metrics;
    // The only client waits once, and sends no other request during that time.
    let p99 = metrics.latency_ms(0.99).unwrap();
    assert!(p99 < p90, "{}{}", open.table(), closed.table());
    assert!(metrics.latency_ms(1.0).unwrap() > 900.0, "{}", closed.table());
    let intervals = open.classes[0].metrics.intervals();
    let worst = intervals.iter().filter_map(|of| of.max_ms).fold(0.0, f64::max);
    assert!(worst > 900.0, "{intervals:?}");
}
