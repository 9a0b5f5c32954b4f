//! What it costs to be sure that a read is fresh, and what a read that is not sure may miss.
//!
//! ```text
//! cargo run --release --example serializable_vs_linearizable
//! cargo run --release --example serializable_vs_linearizable -- http://127.0.0.1:2379
//! ```
//!
//! It starts three members of its own. Given the URL of a server, it only times reads there.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::time::{Duration, Instant};

use clearlane_client::{Client, Get, Options};
use clearlane_test_server::TestCluster;

const MEMBERS: usize = 3;
const KEY: &str = "greeting";
/// Number of reads of each kind, one after the other.
const READS: usize = 1_000;
/// How long a read is tried that a member without a leader cannot answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

fn linearizable() -> Get {
    Get::from(KEY)
}

fn serializable() -> Get {
    Get::from(KEY).serializable()
}

/// The kinds in turns, and the median of each: what else the machine does falls on both.
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
    println!("the median of {READS} reads, one after the other\n");
    println!("from         {:>14} {:>14}", "linearizable", "serializable");
}

/// What a member answers, or why it does not.
async fn print_answer(kind: &str, client: &Client, get: Get) {
    let answer = match client.get(get).await {
        Ok(found) => {
            found.value().map_or("nothing".into(), |value| value.escape_ascii().to_string())
        }
        Err(error) => format!("no answer: {error}"),
    };
    println!("    {kind}: {answer}");
}

async fn compare_times(leader: &Client, follower: &Client) -> clearlane_client::Result<()> {
    print_heading();
    print_times("the leader", leader).await?;
    print_times("a follower", follower).await?;
    println!(
        "\nFor a linearizable read the leader first hears from a majority that it still leads; a\n\
         follower asks the leader, and waits until it has applied what was committed by then.\n\
         A serializable read does neither: it reads what this member has applied so far."
    );
    Ok(())
}

/// A follower is stopped while a key is overwritten, and comes back alone.
async fn read_stale(
    cluster: &mut TestCluster,
    client: &Client,
    (number, follower): (usize, &Client),
) -> Result<(), Box<dyn Error>> {
    let others: Vec<usize> = (0..MEMBERS).filter(|member| *member != number).collect();
    println!("\nA follower is stopped, and {KEY} is put again, \"new\" instead of \"old\".");
    cluster.stop(number).await?;
    client.put(KEY, "new").await?;
    println!("Now the other two are stopped, and the follower is started alone. It reads:");
    for member in &others {
        cluster.stop(*member).await?;
    }
    cluster.restart(number).await?;
    print_answer("serializable, and stale", follower, serializable()).await;
    print_answer("linearizable", follower, linearizable()).await;
    println!("The other two are started again. The follower reads:");
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
