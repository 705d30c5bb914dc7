//! Many instances of generic collections: a compiler's arena.
use std::collections::{BTreeMap, HashMap};

macro_rules! shapes {
    ($($name:ident $n:literal),*) => { $(
        #[derive(Clone, Debug, PartialEq, Default)]
        pub struct $name { pub keys: BTreeMap<[u8; $n], Vec<String>>, pub sizes: HashMap<String, [u16; $n]> , pub text: String }
        impl $name {
            pub fn run(&mut self, word: &str) -> usize {
                self.keys.entry([0; $n]).or_default().push(word.to_owned());
                self.sizes.insert(format!("{word}-{}", $n), [$n; $n]);
                let mut all: Vec<_> = self.sizes.iter().map(|(k, v)| (v[0], k.len(), k.clone())).collect();
                all.sort();
                self.text = all.iter().map(|(a, b, c)| format!("{a}{b}{c}")).collect();
                self.keys.range([0; $n]..).map(|(_, v)| v.len()).sum::<usize>() + self.text.len()
            }
        }
    )* };
}
shapes!(A 1, B 2, C 3, D 4, E 5, F 6, G 7, H 8, I 9, J 10, K 11, L 12, M 13, N 14, O 15, P 16, Q 17, R 18, S 19, T 20);
