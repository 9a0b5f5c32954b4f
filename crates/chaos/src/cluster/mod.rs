//! The cluster: members, clients, faults and the judge, around one queue of events.
//!
//! # The idea
//!
//! A member's core only takes inputs and says what is to be done. In the server threads, sockets and a
//! disk do it; here it becomes events. Between a batch being handed out and the disk having it lies time
//! in which anything may happen, and the same is true of a message, an answer, a tick, and a commit of
//! the store. So all that threads could do to each other, the seed does here.
//!
//! ```text
//!                    ┌────────────── events ◀──────────────┐
//!                    ▼                                     │
//!   arrive, tick, written, ask ──▶ Core ──▶ poll ──▶ send, write, answer, ...
//!                                              │
//!                                              ▼
//!                                            judge
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | [`carry_out`] | polls, and turns outputs into events |
//! | [`copying`] | copies of stores, in pieces, over links that break |
//! | [`users`] | clients |
//! | [`tenants`] | those who have leases |
//! | [`trouble`] | faults, starts and crashes |
//! | [`ambush`] | faults that wait for a certain message |
//! | [`quiet`] | the end, at which all must be well |

mod ambush;
mod carry_out;
mod copying;
mod trouble;
mod users;
mod quiet;
mod tenants;

use std::collections::BTreeMap;

use clearlane_member::Progress;
use clearlane_member::core::{Bug, Input as RaftInput};
use clearlane_raft_log::driver::Message;
use clearlane_raft_log::wal::group::{Batch, Written};

use self::ambush::Ambush;
use self::copying::Transfer;
use self::quiet::Quiet;
use self::tenants::Tenants;
use self::users::Users;
use crate::chance::Chance;
use crate::checkers::{Rule, Violation};
use crate::effect_hash::EffectHash;
use crate::faults::Faults;
use crate::history::Outcome;
use crate::judge::{Judge, Verdict};
use crate::machine::{Machine, Running, describe};
use crate::network::{Cut, Link, Network};
use crate::terms::{TICK, Terms};
use crate::trace::{Keep, Trace};
use crate::world::{Micros, SECOND, World};

/// More events than this are a loop. A simulation has some ten thousand.
const EVENTS_MAX: u64 = 3_000_000;

/// Something happens.
#[derive(Debug)]
enum Event {
    /// To a member, in one of its lives. It waits while the member's process is stopped.
    Member { id: u64, life: u64, what: Input },
    /// A message arrives at a member.
    Arrives { link: Link, bytes: Vec<u8> },
    /// A piece of a copy arrives.
    Piece(u64),
    /// A member starts.
    Start(u64),
    /// A client wants something.
    Wants(u64),
    /// A request arrives at a member.
    Asks(usize),
    /// A client is told.
    Told(usize, Outcome),
    /// A client loses its patience.
    Patience(usize),
    /// A tenant does something.
    Tenant,
    /// Something goes wrong.
    Fault,
    /// Links are cut, for a while.
    Cut(Cut, Micros),
    /// A member loses its power, for a while.
    PowerCut(u64, Micros),
    /// Links are whole again.
    Mend(Vec<Link>),
    /// The weather is as usual again.
    Clears,
    /// Nothing more goes wrong.
    Quiet,
    /// Is all well?
    Look,
}

/// What happens to a member.
#[derive(Debug)]
enum Input {
    Tick,
    /// A turn of the raft loop.
    Poll,
    /// A turn of the apply loop.
    Apply,
    /// A turn of the net thread.
    Net,
    /// The net thread looks for requests that have waited too long.
    Round,
    /// The disk gets to a batch.
    Write(Batch),
    Written(Written),
    Commit {
        /// Whether it is the timer's.
        is_timer: bool,
    },
    /// The raft loop hears that the store was committed.
    StoreCommitted(Progress),
    Compact,
    /// What has become of a copy.
    CopySent(u64, bool),
    Unreachable(u64),
    /// Nobody waits for an operation any more.
    GiveUp(usize),
}

impl Input {
    /// For the trace.
    fn name(&self) -> &'static str {
        match self {
            Input::Tick => "ticks",
            Input::Poll => "polls",
            Input::Apply => "applies",
            Input::Net => "looks after its clients",
            Input::Round => "looks for requests that wait too long",
            Input::Write(_) => "writes",
            Input::Written(_) => "hears that it is written",
            Input::Commit { .. } => "commits its store",
            Input::StoreCommitted(_) => "hears that its store is committed",
            Input::Compact => "compacts",
            Input::CopySent(_, true) => "hears that a copy has arrived",
            Input::CopySent(_, false) => "hears that a copy has not arrived",
            Input::Unreachable(_) => "hears that somebody is out of reach",
            Input::GiveUp(_) => "hears that somebody gives up",
        }
    }
}

/// What a simulation is to be.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Decides everything.
    pub seed: u64,
    /// How many members there are at first.
    pub members: u64,
    /// What is wrong with them.
    pub bug: Option<Bug>,
    /// What becomes of the trace.
    pub keep: Keep,
}

/// A simulated cluster.
#[derive(Debug)]
pub struct Cluster {
    terms: Terms,
    bug: Option<Bug>,
    world: World<Event>,
    /// What has happened.
    pub trace: Trace,
    /// What members did, as a number.
    pub effects: EffectHash,
    chance: Chance,
    network: Network,
    faults: Faults,
    machines: BTreeMap<u64, Machine>,
    transfers: BTreeMap<u64, Transfer>,
    users: Users,
    tenants: Tenants,
    judge: Judge,
    quiet: Quiet,
    /// What waits for its moment.
    ambush: Ambush,
    newest_id: u64,
    /// What there was of everything.
    pub figures: Figures,
}

/// How much there was of what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Events.
    pub events: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Entries that were committed.
    pub committed: u64,
    /// Terms that had a leader.
    pub terms: u64,
    /// Crashes.
    pub crashes: u64,
    /// Power cuts in the midst of writing.
    pub torn: u64,
    /// Members that stopped because their disk reported an error.
    pub disk_errors: u64,
    /// Stores that were replaced by copies.
    pub copies: u64,
    /// Members that came.
    pub joined: u64,
    /// Members that left.
    pub left: u64,
    /// How often a lease was kept alive.
    pub kept_alive: u64,
    /// Leases that ended because they were not.
    pub expired: u64,
    /// Hashes of one member that were compared with another's.
    pub hashes: u64,
    /// Clusters that have lost their quorum because one of two voters was removed.
    pub quorums_removed: u64,
    /// Linearizable reads of a member that is alone.
    pub read_alone: u64,
}

impl Cluster {
    /// A cluster that has just been made.
    pub fn new(order: &Order) -> Cluster {
        let mut chance = Chance::new(order.seed ^ order.members << 56);
        let terms = Terms::draw(&mut chance.part(), order.bug);
        let voters_min = match terms.shrinks {
            true => 1,
            false => (order.members as usize).saturating_sub(1).max(3),
        };
        let mut faults = Faults::new(chance.part(), voters_min, terms.drift_ppm_max);
        if terms.shrinks {
            faults.remove_members_often();
        }
        if order.bug == Some(Bug::LeaseKeptOverTransfer) {
            faults.transfer_often();
        }
        let mut network = Network::new(chance.part());
        network.weather = terms.weather;
        let users = Users::new(&terms, &mut chance);
        let tenants = Tenants::new(chance.part());
        let mut cluster = Cluster {
            bug: order.bug,
            world: World::default(),
            trace: Trace::new(order.keep),
            effects: EffectHash::default(),
            chance,
            network,
            faults,
            machines: BTreeMap::new(),
            transfers: BTreeMap::new(),
            users,
            tenants,
            judge: Judge::default(),
            quiet: Quiet::default(),
            ambush: Ambush::default(),
            newest_id: order.members,
            figures: Figures::default(),
            terms,
        };
        let first: Vec<_> = (1..=order.members).map(describe).collect();
        for id in 1..=order.members {
            cluster.place(id, &first);
        }
        cluster
    }

    fn place(&mut self, id: u64, first: &[clearlane_member::membership::Member]) {
        let machine = Machine::new(id, first, &self.terms).expect("an empty disk takes a log");
        self.machines.insert(id, machine);
        let wait = self.chance.between(0, 100_000);
        self.world.after(wait, Event::Start(id));
    }

    /// Lets everything happen.
    pub fn play(&mut self) -> Verdict {
        self.line(format_args!("{:?}", self.terms.clone()));
        self.plan_clients();
        self.plan_tenant();
        let pause = self.faults.pause();
        // First of all somebody is elected.
        self.world.after(2 * SECOND + pause, Event::Fault);
        self.world.after(self.terms.torment, Event::Quiet);
        while !self.quiet.is_over {
            let event = self.world.next_event().expect("ticks never end");
            self.figures.events += 1;
            if self.figures.events > EVENTS_MAX {
                return Err(Violation::new(Rule::Progress, "events without end"));
            }
            self.happen(event)?;
        }
        self.judge.conclude(self.users.history.operations(), &self.users.ids)
    }

    /// Numbers, for whoever wonders whether anything has happened at all.
    pub fn count(&mut self) -> Figures {
        self.figures.operations = self.users.history.operations().len() as u64;
        self.figures.committed = self.judge.committed.newest();
        self.figures.terms = self.judge.leaders.count() as u64;
        (self.figures.kept_alive, self.figures.expired) = self.judge.promises.count();
        self.figures.hashes = self.judge.hashes.compared();
        self.figures
    }

    pub(crate) fn line(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.world.now(), what);
    }

    fn happen(&mut self, event: Event) -> Verdict {
        let Some(event) = self.unless_paused(event) else { return Ok(()) };
        match event {
            Event::Member { id, life, what } => return self.input(id, life, what),
            Event::Arrives { link, bytes } => return self.arrives(link, &bytes),
            Event::Piece(number) => return self.piece_arrives(number),
            Event::Start(id) => return self.start(id),
            Event::Asks(operation) => return self.asked(operation),
            Event::Tenant => return self.tenant_acts(),
            Event::Fault => return self.something_goes_wrong(),
            Event::Look => return self.look(),
            Event::Wants(client) => self.wants(client),
            Event::Told(operation, outcome) => self.told(operation, outcome),
            Event::Patience(operation) => self.loses_patience(operation),
            Event::Cut(cut, lasts) => self.cut_comes(&cut, lasts),
            Event::PowerCut(id, down) => self.power_cut_comes(id, down),
            Event::Mend(links) => self.network.mend(&links.into_iter().collect()),
            Event::Clears => self.network.weather = self.terms.weather,
            Event::Quiet => self.fall_quiet(),
        }
        Ok(())
    }

    /// What is for a process that is stopped comes when it goes on.
    fn unless_paused(&mut self, event: Event) -> Option<Event> {
        let id = match &event {
            Event::Member { id, .. } => *id,
            Event::Arrives { link, .. } => link.1,
            Event::Asks(operation) => self.users.member_of(*operation),
            Event::Piece(number) => self.transfers.get(number)?.to,
            _ => return Some(event),
        };
        let now = self.world.now();
        match self.machines.get(&id) {
            Some(machine) if machine.paused_until > now => {
                self.world.after(machine.paused_until - now, event);
                None
            }
            _ => Some(event),
        }
    }

    fn input(&mut self, id: u64, life: u64, what: Input) -> Verdict {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&id).filter(|machine| machine.life == life)
        else {
            return Ok(());
        };
        let clock = machine.clock;
        let Some(Running { core, .. }) = &mut machine.running else { return Ok(()) };
        self.trace.line(now, format_args!("{id} {}", what.name()));
        let give = match what {
            Input::Poll => return self.poll(id),
            Input::Apply => return self.apply(id),
            Input::Net => return self.net(id, false),
            Input::Round => return self.net(id, true),
            Input::Write(batch) => return self.write(id, batch),
            Input::Commit { is_timer } => return self.commit(id, is_timer),
            Input::Compact => return self.compact(id),
            Input::GiveUp(operation) => {
                self.give_up(id, operation);
                return Ok(());
            }
            Input::Tick => {
                core.tick();
                self.world.after(clock.takes(TICK), tick(id, life));
                self.plan_poll(id);
                return Ok(());
            }
            Input::Written(written) => RaftInput::Written(written),
            Input::StoreCommitted(durable) => RaftInput::Committed(durable),
            Input::CopySent(to, arrived) => RaftInput::CopySent { to, arrived },
            Input::Unreachable(to) => RaftInput::Unreachable(to),
        };
        self.give(id, give);
        Ok(())
    }

    /// Something for a raft loop, which has a turn soon.
    fn give(&mut self, id: u64, input: RaftInput) {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        if let Some(running) = running {
            running.inbox.push(input);
            self.plan_poll(id);
        }
    }

    fn arrives(&mut self, link: Link, bytes: &[u8]) -> Verdict {
        let id = link.1;
        let message = Message::decode(bytes).map_err(|error| broken(id, &error))?;
        if self.network.is_cut(link) {
            self.line(format_args!("lost {message}"));
            return Ok(());
        }
        // As the server's peers do, which know their connection's member.
        if message.from() != link.0 {
            return Err(broken(id, &format!("{message} came from {}", link.0)));
        }
        self.line(format_args!("arrives {message}"));
        self.give(id, RaftInput::Message(message));
        Ok(())
    }
}

fn tick(id: u64, life: u64) -> Event {
    Event::Member { id, life, what: Input::Tick }
}

fn broken(id: u64, error: &dyn std::fmt::Display) -> Violation {
    Violation::new(Rule::Running, format!("member {id}: {error}"))
}
