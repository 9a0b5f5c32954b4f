//! The language of the scripts about the order of entry, and its interpreter.
//!
//! A script names actors and gives each a command. After each block the interpreter prints which
//! actors hold the lock, and which actor waits for which:
//!
//! ```text
//! r1: read
//! w1: write
//! ---
//! holds r1 read
//! waits w1 write behind r1 (holding)
//! ```
//!
//! The commands are `<actor>: read`, `<actor>: write`, `<actor>: release`, and `blame`. Each script
//! runs on every [`Stage`] and must print the same output on each. So this module uses no threads
//! and no clock.

use std::error::Error;

use clearlane_contention::{BlockerState, LockMode, TaskLabel};
use goldenscript::{Block, Command, Context, Runner};

pub(crate) trait Stage {
    /// Requests the lock for an actor. Returns when the holders and waiters have settled.
    fn ask(&mut self, actor: TaskLabel, mode: LockMode);

    /// Releases the lock of an actor. Returns when the holders and waiters have settled.
    fn release(&mut self, actor: TaskLabel);

    fn holds(&self) -> Vec<Holds>;

    fn waits(&self) -> Vec<Waits>;

    /// Returns the number of ended intervals for each pair of waiter and blocker.
    fn blame(&self) -> Vec<(Waits, u64)>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Holds {
    pub(crate) actor: TaskLabel,
    pub(crate) mode: LockMode,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) actor: TaskLabel,
    pub(crate) mode: LockMode,
    pub(crate) front: TaskLabel,
    pub(crate) stance: BlockerState,
}

pub(crate) struct Script<S>(pub(crate) S);

impl<S: Stage> Runner for Script<S> {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Result<String, Box<dyn Error>> {
        if command.name == "blame" {
            return Ok(self.blame());
        }
        let actor =
            TaskLabel::named(context.prefix.as_deref().ok_or("no actor; write `actor: command`")?);
        match command.name.as_str() {
            "read" => self.0.ask(actor, LockMode::Read),
            "write" => self.0.ask(actor, LockMode::Write),
            "release" => self.0.release(actor),
            other => return Err(format!("unknown command {other}").into()),
        }
        Ok(String::new())
    }

    fn end_block(&mut self, block: &Block) -> Result<String, Box<dyn Error>> {
        if block.commands.iter().all(|command| command.name == "blame") {
            return Ok(String::new());
        }
        Ok(self.state())
    }
}

impl<S: Stage> Script<S> {
    fn state(&self) -> String {
        let holds = self.0.holds().into_iter().map(|holds| {
            let Holds { actor, mode } = holds;
            format!("holds {actor} {}\n", word(mode))
        });
        let waits = self.0.waits().into_iter().map(|waits| format!("waits {}\n", line(&waits)));
        let state: String = holds.chain(waits).collect();
        if state.is_empty() { "free\n".to_owned() } else { state }
    }

    fn blame(&self) -> String {
        let blame = self.0.blame();
        let mut lines: Vec<String> =
            blame.iter().map(|(waits, count)| format!("{} x{count}\n", line(waits))).collect();
        lines.sort();
        lines.concat()
    }
}

fn line(waits: &Waits) -> String {
    let stance = match waits.stance {
        BlockerState::Holding => "holding",
        BlockerState::Waiting => "waiting",
    };
    format!("{} {} behind {} ({stance})", waits.actor, word(waits.mode), waits.front)
}

fn word(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Read => "read",
        LockMode::Write => "write",
    }
}
