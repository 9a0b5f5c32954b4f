//! What lies between the members: links that lose, double, delay and overtake, and are cut.
//!
//! # The model
//!
//! A link leads from one member to another, in one direction. What is sent over it arrives after a
//! delay that is drawn for each message, so that a later one may overtake. The *weather* says how
//! long delays are and how much gets lost or comes twice. A link that is *cut* lets nothing through:
//! neither what is sent while it is cut, nor what would arrive meanwhile.
//!
//! ```text
//!   split    {1 2} ╳ {3 4 5}      nobody there hears of anybody here
//!   deaf     3 ◀╳─ all            3 is heard, and hears nothing
//!   mute     3 ─╳▶ all            3 hears, and is not heard
//!   bridge   {1 2} ─ 3 ─ {4 5}    only 3 talks to both sides
//! ```
//!
//! # What does not come twice
//!
//! A proposal that a member forwards to the leader. Everything else that members say is a statement,
//! which is as true the second time; a proposal is a wish, and would come true twice. etcd relies on
//! its streams for that, and so do we: they lose, but do not double. Copies of stores are streams, too,
//! in pieces that stay in order until the stream breaks.

use std::collections::{BTreeMap, BTreeSet};

use crate::chance::Chance;
use crate::world::{MILLISECOND, Micros};

/// A link: from whom, to whom.
pub type Link = (u64, u64);

/// How messages fare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// The usual delay, at most.
    pub delay: Micros,
    /// How many in a thousand take longer.
    pub slow_permille: u64,
    /// And how long these take, at most.
    pub slow_delay: Micros,
    /// How many in a thousand get lost.
    pub lost_permille: u64,
    /// How many in a thousand come twice.
    pub doubled_permille: u64,
}

impl Weather {
    /// A quiet day in one data centre.
    pub const FAIR: Weather = Weather {
        delay: MILLISECOND,
        slow_permille: 0,
        slow_delay: 0,
        lost_permille: 0,
        doubled_permille: 0,
    };

    /// Anything from a breeze to a storm.
    pub fn any(chance: &mut Chance) -> Weather {
        Weather {
            delay: chance.of_any_size(200, 60 * MILLISECOND),
            slow_permille: chance.of_any_size(0, 100),
            slow_delay: chance.of_any_size(MILLISECOND, 3000 * MILLISECOND),
            lost_permille: chance.of_any_size(0, 250),
            doubled_permille: chance.of_any_size(0, 250),
        }
    }
}

/// All links.
#[derive(Debug)]
pub struct Network {
    /// How messages fare now.
    pub weather: Weather,
    /// How many cuts go through a link.
    cuts: BTreeMap<Link, u32>,
    chance: Chance,
}

impl Network {
    /// Links without faults.
    pub fn new(chance: Chance) -> Network {
        Network { weather: Weather::FAIR, cuts: BTreeMap::new(), chance }
    }

    /// After which delays a message arrives: never, once or twice.
    pub fn send(&mut self, link: Link, may_double: bool) -> Vec<Micros> {
        if self.is_cut(link) || self.chance.permille(self.weather.lost_permille) {
            return Vec::new();
        }
        let doubled = self.chance.permille(self.weather.doubled_permille) && may_double;
        let mut waits = vec![self.delay()];
        if doubled {
            // Some doubles come when nobody thinks of the first any more.
            waits.push(self.delay() + self.chance.of_any_size(100, 3000 * MILLISECOND));
        }
        waits
    }

    /// How long something takes that does arrive.
    pub fn delay(&mut self) -> Micros {
        let slow = self.chance.permille(self.weather.slow_permille);
        let longest = if slow { self.weather.slow_delay } else { self.weather.delay };
        self.chance.between(50, longest.max(100))
    }

    /// Whether nothing gets through.
    pub fn is_cut(&self, link: Link) -> bool {
        self.cuts.contains_key(&link)
    }

    /// Cuts links. Each needs as many mendings as it had cuts.
    pub fn cut(&mut self, links: &BTreeSet<Link>) {
        for link in links {
            *self.cuts.entry(*link).or_default() += 1;
        }
    }

    /// Mends links that were cut; those that are whole are left alone.
    pub fn mend(&mut self, links: &BTreeSet<Link>) {
        for link in links {
            if let Some(cuts) = self.cuts.get_mut(link) {
                *cuts -= 1;
            }
        }
        self.cuts.retain(|_, cuts| *cuts > 0);
    }

    /// Mends everything.
    pub fn heal(&mut self) {
        self.cuts.clear();
        self.weather = Weather::FAIR;
    }
}

/// Which links a cut takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Between these and all others, both ways.
    Split(Vec<u64>),
    /// All that lead to a member.
    Deaf(u64),
    /// All that lead from a member.
    Mute(u64),
    /// Between the two halves of the rest; only this member talks to both.
    Bridge(u64),
    /// Between the first and all others but the second.
    Private(u64, u64),
    /// One link, one way.
    Link(Link),
}

impl Cut {
    /// Its links, among these members.
    pub fn links(&self, members: &[u64]) -> BTreeSet<Link> {
        let pairs = members.iter().flat_map(|from| members.iter().map(|to| (*from, *to)));
        pairs.filter(|(from, to)| from != to && self.takes(*from, *to, members)).collect()
    }

    fn takes(&self, from: u64, to: u64, members: &[u64]) -> bool {
        match self {
            Cut::Split(side) => side.contains(&from) != side.contains(&to),
            Cut::Deaf(member) => to == *member,
            Cut::Mute(member) => from == *member,
            Cut::Bridge(bridge) => {
                let side = |id: u64| {
                    let rest = members.iter().filter(|member| *member != bridge);
                    rest.clone().position(|member| *member == id).map(|at| at * 2 < rest.count())
                };
                matches!((side(from), side(to)), (Some(one), Some(other)) if one != other)
            }
            Cut::Private(one, friend) => {
                (from == *one && to != *friend) || (to == *one && from != *friend)
            }
            Cut::Link(link) => *link == (from, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: [u64; 5] = [1, 2, 3, 4, 5];

    #[test]
    fn cuts_take_the_links_that_they_name() {
        let split = Cut::Split(vec![1, 2]).links(&MEMBERS);
        assert_eq!(split.len(), 12);
        assert!(split.contains(&(1, 3)) && split.contains(&(3, 1)) && !split.contains(&(1, 2)));
        assert!(Cut::Deaf(3).links(&MEMBERS).iter().all(|(_, to)| *to == 3));
        assert!(Cut::Mute(3).links(&MEMBERS).iter().all(|(from, _)| *from == 3));
        let bridge = Cut::Bridge(3).links(&MEMBERS);
        assert_eq!(bridge.len(), 8);
        assert!(bridge.contains(&(1, 4)) && bridge.iter().all(|(a, b)| *a != 3 && *b != 3));
        let private = Cut::Private(1, 2).links(&MEMBERS);
        assert_eq!(private.len(), 6);
        assert!(private.contains(&(4, 1)) && !private.contains(&(1, 2)));
        assert_eq!(Cut::Link((2, 1)).links(&MEMBERS), BTreeSet::from([(2, 1)]));
    }

    #[test]
    fn a_link_is_whole_again_when_the_last_cut_is_mended() {
        let mut network = Network::new(Chance::new(1));
        let (one, all) = (Cut::Link((1, 2)).links(&MEMBERS), Cut::Deaf(2).links(&MEMBERS));
        network.cut(&one);
        network.cut(&all);
        network.mend(&one);
        assert!(network.send((1, 2), true).is_empty());
        network.mend(&all);
        assert_eq!(network.send((1, 2), true).len(), 1);
    }

    #[test]
    fn weather_loses_doubles_and_overtakes() {
        let mut network = Network::new(Chance::new(1));
        network.weather = Weather { lost_permille: 300, doubled_permille: 300, ..Weather::FAIR };
        let sent: Vec<_> = (0..1000).map(|_| network.send((1, 2), true)).collect();
        for times in 0..3 {
            let count = sent.iter().filter(|delays| delays.len() == times).count();
            assert!(count > 150, "{count} came {times} times");
        }
        assert!((0..1000).all(|_| network.send((1, 2), false).len() < 2));
    }
}
