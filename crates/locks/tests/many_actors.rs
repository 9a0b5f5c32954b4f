//! More names than actors: in a process of its own, because it uses the table up.

use clearlane_locks::Actor;

#[test]
fn names_beyond_the_table_share_the_actor_other() {
    let first = Actor::named("name 0");
    let actors: Vec<Actor> = (0..200).map(|n| Actor::named(&format!("name {n}"))).collect();
    assert_eq!(actors[0], first);
    let own = actors.iter().filter(|actor| **actor != Actor::OTHER).count();
    assert_eq!(own, Actor::MAX - 2, "two are reserved");
    assert_eq!(actors[199], Actor::OTHER);
    assert_eq!(actors[199].name(), "other");
}
