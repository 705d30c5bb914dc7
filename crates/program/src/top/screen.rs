//! What `top` shows on a terminal, and the keys that change it.

use termion::event::Key;

use super::figures::Tree;
use super::minute::Minute;
use super::table;

/// The order of the trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Pid,
    Used,
    Faults,
}

/// The chosen tree and order.
#[derive(Debug)]
pub struct Screen {
    order: Order,
    /// The tree under the cursor, by its process id.
    chosen: Option<u32>,
    has_details: bool,
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    Continue,
    End,
}

impl Screen {
    pub fn new() -> Self {
        Screen { order: Order::Pid, chosen: None, has_details: false }
    }

    /// Sorts the trees, and chooses the first if the chosen one has ended.
    pub fn arrange(&mut self, trees: &mut [Tree]) {
        match self.order {
            Order::Pid => trees.sort_by_key(|tree| tree.pid),
            Order::Used => trees.sort_by_key(|tree| std::cmp::Reverse(tree.ram_used_bytes)),
            Order::Faults => {
                trees.sort_by(|one, other| other.faults_per_second.total_cmp(&one.faults_per_second))
            }
        }
        if !trees.iter().any(|tree| Some(tree.pid) == self.chosen) {
            self.chosen = trees.first().map(|tree| tree.pid);
        }
    }

    fn at(&self, trees: &[Tree]) -> usize {
        trees.iter().position(|tree| Some(tree.pid) == self.chosen).unwrap_or(0)
    }

    pub fn press(&mut self, key: Key, trees: &[Tree]) -> Wish {
        let at = self.at(trees);
        let mut choose = |at: usize| self.chosen = trees.get(at).or(trees.last()).map(|tree| tree.pid);
        match key {
            Key::Char('q') | Key::Ctrl('c') => return Wish::End,
            Key::Up | Key::Char('k') => choose(at.saturating_sub(1)),
            Key::Down | Key::Char('j') => choose(at + 1),
            Key::Char('\n' | 'd') => self.has_details = !self.has_details,
            Key::Char('s') => {
                self.order = match self.order {
                    Order::Pid => Order::Used,
                    Order::Used => Order::Faults,
                    Order::Faults => Order::Pid,
                }
            }
            _ => {}
        }
        Wish::Continue
    }

    /// Returns the lines of a terminal of this size, and the index of the chosen tree's.
    pub fn lines(
        &self,
        trees: &[Tree],
        minute: &Minute,
        (width, height): (u16, u16),
    ) -> (Vec<String>, Option<usize>) {
        let (width, height) = (usize::from(width), usize::from(height));
        let order = match self.order {
            Order::Pid => "process id",
            Order::Used => "used memory",
            Order::Faults => "faults",
        };
        let help = format!("q quit   Up/Down choose   Enter details   s sort (now by {order})");
        if trees.is_empty() {
            return (fitted(vec![table::NONE.to_owned(), help], width, height), None);
        }
        let at = self.at(trees);
        let mut details = if self.has_details { table::details(&trees[at], minute) } else { Vec::new() };
        // Titles, the help and at least one tree stay visible.
        details.truncate(height.saturating_sub(3));
        let room = height.saturating_sub(2 + details.len()).max(1);
        let first = (at + 1).saturating_sub(room);
        let mut lines = vec![table::titles()];
        lines.extend(trees.iter().skip(first).take(room).map(table::line));
        let chosen = 1 + at - first;
        lines.extend(details);
        lines.push(help);
        (fitted(lines, width, height), Some(chosen))
    }
}

fn fitted(lines: Vec<String>, width: usize, height: usize) -> Vec<String> {
    let cut = |line: String| line.chars().take(width).collect();
    lines.into_iter().take(height).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trees(count: u32) -> Vec<Tree> {
        let tree = |pid: u32| Tree {
            pid,
            ram_used_bytes: u64::from(pid % 7) << 20,
            faults_per_second: f64::from(pid % 5),
            ..Tree::default()
        };
        (1..=count).map(tree).collect()
    }

    #[test]
    fn every_choice_is_visible_in_24_lines_of_80_columns() {
        let (mut screen, minute, mut trees) = (Screen::new(), Minute::default(), trees(40));
        for has_details in [false, true] {
            screen.has_details = has_details;
            for pid in 1..=40 {
                screen.chosen = Some(pid);
                screen.arrange(&mut trees);
                let (lines, chosen) = screen.lines(&trees, &minute, (80, 24));
                assert!(
                    lines.len() == 24 && lines.iter().all(|line| line.chars().count() <= 80),
                    "{lines:?}"
                );
                assert!(lines[chosen.unwrap()].trim_start().starts_with(&format!("{pid} ")), "{lines:?}");
                assert!(lines[23].starts_with("q quit"));
                assert_eq!(lines.iter().any(|line| line.starts_with("faults/s")), has_details);
            }
        }
        assert!(screen.lines(&trees, &minute, (1, 1)).0.len() == 1);
        assert!(screen.lines(&[], &minute, (80, 24)).0[0].starts_with("No program runs"));
    }

    #[test]
    fn keys_choose_sort_and_end() {
        let (mut screen, mut trees) = (Screen::new(), trees(9));
        screen.arrange(&mut trees);
        assert_eq!(screen.chosen, Some(1));
        for (key, chosen) in [(Key::Down, 2), (Key::Down, 3), (Key::Up, 2), (Key::Char('k'), 1), (Key::Up, 1)]
        {
            assert_eq!(screen.press(key, &trees), Wish::Continue);
            assert_eq!(screen.chosen, Some(chosen));
        }
        screen.press(Key::Char('s'), &trees);
        screen.arrange(&mut trees);
        assert!(trees.is_sorted_by_key(|tree| std::cmp::Reverse(tree.ram_used_bytes)));
        screen.press(Key::Char('s'), &trees);
        screen.arrange(&mut trees);
        assert!(trees.is_sorted_by(|one, other| one.faults_per_second >= other.faults_per_second));
        screen.press(Key::Char('\n'), &trees);
        assert!(screen.has_details);
        trees.retain(|tree| tree.pid != 1);
        screen.arrange(&mut trees);
        assert_eq!(screen.chosen, Some(trees[0].pid), "the chosen tree has ended");
        assert_eq!(screen.press(Key::Char('q'), &trees), Wish::End);
        assert_eq!(screen.press(Key::Ctrl('c'), &trees), Wish::End);
    }
}
