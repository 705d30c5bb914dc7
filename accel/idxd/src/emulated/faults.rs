//! Faults by seed: a job's fault is a function of the seed, the queue and the job's number in it.

use std::str::FromStr;

/// The likelihood of each fault.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// The job is done but its completion record never written.
    pub lost: f64,
    /// A page fault at the job's source, destination or AECS.
    pub page: f64,
    /// A hardware error instead of a result.
    pub hardware: f64,
    /// The device halts until a reset: all its jobs are lost.
    pub halt: f64,
    /// The queue is disabled at this submission; its jobs finish.
    pub disable: f64,
    /// A shared queue refuses this submission and the next [`RETRY_STORM`].
    pub retry: f64,
    /// The engine takes [`SLOW_NS`] longer.
    pub slow: f64,
}

/// Submissions refused in a retry storm.
pub const RETRY_STORM: u32 = 32;
/// How much longer a slow engine takes.
pub const SLOW_NS: u64 = 200_000;

/// A drawn fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Lost,
    Page(At),
    Hardware,
    Halt,
    Disable,
    Retry,
    Slow,
}

/// Where a job meets a page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Source,
    Destination,
    /// The AECS, or the source when none is read.
    Source2,
}

impl Faults {
    fn named(&mut self) -> [(&'static str, &mut f64); 7] {
        [
            ("lost", &mut self.lost),
            ("page", &mut self.page),
            ("hardware", &mut self.hardware),
            ("halt", &mut self.halt),
            ("disable", &mut self.disable),
            ("retry", &mut self.retry),
            ("slow", &mut self.slow),
        ]
    }

    /// Draws for job `number` of queue `queue` (numbered over all devices).
    pub(crate) fn draw(&self, seed: u64, queue: u64, number: u64) -> Fault {
        if *self == Self::default() {
            return Fault::None;
        }
        let random = mix(seed ^ mix(queue ^ mix(number)));
        // 53 bits make a fraction, the lowest decide where the page is missing.
        let mut at = (random >> 11) as f64 / (1u64 << 53) as f64;
        let page =
            Fault::Page([At::Source, At::Destination, At::Source2, At::Destination][random as usize % 4]);
        let kinds = [
            (self.lost, Fault::Lost),
            (self.page, page),
            (self.hardware, Fault::Hardware),
            (self.halt, Fault::Halt),
            (self.disable, Fault::Disable),
            (self.retry, Fault::Retry),
            (self.slow, Fault::Slow),
        ];
        for (likelihood, fault) in kinds {
            if at < likelihood {
                return fault;
            }
            at -= likelihood;
        }
        Fault::None
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Parses `lost:0.001/page:0.01`.
impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = Faults::default();
        for part in text.split('/').filter(|part| !part.is_empty()) {
            let (name, likelihood) =
                part.split_once(':').ok_or_else(|| format!("{part:?} has no likelihood"))?;
            let value: f64 = likelihood.parse().map_err(|_| format!("{likelihood:?} is not a number"))?;
            if !(0.0..=1.0).contains(&value) {
                return Err(format!("likelihood {likelihood} is not between 0 and 1"));
            }
            let mut named = faults.named();
            let Some((_, slot)) = named.iter_mut().find(|(known, _)| *known == name) else {
                let known: Vec<_> = named.iter().map(|(name, _)| *name).collect();
                return Err(format!("unknown fault {name:?}; known: {}", known.join(", ")));
            };
            **slot = value;
        }
        let sum: f64 = faults.named().iter().map(|(_, likelihood)| **likelihood).sum();
        if sum > 1.0 {
            return Err(format!("likelihoods add up to {sum}, more than 1"));
        }
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_seed_and_the_likelihoods() {
        let faults: Faults = "lost:0.1/page:0.2".parse().unwrap();
        let draw = |seed| (0..10_000).map(|number| faults.draw(seed, 3, number)).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let lost = draw(1).iter().filter(|&&fault| fault == Fault::Lost).count();
        let page = draw(1).iter().filter(|fault| matches!(fault, Fault::Page(_))).count();
        assert!((850..1150).contains(&lost) && (1800..2200).contains(&page), "{lost} {page}");
    }

    #[test]
    fn text_is_parsed() {
        let faults: Faults = "lost:0.001/slow:0.5".parse().unwrap();
        assert_eq!(faults, Faults { lost: 0.001, slow: 0.5, ..Faults::default() });
        assert!("lost".parse::<Faults>().is_err());
        assert!("lost:2".parse::<Faults>().is_err());
        assert!("lost:0.6/page:0.6".parse::<Faults>().is_err());
        assert!("fire:0.1".parse::<Faults>().unwrap_err().contains("hardware"));
    }
}
