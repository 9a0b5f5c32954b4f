//! The commands of golden scripts over a cluster. `cluster 3` creates a cluster whose members know
//! each other; `seed=`, `inflight=`, `uncommitted=`, `entries=`, `message=`, `reads=`, `questions=`
//! set its `RaftNodeConfig`. Further commands:
//!
//! ```text
//!   pass 3                     three ticks for all members; delivers all messages after each tick
//!   tick 1 5                   five ticks for member 1
//!   run                        delivers messages until none are in flight
//!   deliver 1-2 1              delivers one message from 1 to 2; without a number, all of them
//!   lose 1-2, double 1-2, pool, cut 1 2, isolate 1, heal
//!   slow 1                     the disk of member 1 writes only at the command `persist`
//!   fast 1                     the disk of member 1 writes all appends in its queue, and new ones
//!                              immediately
//!   persist 1 2                writes two appends to the disk of member 1
//!   propose 1 a, change 1 add 4, read 1 r1, transfer 1 2, campaign 1
//!   sync 1 release=7           syncs the store of member 1, and releases its log up to entry 7
//!   release 1 7                releases the log of member 1 up to entry 7
//!   sent 1 3 lost              reports to member 1 that its raft snapshot for member 3 was lost
//!   unreachable 1 3            reports to member 1 that member 3 is unreachable
//!   crash 1, restart 1, start 4, status, log 1, store 1
//! ```

use std::error::Error;

use clearlane_raft::RaftNodeConfig;
use clearlane_wal::wire::ConfChangeKind;
use goldenscript::{Argument, Command, Context, Runner};

use super::{Cluster, disk, names};

type Outcome = Result<String, Box<dyn Error>>;

pub(crate) struct ClusterRunner {
    cluster: Cluster,
}

impl ClusterRunner {
    pub(crate) fn new() -> ClusterRunner {
        ClusterRunner { cluster: Cluster::new(0, RaftNodeConfig::new(1, 0)) }
    }

    fn make(&mut self, voters: u64, options: &[(String, u64)]) {
        let mut settings = RaftNodeConfig::new(1, 1);
        for (name, value) in options {
            match name.as_str() {
                "seed" => settings.seed = *value,
                "inflight" => settings.inflight_max = *value as usize,
                "uncommitted" => settings.uncommitted_bytes_max = *value,
                "entries" => settings.uncommitted_entries_max = *value,
                "message" => settings.message_bytes_max = *value,
                "reads" => settings.reads_max = *value as usize,
                "questions" => settings.read_index_counts_as_ack = *value != 0,
                other => panic!("no option {other}"),
            }
        }
        self.cluster = Cluster::new(voters, settings);
    }

    /// Returns the positions in the pool of the messages on an edge, such as `1-2`: of the first
    /// `count` messages, or of all messages if `count` is `None`.
    fn on_edge(&self, edge: &str, count: Option<usize>) -> Vec<usize> {
        let all = self.cluster.pool.iter().enumerate();
        let name = |(from, to)| format!("{from}-{to}");
        let there = all.filter(|(_, sent)| name(sent.edge()) == edge).map(|(at, _)| at);
        there.take(count.unwrap_or(usize::MAX)).collect()
    }

    fn network(&mut self, words: &[&str]) -> Result<bool, Box<dyn Error>> {
        let cluster = &mut self.cluster;
        match words {
            ["run"] => cluster.run(),
            ["pool"] => {
                for sent in cluster.pool.clone() {
                    cluster.line(sent.message.to_string());
                }
            }
            ["cut", one, other] => cluster.cut(one.parse()?, other.parse()?),
            ["isolate", one] => {
                for other in cluster.ids() {
                    cluster.cut(one.parse()?, other);
                }
            }
            ["heal"] => cluster.heal(),
            [verb @ ("deliver" | "lose" | "double"), edge, count @ ..] => {
                let count = count.first().map(|count| count.parse()).transpose()?;
                // Messages are removed from the pool in order. Each removal lowers the positions of
                // the later messages by one.
                let places = self.on_edge(edge, count);
                let cluster = &mut self.cluster;
                match *verb {
                    "deliver" => {
                        for (gone, place) in places.into_iter().enumerate() {
                            cluster.deliver(place - gone);
                        }
                    }
                    "lose" => {
                        for (gone, place) in places.into_iter().enumerate() {
                            let sent = cluster.pool.remove(place - gone);
                            cluster.lose(&sent);
                        }
                    }
                    _ => {
                        let copies = places.iter().map(|at| cluster.pool[*at].clone());
                        let copies: Vec<_> = copies.collect();
                        cluster.pool.extend(copies);
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn disk(&mut self, words: &[&str]) -> Result<bool, Box<dyn Error>> {
        let cluster = &mut self.cluster;
        match words {
            ["slow", id] => {
                cluster.members.get_mut(&id.parse()?).ok_or("no such member")?.slow = true
            }
            ["fast", id] => {
                let id = id.parse()?;
                cluster.members.get_mut(&id).ok_or("no such member")?.slow = false;
                cluster.persist(id, usize::MAX);
            }
            ["persist", id] => cluster.persist(id.parse()?, usize::MAX),
            ["persist", id, count] => cluster.persist(id.parse()?, count.parse()?),
            ["crash", id] => cluster.crash(id.parse()?),
            ["restart", id] => cluster.restart(id.parse()?),
            ["start", id] => cluster.start(id.parse()?),
            ["log", id] => {
                let entries = cluster.members[&id.parse()?].disk.entries.clone();
                for entry in entries.values() {
                    let data = entry.data.escape_ascii().to_string();
                    let line = format!("{}@{} {data}", entry.index, entry.term);
                    cluster.line(line.trim_end().to_owned());
                }
            }
            ["store", id] => {
                let store = &cluster.members[&id.parse()?].store;
                let data: Vec<_> = store.data.iter().map(|(_, data)| data.escape_ascii()).collect();
                let data: Vec<_> = data.into_iter().map(|data| data.to_string()).collect();
                let at = &store.position;
                let line = format!("{}@{} {}", at.index, at.term, data.join(" "));
                cluster.line(line.trim_end().to_owned());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn member(&mut self, words: &[&str]) -> Result<bool, Box<dyn Error>> {
        let cluster = &mut self.cluster;
        let outcome = match words {
            ["propose", id, data] => {
                let data = data.as_bytes().to_vec();
                cluster.call(id.parse()?, |node| node.propose(data.into()))
            }
            ["change", id, kind, member] => {
                let data = disk::encode_change(kind_of(kind), member.parse()?);
                cluster.call(id.parse()?, |node| node.propose_conf_change(data))
            }
            ["read", id, context] => cluster.read(id.parse()?, context),
            ["transfer", id, to] => {
                let to = to.parse()?;
                cluster.call(id.parse()?, |node| node.transfer_leader(to)).map(Ok)
            }
            ["release", id, up_to] => {
                let up_to = up_to.parse()?;
                cluster.call(id.parse()?, |node| node.release(up_to)).map(Ok)
            }
            ["campaign", id] => cluster.call(id.parse()?, |node| node.campaign()).map(Ok),
            ["unreachable", id, other] => {
                let other = other.parse()?;
                cluster.call(id.parse()?, |node| node.report_unreachable(other)).map(Ok)
            }
            ["sent", id, to, how] => {
                let (to, arrived) = (to.parse()?, *how == "arrived");
                cluster.call(id.parse()?, |node| node.report_snapshot(to, arrived)).map(Ok)
            }
            _ => return Ok(false),
        };
        outcome.ok_or("the member is down")??;
        Ok(true)
    }

    fn time(&mut self, words: &[&str]) -> Result<bool, Box<dyn Error>> {
        let cluster = &mut self.cluster;
        match words {
            ["pass", ticks] => {
                for _ in 0..ticks.parse()? {
                    for id in cluster.ids() {
                        cluster.call(id, |node| node.tick());
                    }
                    cluster.run();
                }
            }
            ["tick", id, ticks @ ..] => {
                let ticks = ticks.first().map_or(Ok(1), |ticks| ticks.parse())?;
                for _ in 0..ticks {
                    cluster.call(id.parse()?, |node| node.tick());
                }
            }
            ["status"] => {
                for id in cluster.ids() {
                    let line = status(cluster, id);
                    cluster.line(line);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn status(cluster: &mut Cluster, id: u64) -> String {
    if !cluster.is_up(id) {
        return format!("{id}: down");
    }
    let applied = cluster.members[&id].store.position.index;
    let node = cluster.node(id);
    let now = node.leadership();
    let (first, last) = node.kept_indexes();
    format!(
        "{id}: {:?} term={} leader={} committed={} applied={applied} log={first}..{last} members={}",
        now.role,
        now.term,
        now.leader,
        node.committed_index(),
        names(&node.conf_state())
    )
}

fn kind_of(word: &str) -> ConfChangeKind {
    match word {
        "add" => ConfChangeKind::AddNode,
        "learner" => ConfChangeKind::AddLearnerNode,
        "remove" => ConfChangeKind::RemoveNode,
        "update" => ConfChangeKind::UpdateNode,
        other => panic!("no change {other}"),
    }
}

impl Runner for ClusterRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Outcome {
        let mut words = vec![command.name.as_str()];
        let mut options = Vec::new();
        for argument in &command.args {
            match argument {
                Argument::Positional(word) => words.push(word),
                Argument::KeyValue(name, value) => options.push((name.clone(), value.parse()?)),
                other => return Err(format!("no argument {other}").into()),
            }
        }
        match &words[..] {
            ["cluster", voters] => self.make(voters.parse()?, &options),
            ["sync", id] => {
                let release = options.first().map_or(0, |(_, index)| *index);
                self.cluster.sync(id.parse()?, release);
            }
            words => {
                let known = self.network(words)?
                    || self.disk(words)?
                    || self.member(words)?
                    || self.time(words)?;
                if !known {
                    return Err(format!("no command {words:?}").into());
                }
            }
        }
        Ok(self.cluster.take_lines().iter().map(|line| format!("{line}\n")).collect())
    }
}
