//! Shows what a linearizable read costs, and what a serializable read may miss.
//!
//! ```text
//! cargo run --release --example serializable_vs_linearizable
//! cargo run --release --example serializable_vs_linearizable -- http://127.0.0.1:2379
//! ```
//!
//! The example starts three members. If it gets the URL of a server, it only measures reads there.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::time::{Duration, Instant};

use clearlane_client::{Client, Get, Options};
use clearlane_test_server::TestCluster;

const MEMBERS: usize = 3;
const KEY: &str = "greeting";
/// Number of reads of each kind, one after the other.
const READS: usize = 1_000;
/// Time limit of a request, such as a linearizable read at a member without a leader.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

fn linearizable() -> Get {
    Get::from(KEY)
}

fn serializable() -> Get {
    Get::from(KEY).serializable()
}

/// Makes reads of both kinds in turn, so that other load on the machine affects both kinds. Prints
/// the median time of each kind.
async fn print_times(member: &str, client: &Client) -> clearlane_client::Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..READS {
        for (get, times) in [linearizable(), serializable()].into_iter().zip(&mut times) {
            let begin = Instant::now();
            client.get(get).await?;
            times.push(begin.elapsed());
        }
    }
    let [linearizable, serializable] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    println!("{member:12} {linearizable:>14.1?} {serializable:>14.1?}");
    Ok(())
}

fn print_heading() {
    println!("Median time of {READS} reads, one after the other\n");
    println!("from         {:>14} {:>14}", "linearizable", "serializable");
}

/// Prints the value that a member returns, or the error.
async fn print_answer(kind: &str, client: &Client, get: Get) {
    let answer = match client.get(get).await {
        Ok(found) => {
            found.value().map_or("nothing".into(), |value| value.escape_ascii().to_string())
        }
        Err(error) => format!("no response: {error}"),
    };
    println!("    {kind}: {answer}");
}

async fn compare_times(leader: &Client, follower: &Client) -> clearlane_client::Result<()> {
    print_heading();
    print_times("the leader", leader).await?;
    print_times("a follower", follower).await?;
    println!(
        "\nFor a linearizable read, the leader first confirms with a majority that it leads. A\n\
         follower asks the leader, and waits until it has applied all entries committed by then.\n\
         A serializable read does neither: it reads the entries that this member has applied."
    );
    Ok(())
}

/// Stops a follower while a key is overwritten. Then stops the other members and starts only the
/// follower, which returns a stale value. At the end all members run.
async fn read_stale(
    cluster: &mut TestCluster,
    client: &Client,
    (number, follower): (usize, &Client),
) -> Result<(), Box<dyn Error>> {
    let others: Vec<usize> = (0..MEMBERS).filter(|member| *member != number).collect();
    println!("\nA follower is stopped, and {KEY} is put again, \"new\" instead of \"old\".");
    cluster.stop(number).await?;
    client.put(KEY, "new").await?;
    println!("Now the other two members are stopped, and only the follower is started. It reads:");
    for member in &others {
        cluster.stop(*member).await?;
    }
    cluster.restart(number).await?;
    print_answer("serializable, and stale", follower, serializable()).await;
    print_answer("linearizable", follower, linearizable()).await;
    println!("The other two members are restarted. The follower reads:");
    for member in &others {
        cluster.restart(*member).await?;
    }
    print_answer("linearizable", follower, linearizable()).await;
    print_answer("serializable, now that it has caught up", follower, serializable()).await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(url) = std::env::args().nth(1) {
        let client = Client::connect([url], Options::default()).await?;
        print_heading();
        return Ok(print_times("this server", &client).await?);
    }
    let mut cluster = TestCluster::start(MEMBERS).await?;
    let endpoints = cluster.endpoints();
    let options = Options::new().request_timeout(REQUEST_TIMEOUT);
    let client = Client::connect(endpoints.clone(), options).await?;
    client.put(KEY, "old").await?;

    let leader = cluster.leader().await?;
    let number = (leader + 1) % MEMBERS;
    let follower = client.only(&endpoints[number])?;
    compare_times(&client.only(&endpoints[leader])?, &follower).await?;
    read_stale(&mut cluster, &client, (number, &follower)).await
}
