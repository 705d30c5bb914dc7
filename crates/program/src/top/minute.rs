//! The last minute as lines of small bars.

use super::figures::Tree;
use crate::size::Size;

const SECONDS: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Clone, Copy)]
struct Look {
    pid: u32,
    /// Start and end, in seconds.
    from: f64,
    to: f64,
    used: f64,
    out: f64,
    faults: f64,
}

#[derive(Default)]
pub struct Minute {
    looks: Vec<Look>,
    now: f64,
}

impl Minute {
    /// Adds a sample that covers the `seconds` before `now`, and drops those older than a minute.
    pub fn add(&mut self, trees: &[Tree], now: f64, seconds: f64) {
        self.now = now;
        self.looks.retain(|look| look.to > now - SECONDS as f64);
        self.looks.extend(trees.iter().map(|tree| Look {
            pid: tree.pid,
            from: now - seconds,
            to: now,
            used: tree.ram_used_bytes as f64,
            out: tree.zswpout_per_second,
            faults: tree.faults_per_second,
        }));
    }

    /// Returns a tree's three lines, at most 79 columns wide.
    pub fn lines(&self, tree: &Tree) -> Vec<String> {
        let most = |of: fn(&Look) -> f64| self.of(tree.pid).map(of).fold(0.0, f64::max);
        let bars = |of, top| self.bars(tree.pid, of, top);
        let (used, out, faults) = (most(|look| look.used), most(|look| look.out), most(|look| look.faults));
        let budget = tree.ram_limit_bytes as f64;
        vec![
            format!("used     {} {}", bars(|look| look.used, used.max(budget)), Size::from(used as u64)),
            format!("out/s    {} {out:.0}", bars(|look| look.out, out)),
            format!("faults/s {} {faults:.0}", bars(|look| look.faults, faults)),
        ]
    }

    fn of(&self, pid: u32) -> impl Iterator<Item = &Look> {
        self.looks.iter().filter(move |look| look.pid == pid)
    }

    /// One bar a second, now at the right; blank for seconds without a sample.
    fn bars(&self, pid: u32, of: fn(&Look) -> f64, top: f64) -> String {
        let bar = |column: usize| {
            let to = self.now - (SECONDS - 1 - column) as f64;
            let within = self.of(pid).filter(|look| look.from < to && look.to > to - 1.0);
            within.map(of).reduce(f64::max).map_or(' ', |value| {
                let share = if top > 0.0 { (value / top).clamp(0.0, 1.0) } else { 0.0 };
                BARS[(share * (BARS.len() - 1) as f64).ceil() as usize]
            })
        };
        (0..SECONDS).map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(pid: u32, used: u64, faults_per_second: f64) -> Tree {
        let (ram_limit_bytes, ram_used_bytes) = (100 << 20, used << 20);
        Tree { pid, ram_limit_bytes, ram_used_bytes, faults_per_second, ..Tree::default() }
    }

    #[test]
    fn the_last_minute_is_drawn_and_older_looks_are_forgotten() {
        let mut minute = Minute::default();
        for second in 0..200 {
            minute.add(&[tree(7, if second < 190 { 50 } else { 100 }, 0.0)], f64::from(second), 1.0);
        }
        assert!(minute.looks.len() <= SECONDS);
        let lines = minute.lines(&tree(7, 100, 0.0));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!((lines[0].matches('▅').count(), lines[0].matches('█').count()), (50, 10), "{lines:?}");
        assert!(lines[0].ends_with("█ 100 MiB"), "{lines:?}");
        assert_eq!(lines[2].matches('▁').count(), 60, "nothing is the lowest bar: {lines:?}");
    }

    #[test]
    fn looks_of_any_width_fill_the_time_they_cover() {
        let bars = |interval: f64, looks: u32| {
            let mut minute = Minute::default();
            for look in 1..=looks {
                minute.add(&[tree(7, 1, 1.0)], f64::from(look) * interval, interval);
            }
            minute.bars(7, |look| look.faults, 1.0)
        };
        assert_eq!(bars(5.0, 4).matches('█').count(), 20);
        assert_eq!(bars(0.05, 40).matches('█').count(), 2);
        assert_eq!(bars(3600.0, 3).matches('█').count(), 60);
    }

    #[test]
    fn trees_have_lines_of_their_own() {
        let mut minute = Minute::default();
        minute.add(&[tree(7, 1, 10.0), tree(8, 1, 0.0)], 1.0, 1.0);
        let faults = |pid| minute.lines(&tree(pid, 1, 0.0))[2].clone();
        assert!(faults(7).ends_with(" 10") && faults(8).ends_with(" 0"), "{} {}", faults(7), faults(8));
    }
}
