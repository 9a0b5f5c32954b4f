//! Dropping a tree in steps.
//!
//! Dropping the last pointer to a root drops every node below it, all at once. Here the nodes that
//! are to be dropped are on a list, and each step takes a few. A node that another snapshot still
//! has stays, and what lies below it.

use std::sync::Arc;

use super::node::Node;

/// A tree that is being dropped.
#[derive(Debug)]
pub struct Dismantling {
    waiting: Vec<Node>,
}

impl Dismantling {
    pub(super) fn of(root: Node) -> Dismantling {
        Dismantling { waiting: vec![root] }
    }

    /// Drops up to `nodes_max` nodes. Returns whether those were all.
    pub fn step(&mut self, nodes_max: usize) -> bool {
        for _ in 0..nodes_max {
            let Some(node) = self.waiting.pop() else { return true };
            // The children of a node that no other tree has would be dropped with it: put them on
            // the list.
            if let Node::Inner(mut children) = node
                && let Some(children) = Arc::get_mut(&mut children)
            {
                self.waiting
                    .extend(children.iter_mut().map(|child| std::mem::take(&mut child.node)));
            }
        }
        self.waiting.is_empty()
    }
}
