//! Tests what happens if more task names are used than there are labels. This test has its own
//! process, because it fills the table of labels.

use clearlane_contention::TaskLabel;

#[test]
fn names_beyond_the_table_share_the_label_other() {
    let first = TaskLabel::named("name 0");
    let actors: Vec<TaskLabel> = (0..200).map(|n| TaskLabel::named(&format!("name {n}"))).collect();
    assert_eq!(actors[0], first);
    let own = actors.iter().filter(|actor| **actor != TaskLabel::OTHER).count();
    assert_eq!(own, TaskLabel::COUNT_MAX - 2, "two are reserved");
    assert_eq!(actors[199], TaskLabel::OTHER);
    assert_eq!(actors[199].name(), "other");
}
