//! The links between the members. They lose, duplicate, delay and reorder messages, and can be cut.
//!
//! A link has one direction. Each message has its own random delay, so a message may overtake an
//! earlier one. A *cut* link drops messages when they are sent and when they would arrive.
//!
//! ```text
//!   split    {1 2} ╳ {3 4 5}      no message from one side to the other
//!   deaf     3 ◀╳─ all            messages of 3 arrive, and none arrives at 3
//!   mute     3 ─╳▶ all            messages arrive at 3, and none of 3 arrives
//!   bridge   {1 2} ─ 3 ─ {4 5}    only 3 has links to both sides
//!   pair     {1} ╳ {3 4 5}        1 has links only to 2
//!   link     1 ─╳▶ 2              one link in one direction
//! ```
//!
//! A forwarded proposal is never duplicated, because the leader would propose it twice. etcd also
//! relies on this property of its streams. Snapshots use streams as well: their chunks arrive in
//! order until the stream breaks.

use std::collections::BTreeMap;

use crate::event_queue::{MILLISECOND, Micros};
use crate::rng::Rng;

/// The sender and the receiver.
pub type Link = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkFaults {
    /// Upper bound of the usual delay.
    pub delay_max: Micros,
    /// Number of messages per thousand that have a longer delay.
    pub slow_permille: u64,
    /// Upper bound of the longer delay.
    pub slow_delay_max: Micros,
    pub lost_permille: u64,
    pub duplicated_permille: u64,
}

impl NetworkFaults {
    pub const HEALTHY: NetworkFaults = NetworkFaults {
        delay_max: MILLISECOND,
        slow_permille: 0,
        slow_delay_max: 0,
        lost_permille: 0,
        duplicated_permille: 0,
    };

    pub fn random(rng: &mut Rng) -> NetworkFaults {
        NetworkFaults {
            delay_max: rng.log_uniform(200, 60 * MILLISECOND),
            slow_permille: rng.log_uniform(0, 100),
            slow_delay_max: rng.log_uniform(MILLISECOND, 3000 * MILLISECOND),
            lost_permille: rng.log_uniform(0, 250),
            duplicated_permille: rng.log_uniform(0, 250),
        }
    }
}

#[derive(Debug)]
pub struct Network {
    pub faults: NetworkFaults,
    /// A link is cut while its count is above 0.
    cut_counts: BTreeMap<Link, u32>,
    rng: Rng,
}

impl Network {
    pub fn new(rng: Rng) -> Network {
        Network { faults: NetworkFaults::HEALTHY, cut_counts: BTreeMap::new(), rng }
    }

    /// Returns the delay of each arrival. The list is empty if the message is lost, and has two
    /// delays if it is duplicated. A message is duplicated only if `may_double` is true.
    pub fn send(&mut self, link: Link, may_double: bool) -> Vec<Micros> {
        if self.is_cut(link) || self.rng.permille(self.faults.lost_permille) {
            return Vec::new();
        }
        let doubled = self.rng.permille(self.faults.duplicated_permille) && may_double;
        let mut waits = vec![self.delay()];
        if doubled {
            // Some duplicates arrive long after the first copy.
            waits.push(self.delay() + self.rng.log_uniform(100, 3000 * MILLISECOND));
        }
        waits
    }

    pub fn delay(&mut self) -> Micros {
        let slow = self.rng.permille(self.faults.slow_permille);
        let longest = if slow { self.faults.slow_delay_max } else { self.faults.delay_max };
        self.rng.between(50, longest.max(100))
    }

    pub fn is_cut(&self, link: Link) -> bool {
        self.cut_counts.contains_key(&link)
    }

    /// Cuts links. A link that is cut twice must be restored twice.
    pub fn cut(&mut self, links: &[Link]) {
        for link in links {
            *self.cut_counts.entry(*link).or_default() += 1;
        }
    }

    /// Restores links. Skips links that are not cut.
    pub fn restore(&mut self, links: &[Link]) {
        for link in links {
            if let Some(cuts) = self.cut_counts.get_mut(link) {
                *cuts -= 1;
            }
        }
        self.cut_counts.retain(|_, cuts| *cuts > 0);
    }

    pub fn restore_all(&mut self) {
        self.cut_counts.clear();
        self.faults = NetworkFaults::HEALTHY;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Cuts the links between these members and all others, in both directions.
    Split(Vec<u64>),
    /// Cuts all links to this member.
    NoInbound(u64),
    /// Cuts all links from this member.
    NoOutbound(u64),
    /// Cuts the links between the two halves of the other members. This member reaches both halves.
    Bridge(u64),
    /// Cuts the links between the first member and all others except the second.
    Pair(u64, u64),
    /// Cuts one link, in one direction.
    Link(Link),
}

impl Partition {
    pub fn links(&self, members: &[u64]) -> Vec<Link> {
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
        assert_eq!(Partition::Link((2, 1)).links(&MEMBERS), [(2, 1)]);
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
