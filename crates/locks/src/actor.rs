//! Who is asking? A small label for the kind of work that a thread does right now.
//!
//! A thread id says nothing to a person, and one thread serves many kinds of request in turn. So
//! locks remember an *actor*: "put", "cheap_read", "expensive_read", "commit". The code that knows
//! what it is about to do enters the actor; every lock taken until the end of the scope is taken
//! in its name, however deep the call.
//!
//! ```
//! use clearlane_locks::Actor;
//!
//! let put = Actor::named("put");
//! let _as = put.enter();
//! assert_eq!(Actor::current(), put);
//! ```
//!
//! # Invariants
//!
//! * An actor is one byte, and there are at most [`Actor::MAX`] of them per process: figures can be
//!   kept per pair of actors without a bound to watch. Names beyond that share [`Actor::OTHER`].
//! * A name, once interned, keeps its actor for the life of the process.
//! * The label belongs to the thread, not to the task: leave the scope before an `await`.

use std::{cell::Cell, fmt, marker::PhantomData, sync::OnceLock};

/// The names by number. A slot is filled once, so looking up needs no lock.
static NAMES: [OnceLock<&str>; Actor::MAX] = [const { OnceLock::new() }; Actor::MAX];

/// The names of the first actors.
const RESERVED: [&str; 2] = ["unnamed", "other"];

/// In whose name a thread acts, and as which one of that name; 0 if nobody has counted.
pub(crate) type Acting = (Actor, u32);

thread_local! {
    static CURRENT: Cell<Acting> = const { Cell::new((Actor::UNNAMED, 0)) };
}

/// The kind of work in whose name a lock is taken. See the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor(u8);

impl Actor {
    /// How many actors a process can tell apart.
    pub const MAX: usize = 64;

    /// The actor of a thread that has not entered any.
    pub const UNNAMED: Actor = Actor(0);

    /// Shared by all names that found the table full.
    pub const OTHER: Actor = Actor(1);

    /// The actor of this name, new if the name is. Searches a list: keep the result at hand where
    /// it is needed often.
    pub fn named(name: &str) -> Actor {
        for (number, slot) in NAMES.iter().enumerate() {
            // Leaks at most once per slot, so at most `MAX` names.
            let reserve = || RESERVED.get(number).copied();
            let interned = slot.get_or_init(|| reserve().unwrap_or_else(|| name.to_owned().leak()));
            if *interned == name {
                return Actor(number as u8);
            }
        }
        Actor::OTHER
    }

    /// The actor that this thread acts as.
    #[inline]
    pub fn current() -> Actor {
        CURRENT.get().0
    }

    /// The same, and which one of that name.
    #[inline]
    pub(crate) fn acting() -> Acting {
        CURRENT.get()
    }

    /// Makes this thread act as this actor until the result is dropped; then it acts again as
    /// whatever it acted as before.
    #[must_use = "the thread acts as this actor only until the result is dropped"]
    pub fn enter(self) -> Entered {
        self.enter_as(0)
    }

    /// The same, as the one with this number: [events](crate::Event) say it, so that those of one request can
    /// be told from those of another. Figures do not.
    #[must_use = "the thread acts as this actor only until the result is dropped"]
    pub fn enter_as(self, number: u32) -> Entered {
        Entered { before: CURRENT.replace((self, number)), _this_thread: PhantomData }
    }

    /// The name it was interned under.
    pub fn name(self) -> &'static str {
        let reserved = || RESERVED.get(self.index());
        NAMES[self.index()].get().or_else(reserved).expect("an actor has a name")
    }

    /// Its place in a table with [`Actor::MAX`] rows.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn from_index(index: usize) -> Actor {
        assert!(index < Self::MAX, "actor {index} of {}", Self::MAX);
        Actor(index as u8)
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Actor({})", self.name())
    }
}

/// A thread acting as an actor; ends when dropped. Scopes must nest, as guards in local variables
/// do by themselves.
#[derive(Debug)]
pub struct Entered {
    before: Acting,
    /// Keeps the scope on the thread whose label it changed.
    _this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_interned_once() {
        assert_eq!(Actor::named("twice"), Actor::named("twice"));
        assert_ne!(Actor::named("twice"), Actor::named("once"));
        assert_eq!(Actor::named("twice").name(), "twice");
    }

    #[test]
    fn reserved_names_find_their_actors() {
        assert_eq!(Actor::named("unnamed"), Actor::UNNAMED);
        assert_eq!(Actor::named("other"), Actor::OTHER);
        assert_eq!(Actor::UNNAMED.name(), "unnamed");
        assert_eq!(Actor::OTHER.name(), "other");
    }

    #[test]
    fn scopes_nest_and_restore() {
        let (outer, inner) = (Actor::named("outer"), Actor::named("inner"));
        assert_eq!(Actor::current(), Actor::UNNAMED);
        let _as = outer.enter_as(7);
        {
            let _as = inner.enter();
            assert_eq!(Actor::current(), inner);
            assert_eq!(Actor::acting(), (inner, 0));
        }
        assert_eq!(Actor::acting(), (outer, 7));
    }

    #[test]
    fn a_thread_starts_unnamed_and_a_panic_restores() {
        let _as = Actor::named("parent").enter();
        let child = std::thread::spawn(|| {
            assert_eq!(Actor::current(), Actor::UNNAMED);
            let caught = std::panic::catch_unwind(|| {
                let _as = Actor::named("doomed").enter();
                panic!("on purpose");
            });
            assert!(caught.is_err());
            Actor::current()
        });
        assert_eq!(child.join().unwrap(), Actor::UNNAMED);
    }
}
