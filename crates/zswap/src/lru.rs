//! Leaves by age: one doubly linked list per group and node, oldest first.

use crate::config::NODES_MAX;
use crate::tree::{Slabs, Tree};

/// The ends of a list, by name; 0 if empty.
#[derive(Default, Clone, Copy)]
struct List {
    oldest: u32,
    youngest: u32,
    leaves: u32,
    /// The youngest leaf that had its promotion turn, as all older and no younger ones had.
    tried: u32,
    tried_leaves: u32,
}

#[derive(Default)]
pub(crate) struct Lru {
    lists: [List; NODES_MAX],
}

impl Lru {
    pub(crate) fn leaves(&self, node: usize) -> u32 {
        self.lists[node].leaves
    }

    pub(crate) fn oldest(&self, node: usize) -> Option<u32> {
        let name = self.lists[node].oldest;
        (name != 0).then_some(name)
    }

    pub(crate) fn tried_leaves(&self, node: usize) -> u32 {
        self.lists[node].tried_leaves
    }

    /// Gives the node's oldest leaf without a promotion turn its turn.
    pub(crate) fn try_next(&mut self, tree: &mut Tree, slabs: &Slabs, node: usize) -> Option<u32> {
        let list = &mut self.lists[node];
        let name = match list.tried {
            0 => list.oldest,
            tried => tree.leaf(slabs, tried).next,
        };
        if name == 0 {
            return None;
        }
        tree.leaf(slabs, name).tried = true;
        list.tried = name;
        list.tried_leaves += 1;
        Some(name)
    }

    /// Clears a leaf's promotion turn, when it leaves its position or gets other pages.
    fn untry(&mut self, tree: &mut Tree, slabs: &Slabs, name: u32) {
        let leaf = tree.leaf(slabs, name);
        if !std::mem::take(&mut leaf.tried) {
            return;
        }
        let (prev, list) = (leaf.prev, &mut self.lists[leaf.list as usize - 1]);
        list.tried_leaves -= 1;
        if list.tried == name {
            list.tried = prev;
        }
    }

    pub(crate) fn touch(&mut self, tree: &mut Tree, slabs: &Slabs, name: u32, node: usize) {
        if self.lists[node].youngest == name {
            self.untry(tree, slabs, name);
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

    pub(crate) fn remove(&mut self, tree: &mut Tree, slabs: &Slabs, name: u32) {
        self.untry(tree, slabs, name);
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
        // Names, and whether each had its turn.
        let mut models = [VecDeque::new(), VecDeque::new()];
        let mut seed = 3u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let name = names[(seed >> 40) as usize % 40];
            let node = (seed >> 33) as usize % 2;
            if seed >> 62 == 3 {
                let next = models[node].iter_mut().find(|(_, tried)| !tried);
                assert_eq!(lru.try_next(&mut tree, &slabs, node), next.as_ref().map(|(name, _)| *name));
                next.into_iter().for_each(|(_, tried)| *tried = true);
            } else {
                models.iter_mut().for_each(|model| model.retain(|&(other, _)| other != name));
                if seed >> 60 == 0 {
                    lru.remove(&mut tree, &slabs, name);
                } else {
                    lru.touch(&mut tree, &slabs, name, node);
                    models[node].push_back((name, false));
                }
            }
            for (node, model) in models.iter().enumerate() {
                assert_eq!(lru.oldest(node), model.front().map(|(name, _)| *name));
                assert_eq!(lru.leaves(node) as usize, model.len());
                let tried = model.iter().filter(|(_, tried)| *tried).count();
                assert_eq!(lru.tried_leaves(node) as usize, tried);
            }
        }
    }
}
