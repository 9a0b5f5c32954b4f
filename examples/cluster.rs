//! Three members in one terminal: press 1, 2 or 3 to stop a member, and again to restart it.
//!
//! ```text
//! cargo run --release --example cluster
//! ```
//!
//! A client writes five times a second. If one member is down, writes continue. If that member was
//! the leader, they continue after a short gap. If two members are down, writes stop, because one
//! member is not a majority. Without a terminal, the example prints lines and reads keys as lines.
//! Build the example before you run this command:
//!
//! ```text
//! (sleep 3; echo 1; sleep 5; echo 1; sleep 3; echo q) | cargo run --release --example cluster
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::collections::VecDeque;
use std::error::Error;
use std::io::{IsTerminal, Read, stdin, stdout};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clearlane_client::{Client, Options, proto::etcdserverpb::StatusResponse};
use clearlane_test_server::TestCluster;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

const MEMBERS: usize = 3;
const BETWEEN_WRITES: Duration = Duration::from_millis(200);
/// The interval between two checks of the members. The times of events are accurate to this
/// interval.
const BETWEEN_POLLS: Duration = Duration::from_millis(50);
const BETWEEN_SCREENS: Duration = Duration::from_millis(200);
/// The interval between two lines if there is no terminal.
const BETWEEN_SUMMARIES: Duration = Duration::from_secs(1);
/// Maximum number of events on the screen. Older ones are removed.
const EVENTS_MAX: usize = 10;

/// The numbers of successful and of failed writes, and the longest time between two successful
/// writes.
struct Writes {
    done: u64,
    failed: u64,
    last: Instant,
    longest_gap: Duration,
}

impl Writes {
    /// Counts a write. If it was successful, updates the longest gap: the time between two
    /// successful writes.
    fn count(&mut self, is_done: bool) {
        if !is_done {
            self.failed += 1;
            return;
        }
        self.longest_gap = self.longest_gap.max(self.last.elapsed());
        (self.done, self.last) = (self.done + 1, Instant::now());
    }
}

/// Writes at fixed times until the program ends, even if earlier writes are not completed.
async fn write(client: Client, writes: Arc<Mutex<Writes>>) {
    let mut ticks = interval(BETWEEN_WRITES);
    for number in 0_u64.. {
        ticks.tick().await;
        let (client, writes) = (client.clone(), Arc::clone(&writes));
        tokio::spawn(async move {
            let is_done = client.put("number", number.to_string()).await.is_ok();
            writes.lock().expect("no thread panics while it holds this lock").count(is_done);
        });
    }
}

/// Returns the status of each member. It is `None` if the member is stopped or does not respond.
async fn member_statuses(cluster: &TestCluster, clients: &[Client]) -> Vec<Option<StatusResponse>> {
    let mut statuses = Vec::new();
    for (member, client) in clients.iter().enumerate() {
        statuses.push(if cluster.is_running(member) { client.status().await.ok() } else { None });
    }
    statuses
}

fn is_leader(status: &StatusResponse) -> bool {
    status.header.is_some_and(|header| header.member_id == status.leader)
}

/// A restarted member that may still lack some writes.
struct Restarted {
    number: usize,
    at: Instant,
    /// The committed index of the log when the member was started.
    committed: u64,
}

/// The newest events, one line for each, and the last known state. The number of a member is its
/// key on the keyboard.
struct Events {
    begin: Instant,
    lines: VecDeque<String>,
    is_printed: bool,
    /// The number and the term of the last known leader.
    leader: Option<(usize, u64)>,
    leaderless_since: Option<Instant>,
    /// Number of members that were down when the last line about a missing leader was added. 0 if
    /// there is a leader.
    told_down: usize,
    restarted: Vec<Restarted>,
}

impl Events {
    /// If `is_printed` is true, each line is also printed when it occurs.
    fn new(is_printed: bool) -> Events {
        Events {
            begin: Instant::now(),
            lines: VecDeque::new(),
            is_printed,
            leader: None,
            leaderless_since: None,
            told_down: 0,
            restarted: Vec::new(),
        }
    }

    fn tell(&mut self, event: &str) {
        let line = format!("{:6.1} s  {event}", self.begin.elapsed().as_secs_f64());
        if self.is_printed {
            println!("{line}");
        }
        self.lines.push_back(line);
        if self.lines.len() > EVENTS_MAX {
            self.lines.pop_front();
        }
    }

    fn stops(&mut self, number: usize) {
        self.restarted.retain(|restarted| restarted.number != number);
        match self.leader {
            Some((leader, _)) if leader == number && self.leaderless_since.is_none() => {
                self.leaderless_since = Some(Instant::now());
                self.tell(&format!("member {number}, the leader, is stopped"));
            }
            _ => self.tell(&format!("member {number} is stopped")),
        }
    }

    fn starts(&mut self, number: usize, members: &[Option<StatusResponse>]) {
        let committed = members.iter().flatten().map(|status| status.raft_index).max();
        let committed = committed.unwrap_or_default();
        self.restarted.push(Restarted { number, at: Instant::now(), committed });
        self.tell(&format!("member {number} is restarted"));
    }

    /// Compares the current state of the members with their last known state. Adds lines for a new
    /// leader, a lost quorum, and members that have caught up.
    fn observe(&mut self, members: &[Option<StatusResponse>]) {
        let leading = |(status, number): (&Option<StatusResponse>, usize)| {
            let status = status.as_ref().filter(|status| is_leader(status))?;
            Some((number, status.raft_term))
        };
        let leader = members.iter().zip(1..).filter_map(leading).max_by_key(|(_, term)| *term);
        match leader {
            Some((number, term)) => {
                let since = self.leaderless_since.take();
                if leader != self.leader {
                    let after = since.map_or(String::new(), |at| format!(", {}", after(at)));
                    self.tell(&format!("member {number} is the leader in term {term}{after}"));
                }
                (self.leader, self.told_down) = (leader, 0);
            }
            None => {
                self.leaderless_since.get_or_insert_with(Instant::now);
                let down = members.iter().filter(|status| status.is_none()).count();
                // If at most one member is down, the others will soon elect a leader.
                if down > MEMBERS / 2 && down != self.told_down {
                    self.tell(&format!("no leader: {down} of {MEMBERS} are down"));
                    self.told_down = down;
                }
            }
        }
        let has_caught_up = |restarted: &mut Restarted| {
            members[restarted.number - 1].as_ref().is_some_and(|status| {
                status.leader != 0 && status.raft_applied_index >= restarted.committed
            })
        };
        for Restarted { number, at, .. } in
            self.restarted.extract_if(.., has_caught_up).collect::<Vec<_>>()
        {
            self.tell(&format!("member {number} has caught up {}", after(at)));
        }
    }
}

fn after(begin: Instant) -> String {
    format!("after {:.1} s", begin.elapsed().as_secs_f64())
}

/// Draws the whole screen.
fn draw_screen(
    members: &[Option<StatusResponse>],
    writes: &Writes,
    events: &Events,
    etcdctl: &str,
) {
    let mut page =
        "\x1b[H\x1b[J   member            role      term  committed    applied   revision    \
                    store\r\n\r\n"
            .to_owned();
    for (status, number) in members.iter().zip(1..) {
        let Some(status) = status else {
            page += &format!("{number}  \x1b[31m{:16}  down\x1b[0m\r\n", "");
            continue;
        };
        let role = match status.leader {
            0 => "\x1b[33mno leader\x1b[0m",
            _ if is_leader(status) => "\x1b[32mleader   \x1b[0m",
            _ => "follower ",
        };
        let header = status.header.unwrap_or_default();
        page += &format!(
            "{number}  {:016x}  {role} {:4} {:10} {:10} {:10} {:5} KiB\r\n",
            header.member_id,
            status.raft_term,
            status.raft_index,
            status.raft_applied_index,
            header.revision,
            status.db_size >> 10,
        );
    }
    let (since, longest) = (writes.last.elapsed(), writes.longest_gap);
    let gap = since.max(longest).as_millis();
    page += &format!(
        "\r\n{} writes, {} without a response; the last {} ms ago; longest gap {gap} ms\r\n\r\n",
        writes.done,
        writes.failed,
        since.as_millis(),
    );
    for line in &events.lines {
        page += &format!("{line}\r\n");
    }
    page += &format!("\r\n1 2 3: stop or restart a member    q: quit\r\n{etcdctl} get number\r\n");
    print!("{page}");
}

/// Prints a summary of the members and the writes in one line.
fn print_summary(members: &[Option<StatusResponse>], writes: &Writes) {
    let role = |status: &Option<StatusResponse>| match status {
        None => "down",
        Some(status) if status.leader == 0 => "no leader",
        Some(status) if is_leader(status) => "leader",
        Some(_) => "follower",
    };
    let roles: Vec<String> = members
        .iter()
        .zip(1..)
        .map(|(status, number)| format!("{number} {}", role(status)))
        .collect();
    let known = members.iter().flatten();
    let (term, revision) = known.fold((0, 0), |(term, revision), status| {
        let of_member = status.header.map_or(0, |header| header.revision);
        (status.raft_term.max(term), of_member.max(revision))
    });
    println!(
        "{}; term {term}, revision {revision}; {} writes, {} without a response, longest gap {} ms",
        roles.join(", "),
        writes.done,
        writes.failed,
        writes.longest_gap.max(writes.last.elapsed()).as_millis(),
    );
}

/// A terminal that delivers each key as soon as it is pressed. When the value is dropped, the
/// terminal gets its old settings again.
struct RawTerminal(Termios);

impl RawTerminal {
    fn one_by_one() -> nix::Result<RawTerminal> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        tcsetattr(stdin(), SetArg::TCSANOW, &raw)?;
        Ok(RawTerminal(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may be closed.
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Returns a channel of pressed keys. The channel ends when the input ends.
fn keys() -> mpsc::UnboundedReceiver<u8> {
    let (pressed, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let bytes = stdin().lock().bytes();
        bytes.map_while(Result::ok).try_for_each(|key| pressed.send(key))
    });
    keys
}

/// Returns a timer. After a late tick, the next tick follows a full period later.
fn ticks_of(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns the start of an `etcdctl` command for another terminal, with the addresses of the
/// members.
fn etcdctl(endpoints: &[String]) -> String {
    let addresses = endpoints.iter().map(|url| url.trim_start_matches("http://"));
    format!("etcdctl --endpoints={}", addresses.collect::<Vec<_>>().join(","))
}

async fn show(cluster: &mut TestCluster, on_screen: bool) -> Result<(), Box<dyn Error>> {
    let brief = Options::new().request_timeout(Duration::from_secs(1));
    let client = Client::connect(cluster.endpoints(), brief).await?;
    let endpoints = client.endpoints();
    let etcdctl = etcdctl(&endpoints);
    let each = endpoints.iter().map(|endpoint| client.only(endpoint));
    let each: Vec<Client> = each.collect::<Result<_, _>>()?;
    let (last, longest_gap) = (Instant::now(), Duration::ZERO);
    let writes = Arc::new(Mutex::new(Writes { done: 0, failed: 0, last, longest_gap }));
    tokio::spawn(write(client, Arc::clone(&writes)));
    if !on_screen {
        println!("{etcdctl} get number");
    }
    let mut events = Events::new(!on_screen);
    let mut members = member_statuses(cluster, &each).await;
    let mut keys = keys();
    let mut polls = ticks_of(BETWEEN_POLLS);
    let mut ticks = ticks_of(if on_screen { BETWEEN_SCREENS } else { BETWEEN_SUMMARIES });
    loop {
        tokio::select! {
            _ = polls.tick() => {
                members = member_statuses(cluster, &each).await;
                events.observe(&members);
            }
            _ = ticks.tick() => {
                let writes = writes.lock().expect("no thread panics while it holds this lock");
                match on_screen {
                    true => draw_screen(&members, &writes, &events, &etcdctl),
                    false => print_summary(&members, &writes),
                }
            }
            key = keys.recv() => match key {
                Some(key @ b'1'..=b'3') => {
                    let member = usize::from(key - b'1');
                    if cluster.is_running(member) {
                        events.stops(member + 1);
                        cluster.stop(member).await?;
                    } else {
                        events.starts(member + 1, &members);
                        cluster.restart(member).await?;
                    }
                }
                // The terminal is in raw mode, so Ctrl-C arrives as byte 3.
                None | Some(b'q' | 3) => return Ok(()),
                Some(_) => {}
            },
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let on_screen = stdin().is_terminal() && stdout().is_terminal();
    let mut cluster = TestCluster::start(MEMBERS).await?;
    let _keys = if on_screen { Some(RawTerminal::one_by_one()?) } else { None };
    show(&mut cluster, on_screen).await
}
