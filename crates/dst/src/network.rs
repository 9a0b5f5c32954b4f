//! The links between the members: they lose, double, delay and overtake, and are cut.
//!
//! A link has one direction. What is sent over it arrives after a delay that is drawn for each
//! message, so a later one may overtake. A link that is *cut* lets nothing through, neither what is
//! sent meanwhile nor what would arrive.
//!
//! ```text
//!   split    {1 2} ╳ {3 4 5}      no message from one side to the other
//!   deaf     3 ◀╳─ all            messages of 3 arrive, and none arrives at 3
//!   mute     3 ─╳▶ all            messages arrive at 3, and none of 3 arrives
//!   bridge   {1 2} ─ 3 ─ {4 5}    only 3 has links to both sides
//! ```
//!
//! A forwarded proposal does not come twice, because it would be proposed twice: etcd relies on its
//! streams for that. Copies of stores are streams, too: pieces in order, until the stream breaks.

use std::collections::{BTreeMap, BTreeSet};

use crate::event_queue::{MILLISECOND, Micros};
use crate::rng::Rng;

/// A link: from which member, to which member.
pub type Link = (u64, u64);

/// How messages fare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkFaults {
    /// The usual delay, at most.
    pub delay_max: Micros,
    /// How many in a thousand take longer.
    pub slow_permille: u64,
    /// And how long these take, at most.
    pub slow_delay_max: Micros,
    /// How many in a thousand get lost.
    pub lost_permille: u64,
    /// How many in a thousand come twice.
    pub duplicated_permille: u64,
}

impl NetworkFaults {
    /// A healthy network in one data centre.
    pub const HEALTHY: NetworkFaults = NetworkFaults {
        delay_max: MILLISECOND,
        slow_permille: 0,
        slow_delay_max: 0,
        lost_permille: 0,
        duplicated_permille: 0,
    };

    /// Faults of any degree.
    pub fn random(chance: &mut Rng) -> NetworkFaults {
        NetworkFaults {
            delay_max: chance.log_uniform(200, 60 * MILLISECOND),
            slow_permille: chance.log_uniform(0, 100),
            slow_delay_max: chance.log_uniform(MILLISECOND, 3000 * MILLISECOND),
            lost_permille: chance.log_uniform(0, 250),
            duplicated_permille: chance.log_uniform(0, 250),
        }
    }
}

/// All links.
#[derive(Debug)]
pub struct Network {
    /// How messages fare now.
    pub faults: NetworkFaults,
    /// How many cuts go through a link.
    cut_counts: BTreeMap<Link, u32>,
    rng: Rng,
}

impl Network {
    /// Links without faults.
    pub fn new(chance: Rng) -> Network {
        Network { faults: NetworkFaults::HEALTHY, cut_counts: BTreeMap::new(), rng: chance }
    }

    /// The delays after which a message arrives: none if it is lost, two if it comes twice.
    pub fn send(&mut self, link: Link, may_double: bool) -> Vec<Micros> {
        if self.is_cut(link) || self.rng.permille(self.faults.lost_permille) {
            return Vec::new();
        }
        let doubled = self.rng.permille(self.faults.duplicated_permille) && may_double;
        let mut waits = vec![self.delay()];
        if doubled {
            // Some doubles come long after the first.
            waits.push(self.delay() + self.rng.log_uniform(100, 3000 * MILLISECOND));
        }
        waits
    }

    /// How long something takes that does arrive.
    pub fn delay(&mut self) -> Micros {
        let slow = self.rng.permille(self.faults.slow_permille);
        let longest = if slow { self.faults.slow_delay_max } else { self.faults.delay_max };
        self.rng.between(50, longest.max(100))
    }

    /// Whether nothing gets through.
    pub fn is_cut(&self, link: Link) -> bool {
        self.cut_counts.contains_key(&link)
    }

    /// Cuts links. Each needs as many mendings as it had cuts.
    pub fn cut(&mut self, links: &BTreeSet<Link>) {
        for link in links {
            *self.cut_counts.entry(*link).or_default() += 1;
        }
    }

    /// Mends links that were cut; those that are whole are left alone.
    pub fn restore(&mut self, links: &BTreeSet<Link>) {
        for link in links {
            if let Some(cuts) = self.cut_counts.get_mut(link) {
                *cuts -= 1;
            }
        }
        self.cut_counts.retain(|_, cuts| *cuts > 0);
    }

    /// Mends everything.
    pub fn restore_all(&mut self) {
        self.cut_counts.clear();
        self.faults = NetworkFaults::HEALTHY;
    }
}

/// Which links a cut takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Between these and all others, both ways.
    Split(Vec<u64>),
    /// All that lead to a member.
    NoInbound(u64),
    /// All that lead from a member.
    NoOutbound(u64),
    /// Between the two halves of the rest; only this member talks to both.
    Bridge(u64),
    /// Between the first and all others but the second.
    Pair(u64, u64),
    /// One link, one way.
    Link(Link),
}

impl Partition {
    /// Its links, among these members.
    pub fn links(&self, members: &[u64]) -> BTreeSet<Link> {
        let pairs = members.iter().flat_map(|from| members.iter().map(|to| (*from, *to)));
        pairs.filter(|(from, to)| from != to && self.includes(*from, *to, members)).collect()
    }

    fn includes(&self, from: u64, to: u64, members: &[u64]) -> bool {
        match self {
            Partition::Split(side) => side.contains(&from) != side.contains(&to),
            Partition::NoInbound(member) => to == *member,
            Partition::NoOutbound(member) => from == *member,
            Partition::Bridge(bridge) => {
                let side = |id: u64| {
                    let rest = members.iter().filter(|member| *member != bridge);
                    rest.clone().position(|member| *member == id).map(|at| at * 2 < rest.count())
                };
                matches!((side(from), side(to)), (Some(one), Some(other)) if one != other)
            }
            Partition::Pair(one, friend) => {
                (from == *one && to != *friend) || (to == *one && from != *friend)
            }
            Partition::Link(link) => *link == (from, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: [u64; 5] = [1, 2, 3, 4, 5];

    #[test]
    fn cuts_take_the_links_that_they_name() {
        let split = Partition::Split(vec![1, 2]).links(&MEMBERS);
        assert_eq!(split.len(), 12);
        assert!(split.contains(&(1, 3)) && split.contains(&(3, 1)) && !split.contains(&(1, 2)));
        assert!(Partition::NoInbound(3).links(&MEMBERS).iter().all(|(_, to)| *to == 3));
        assert!(Partition::NoOutbound(3).links(&MEMBERS).iter().all(|(from, _)| *from == 3));
        let bridge = Partition::Bridge(3).links(&MEMBERS);
        assert_eq!(bridge.len(), 8);
        assert!(bridge.contains(&(1, 4)) && bridge.iter().all(|(a, b)| *a != 3 && *b != 3));
        let private = Partition::Pair(1, 2).links(&MEMBERS);
        assert_eq!(private.len(), 6);
        assert!(private.contains(&(4, 1)) && !private.contains(&(1, 2)));
        assert_eq!(Partition::Link((2, 1)).links(&MEMBERS), BTreeSet::from([(2, 1)]));
    }

    #[test]
    fn a_link_is_whole_again_when_the_last_cut_is_mended() {
        let mut network = Network::new(Rng::new(1));
        let (one, all) =
            (Partition::Link((1, 2)).links(&MEMBERS), Partition::NoInbound(2).links(&MEMBERS));
        network.cut(&one);
        network.cut(&all);
        network.restore(&one);
        assert!(network.send((1, 2), true).is_empty());
        network.restore(&all);
        assert_eq!(network.send((1, 2), true).len(), 1);
    }

    #[test]
    fn weather_loses_doubles_and_overtakes() {
        let mut network = Network::new(Rng::new(1));
        network.faults = NetworkFaults {
            lost_permille: 300,
            duplicated_permille: 300,
            ..NetworkFaults::HEALTHY
        };
        let sent: Vec<_> = (0..1000).map(|_| network.send((1, 2), true)).collect();
        for times in 0..3 {
            let count = sent.iter().filter(|delays| delays.len() == times).count();
            assert!(count > 150, "{count} came {times} times");
        }
        assert!((0..1000).all(|_| network.send((1, 2), false).len() < 2));
    }
}
