//! A group's leaves by key: a radix tree of eight levels, 16 ways each, of names.
//!
//! Programs spread their heaps: V8's chunks of 256 KiB are scattered over some GiB. A lowest node
//! is a cache line that covers 1 MiB; with 256 ways, nodes took 40 bytes a page of V8's.
//!
//! The tree owns no memory: its nodes and leaves lie in the store's slabs. All calls hold the lock
//! of the tree's group, which `&mut self` stands for.

use std::io;

use crate::leaf::Leaf;
use crate::slab::Slab;

const LEVELS: u32 = 8;
const WAY_BITS: u32 = 4;
const WAYS: usize = 1 << WAY_BITS;

/// Index of a key's child in a node of `level`, 0 for the lowest.
fn way_of(key_high: u32, level: u32) -> usize {
    (key_high >> (WAY_BITS * level)) as usize % WAYS
}

/// Children by name, 0 for none.
type Node = [u32; WAYS];
pub(crate) const NODE_BYTES: usize = size_of::<Node>();

/// Most nodes of a tree whose leaves have neighbouring keys: each level has a sixteenth of the one
/// below, and two partly used nodes.
pub(crate) fn nodes_max(leaves: usize) -> usize {
    leaves / (WAYS - 1) + 2 * LEVELS as usize
}

pub(crate) struct Slabs {
    pub(crate) leaves: Slab,
    pub(crate) nodes: Slab,
}

#[derive(Default)]
pub(crate) struct Tree {
    root: u32,
    /// The lowest node used last, 0 for none, and its key bits above: finds neighbours in one step.
    last_node: u32,
    last_above: u32,
}

impl Tree {
    /// SAFETY of the two accessors: a name found in this tree is an item linked here and not freed,
    /// it belongs to the tree alone, and the borrow of the tree makes the access exclusive.
    fn node<'a>(&'a mut self, slabs: &'a Slabs, name: u32) -> &'a mut Node {
        // SAFETY: see above; zeroes and names are valid nodes, and blocks are page-aligned.
        unsafe { &mut *slabs.nodes.get(name).cast::<Node>() }
    }

    /// The leaf of a name from [`Tree::find`], [`Tree::make`], [`Tree::next`] or an LRU list.
    pub(crate) fn leaf<'a>(&'a mut self, slabs: &'a Slabs, name: u32) -> &'a mut Leaf {
        // SAFETY: see above; strides are multiples of eight.
        unsafe { &mut *slabs.leaves.get(name).cast::<Leaf>() }
    }

    /// The leaf's checksums, if the slab has room for them.
    pub(crate) fn sums<'a>(&'a mut self, slabs: &'a Slabs, name: u32) -> &'a mut [u32; 16] {
        // SAFETY: see above; only called when the stride is that of leaves with sums.
        unsafe { &mut *slabs.leaves.get(name).add(crate::leaf::LEAF_BYTES).cast::<[u32; 16]>() }
    }

    pub(crate) fn find(&mut self, slabs: &Slabs, key_high: u32) -> Option<u32> {
        if self.last_node != 0 && self.last_above == key_high >> WAY_BITS {
            let node = self.last_node;
            let leaf = self.node(slabs, node)[way_of(key_high, 0)];
            return (leaf != 0).then_some(leaf);
        }
        let mut name = self.root;
        for level in (1..LEVELS).rev() {
            if name == 0 {
                return None;
            }
            name = self.node(slabs, name)[way_of(key_high, level)];
        }
        if name == 0 {
            return None;
        }
        (self.last_node, self.last_above) = (name, key_high >> WAY_BITS);
        let leaf = self.node(slabs, name)[way_of(key_high, 0)];
        (leaf != 0).then_some(leaf)
    }

    /// The leaf of a key, made empty if it did not exist. ENOMEM leaves the tree unchanged.
    pub(crate) fn make(&mut self, slabs: &Slabs, key_high: u32) -> io::Result<u32> {
        if let Some(leaf) = self.find(slabs, key_high) {
            return Ok(leaf);
        }
        let made = self.make_path(slabs, key_high);
        if made.is_err() {
            self.prune(slabs, key_high);
        }
        made
    }

    fn make_path(&mut self, slabs: &Slabs, key_high: u32) -> io::Result<u32> {
        if self.root == 0 {
            self.root = slabs.nodes.alloc()?;
        }
        let mut name = self.root;
        for level in (1..LEVELS).rev() {
            let way = way_of(key_high, level);
            let child = self.node(slabs, name)[way];
            name = if child != 0 {
                child
            } else {
                let made = slabs.nodes.alloc()?;
                self.node(slabs, name)[way] = made;
                made
            };
        }
        let leaf = slabs.leaves.alloc()?;
        self.node(slabs, name)[way_of(key_high, 0)] = leaf;
        self.leaf(slabs, leaf).key_high = key_high;
        (self.last_node, self.last_above) = (name, key_high >> WAY_BITS);
        Ok(leaf)
    }

    /// Removes and frees a leaf, which is empty and on no list.
    pub(crate) fn remove(&mut self, slabs: &Slabs, key_high: u32) {
        let leaf = self.find(slabs, key_high).expect("the leaf is in the tree");
        {
            let leaf = self.leaf(slabs, leaf);
            assert!(leaf.present() == 0 && leaf.busy == 0 && leaf.list == 0);
        }
        let node = self.last_node;
        self.node(slabs, node)[way_of(key_high, 0)] = 0;
        // SAFETY: unlinked above under the group's lock, so it cannot be found.
        unsafe { slabs.leaves.free(leaf) };
        self.prune(slabs, key_high);
    }

    /// Frees the childless nodes on the way to a key.
    fn prune(&mut self, slabs: &Slabs, key_high: u32) {
        let root = self.root;
        if root != 0 && self.prune_below(slabs, root, LEVELS - 1, key_high) {
            self.root = 0;
        }
    }

    /// Frees a node that is childless once those below it are; returns whether it was.
    fn prune_below(&mut self, slabs: &Slabs, name: u32, level: u32, key_high: u32) -> bool {
        let way = way_of(key_high, level);
        let child = self.node(slabs, name)[way];
        if level > 0 && child != 0 {
            if !self.prune_below(slabs, child, level - 1, key_high) {
                return false;
            }
            self.node(slabs, name)[way] = 0;
        }
        // A node is a cache line: scanning it is faster than counting its children.
        if self.node(slabs, name).iter().fold(0, |any, &child| any | child) != 0 {
            return false;
        }
        if self.last_node == name {
            self.last_node = 0;
        }
        // SAFETY: it has no children, and the caller unlinks it.
        unsafe { slabs.nodes.free(name) };
        true
    }

    /// The first leaf whose key is at least `from`.
    pub(crate) fn next(&mut self, slabs: &Slabs, from: u32) -> Option<(u32, u32)> {
        if self.root == 0 {
            return None;
        }
        let root = self.root;
        self.next_below(slabs, root, LEVELS - 1, 0, from)
    }

    fn next_below(
        &mut self,
        slabs: &Slabs,
        name: u32,
        level: u32,
        above: u32,
        from: u32,
    ) -> Option<(u32, u32)> {
        let shift = WAY_BITS * level;
        let first = if above > from >> shift >> WAY_BITS { 0 } else { way_of(from, level) };
        for way in first..WAYS {
            let child = self.node(slabs, name)[way];
            if child == 0 {
                continue;
            }
            let prefix = above << WAY_BITS | way as u32;
            if level == 0 {
                return Some((prefix, child));
            }
            // Below a later sibling every key counts.
            let from = if prefix > from >> shift { prefix << shift } else { from };
            if let Some(found) = self.next_below(slabs, child, level - 1, prefix, from) {
                return Some(found);
            }
        }
        None
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use sys::PAGE_SIZE;

    fn slabs() -> Slabs {
        Slabs { leaves: Slab::new(160, 7, 1 << 16), nodes: Slab::new(NODE_BYTES, 4, 1 << 12) }
    }

    #[test]
    fn random_keys_agree_with_an_ordered_map() {
        let slabs = slabs();
        let mut tree = Tree::default();
        let mut model = BTreeMap::new();
        let mut seed = 7u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as u32
        };
        for _ in 0..20_000 {
            // Distant clusters, with neighbours within.
            let key = [0, 0x5500_0000, 0x7FFF_FF00, 0xFFFF_FFF0][random() as usize % 4]
                | ((random() % 700) & !0x10);
            match random() % 3 {
                0 => {
                    let leaf = tree.make(&slabs, key).unwrap();
                    assert_eq!(*model.entry(key).or_insert(leaf), leaf);
                }
                1 if model.contains_key(&key) => {
                    tree.remove(&slabs, key);
                    model.remove(&key);
                }
                _ => {
                    assert_eq!(tree.find(&slabs, key), model.get(&key).copied());
                    let next = model.range(key..).next().map(|(key, leaf)| (*key, *leaf));
                    assert_eq!(tree.next(&slabs, key), next);
                }
            }
        }
        while let Some((key, _)) = tree.next(&slabs, 0) {
            tree.remove(&slabs, key);
        }
        assert_eq!(tree.root, 0);
        assert_eq!((slabs.leaves.bytes(), slabs.nodes.bytes()), (0, 0));
    }

    #[test]
    fn neighbouring_keys_need_no_more_nodes_than_room_is_made_for() {
        for first in [0, 1, 15, 255, 0x0FFF, 0x7FFF_FFFF] {
            for leaves in [1usize, 2, 16, 17, 255, 256, 4096, 5000] {
                let slabs =
                    Slabs { leaves: Slab::new(160, 7, 1 << 16), nodes: Slab::new(NODE_BYTES, 0, 1 << 12) };
                let mut tree = Tree::default();
                for key in 0..leaves as u32 {
                    tree.make(&slabs, first + key).unwrap();
                }
                let nodes = slabs.nodes.bytes() as usize / PAGE_SIZE;
                assert!(nodes <= nodes_max(leaves), "{leaves} leaves from {first}: {nodes} nodes");
                assert!(nodes >= leaves.div_ceil(WAYS), "a node is counted as more than one");
            }
        }
    }

    #[test]
    fn no_memory_at_any_step_leaves_no_node_behind() {
        for allowed in 0..=LEVELS {
            for first in [false, true] {
                let slabs = slabs();
                let mut tree = Tree::default();
                if first {
                    tree.make(&slabs, 0x0101_0101).unwrap();
                }
                let before = (slabs.leaves.bytes(), slabs.nodes.bytes());
                // The root and the node below it exist.
                let nodes = if first { allowed.min(LEVELS - 2) } else { allowed };
                slabs.nodes.fail_after(Some(nodes));
                slabs.leaves.fail_after(Some(0));
                assert!(tree.make(&slabs, 0x0201_0101).is_err());
                slabs.nodes.fail_after(None);
                slabs.leaves.fail_after(None);
                assert_eq!((slabs.leaves.bytes(), slabs.nodes.bytes()), before);
                assert_eq!(tree.find(&slabs, 0x0201_0101), None);
                assert_eq!(tree.find(&slabs, 0x0101_0101).is_some(), first);
            }
        }
    }
}
