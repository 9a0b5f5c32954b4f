//! Messages from one member to another. They arrive in order: a slow message delays the messages
//! after it.
//!
//! ```text
//!   sent       1   2 3          4
//!   drawn      └──────────▶1    │          each has its own delay, half a round trip,
//!                  └─▶2         │
//!                    └────▶3    └─▶4
//!   arrives                1 2 3   4       and arrives no earlier than the message before it
//! ```

use std::cell::Cell;

use crate::World;
use crate::signal::Queue;
use crate::spread::Times;

#[derive(Debug)]
pub(crate) struct Link<T> {
    world: World,
    /// The messages in flight, each with its time of arrival.
    pub(crate) on_its_way: Queue<(u64, T)>,
    round_trips: Times,
    last_ns: Cell<u64>,
}

impl<T> Link<T> {
    pub(crate) fn new(world: &World, round_trips: Times) -> Link<T> {
        let on_its_way = Queue::new(world);
        Link { world: world.clone(), on_its_way, round_trips, last_ns: Cell::new(0) }
    }

    /// Draws the delay of one message. It does not depend on the other messages of the link, so it
    /// does not keep their order.
    pub(crate) fn one_way_ns(&self) -> u64 {
        self.round_trips.next_ns() / 2
    }

    pub(crate) fn send(&self, message: T) {
        let arrives_ns = (self.world.now_ns() + self.one_way_ns()).max(self.last_ns.get());
        self.last_ns.set(arrives_ns);
        self.on_its_way.push((arrives_ns, message));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::Rng;
    use crate::spread::Spread;

    #[test]
    fn messages_arrive_in_order_and_after_half_a_round_trip() {
        let world = World::new();
        let spread = Spread { mean_ns: 2e6, p99_ns: Some(6e6) };
        let link = Rc::new(Link::new(&world, Times::new(spread, Rng::new(1, 1))));
        let arrived = Rc::new(RefCell::new(Vec::new()));
        let (receiver, its, clock) = (Rc::clone(&link), Rc::clone(&arrived), world.clone());
        world.spawn(async move {
            loop {
                for (at_ns, message) in receiver.on_its_way.drain().await {
                    clock.sleep_until(at_ns).await;
                    its.borrow_mut().push((message, clock.now_ns()));
                }
            }
        });
        for message in 0..1000_u64 {
            link.send(message);
            world.run(world.now_ns() + 1_000_000);
        }
        world.run(u64::MAX);
        let arrived = arrived.take();
        assert!(arrived.is_sorted() && arrived.len() == 1000, "{arrived:?}");
        // Each delay is 1 ms on average. But a slow message delays the messages after it.
        let waited_ns = arrived.iter().map(|(message, at_ns)| at_ns - message * 1_000_000);
        let mean = waited_ns.sum::<u64>() as f64 / 1000.0;
        assert!(mean > 1.02e6 && mean < 2e6, "{mean}");
    }
}
