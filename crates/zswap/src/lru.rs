//! Leaves by age: one doubly linked list a group and node, oldest first.

use crate::config::NODES_MAX;
use crate::tree::{Slabs, Tree};

/// The ends of a list, by name; 0 when empty.
#[derive(Default, Clone, Copy)]
struct List {
    oldest: u32,
    youngest: u32,
    leaves: u32,
}

/// A group's lists.
#[derive(Default)]
pub(crate) struct Lru {
    lists: [List; NODES_MAX],
}

impl Lru {
    /// Leaves on the node's list.
    pub(crate) fn leaves(&self, node: usize) -> u32 {
        self.lists[node].leaves
    }

    /// The oldest leaf of the node.
    pub(crate) fn oldest(&self, node: usize) -> Option<u32> {
        let name = self.lists[node].oldest;
        (name != 0).then_some(name)
    }

    /// Puts a leaf at the young end of the node's list, taking it from where it was.
    pub(crate) fn touch(&mut self, tree: &mut Tree, slabs: &Slabs, name: u32, node: usize) {
        if self.lists[node].youngest == name {
            return;
        }
        self.remove(tree, slabs, name);
        let list = &mut self.lists[node];
        let before = std::mem::replace(&mut list.youngest, name);
        list.leaves += 1;
        if before == 0 {
            list.oldest = name;
        } else {
            tree.leaf(slabs, before).next = name;
        }
        let leaf = tree.leaf(slabs, name);
        debug_assert!(leaf.list == 0);
        (leaf.prev, leaf.next, leaf.list) = (before, 0, node as u8 + 1);
    }

    /// Takes a leaf from its list, if it is on one.
    pub(crate) fn remove(&mut self, tree: &mut Tree, slabs: &Slabs, name: u32) {
        let leaf = tree.leaf(slabs, name);
        let (prev, next, list) = (leaf.prev, leaf.next, leaf.list);
        if list == 0 {
            debug_assert!(prev == 0 && next == 0);
            return;
        }
        (leaf.prev, leaf.next, leaf.list) = (0, 0, 0);
        let list = &mut self.lists[list as usize - 1];
        list.leaves -= 1;
        match prev {
            0 => {
                debug_assert!(list.oldest == name);
                list.oldest = next;
            }
            prev => {
                debug_assert!(tree.leaf(slabs, prev).next == name);
                tree.leaf(slabs, prev).next = next;
            }
        }
        match next {
            0 => {
                debug_assert!(list.youngest == name);
                list.youngest = prev;
            }
            next => {
                debug_assert!(tree.leaf(slabs, next).prev == name);
                tree.leaf(slabs, next).prev = prev;
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::slab::Slab;
    use crate::tree::NODE_BYTES;
    use std::collections::VecDeque;

    #[test]
    fn random_touches_agree_with_a_queue() {
        let slabs = Slabs { leaves: Slab::new(160, 7, 1 << 12), nodes: Slab::new(NODE_BYTES, 4, 1 << 8) };
        let (mut tree, mut lru) = (Tree::default(), Lru::default());
        let names: Vec<u32> = (0..40).map(|key| tree.make(&slabs, key).unwrap()).collect();
        let mut models = [VecDeque::new(), VecDeque::new()];
        let mut seed = 3u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let name = names[(seed >> 40) as usize % 40];
            let node = (seed >> 33) as usize % 2;
            models.iter_mut().for_each(|model| model.retain(|&other| other != name));
            if seed >> 60 == 0 {
                lru.remove(&mut tree, &slabs, name);
            } else {
                lru.touch(&mut tree, &slabs, name, node);
                models[node].push_back(name);
            }
            for (node, model) in models.iter().enumerate() {
                assert_eq!(lru.oldest(node), model.front().copied());
                assert_eq!(lru.leaves(node) as usize, model.len());
            }
        }
    }
}
