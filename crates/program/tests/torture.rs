//! Programs that change their address space at random, with every page's content known, must run
//! under uzswap as they run bare.
//!
//! The short runs here are part of every `cargo test`. A long one takes seeds, features, budgets,
//! and parts of the kernel at random, and stops at the first failure with the command that
//! replays it:
//!
//!     UZSWAP_TEST_TORTURE_SECONDS=36000 cargo test --release -p uzswap --test torture -- --nocapture long
//!
//! `UZSWAP_TEST_SEED=N` sets the first seed of all runs; `UZSWAP_TEST_TORTURE_FEATURES=LIST` those
//! of the long run. To replay:
//!
//!     cc -O1 -pthread -o torture crates/program/tests/workloads/torture/*.c
//!     target/release/uzswap run --ram 60M -- ./torture --seed 7 --seconds 5 --threads 2 --processes 1 --mib 100 --features all
//!
//! `--hold` keeps the process for a debugger when a byte is wrong; `./torture --help` lists the
//! features.

mod support;

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use support::tree::watch;
use support::{uzswap, workload, Scratch};

#[derive(Clone)]
struct Case {
    seed: u64,
    seconds: u32,
    threads: u32,
    processes: u32,
    mib: u32,
    features: String,
    /// In percent of `mib`.
    budget: u32,
}

impl Case {
    /// One thread with all features, in 60 % of its memory.
    fn new(seed: u64) -> Self {
        Case {
            seed: first_seed() + seed,
            seconds: 2,
            threads: 1,
            processes: 1,
            mib: 64,
            features: "all".into(),
            budget: 60,
        }
    }

    fn arguments(&self) -> Vec<String> {
        let Case { seed, seconds, threads, processes, mib, features, .. } = self;
        format!("--seed {seed} --seconds {seconds} --threads {threads} --processes {processes} --mib {mib} --features {features}")
            .split(' ')
            .map(str::to_owned)
            .collect()
    }

    fn options(&self) -> Vec<String> {
        let ram = self.mib * self.budget / 100;
        ["run", "--ram", &format!("{ram}M"), "--verify", "--"].map(str::to_owned).to_vec()
    }

    fn replay(&self) -> String {
        format!("uzswap {} ./torture {}", self.options().join(" "), self.arguments().join(" "))
    }

    fn run(&self, torture: &str) -> Result<String, String> {
        let mut command = uzswap();
        command.args(self.options()).arg(torture).args(self.arguments());
        self.judge(&mut command)
    }

    fn judge(&self, command: &mut Command) -> Result<String, String> {
        let scratch = Scratch::new("torture");
        let limit = Duration::from_secs(u64::from(60 + 10 * self.seconds));
        let ran = watch(command.env("TMPDIR", scratch.path("")), limit);
        match ran.status == Some(0) && ran.printed.contains("ok: ") {
            true => Ok(ran.said),
            false => Err(ran.to_string()),
        }
    }
}

fn first_seed() -> u64 {
    std::env::var("UZSWAP_TEST_SEED").map_or(1, |seed| seed.parse().expect("a number"))
}

/// All cases run, so that one run shows every failure.
fn survives(cases: impl IntoIterator<Item = Case>) {
    let Some(torture) = workload("torture") else { return };
    let mut failures = Vec::new();
    for case in cases {
        println!("{}", case.replay());
        if let Err(error) = case.run(torture) {
            println!("{error}");
            failures.push(case.replay());
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_workload_is_right_by_itself() {
    let Some(torture) = workload("torture") else { return };
    for (seed, threads) in [(1, 1), (2, 2), (3, 4)] {
        let case = Case { threads, ..Case::new(seed) };
        let mut command = Command::new(torture);
        if let Err(error) = case.judge(command.args(case.arguments())) {
            panic!("./torture {}: {error}", case.arguments().join(" "));
        }
    }
}

#[test]
fn one_thread_in_several_budgets() {
    survives([40, 50, 60, 70].into_iter().zip(10..).map(|(budget, seed)| Case { budget, ..Case::new(seed) }));
}

#[test]
fn two_and_four_threads() {
    survives([2, 4, 2, 4].into_iter().zip(20..).map(|(threads, seed)| Case { threads, ..Case::new(seed) }));
}

#[test]
fn several_processes() {
    let case = Case { processes: 2, threads: 2, ..Case::new(30) };
    survives([case.clone(), Case { processes: 3, threads: 1, seed: case.seed + 1, ..case }]);
}

/// With fewer features, each acts more often.
const FEATURES: [&str; 10] = [
    "none,resize,move,near,part,leave,join,replace,memfd",
    "none,fork,rawfork,exec,advice,lodge,last",
    "none,pipe,splice,zerocopy,vm,fork",
    "none,direct,aio,uring,discard,resize",
    "none,signal,stop,outside,lodge,cell,stable,bare",
    "none,protect,barrier,discard,free,cold,populate,huge,guard,lock,key,seal,replace",
    "none,growsdown,brk,recurse,lodge,rawfork,huge",
    "none,share,borrow,daemon,abrupt,fork,exec,lodge",
    "none,handlerfork,stopped,limits,signal,stop,outside,rawfork",
    "none,share,daemon,abrupt,discard,resize,move,cold,limits",
];

/// Processes that share memory and outlive each other, daemons, ends at bad moments, forks in
/// handlers, stopped children, limits.
#[test]
fn relatives() {
    let features = ["share", "borrow", "daemon", "abrupt", "handlerfork", "stopped", "limits"];
    survives(features.iter().zip(80..).map(|(feature, seed)| Case {
        features: format!("none,{feature}"),
        threads: 1 + seed as u32 % 2,
        ..Case::new(seed)
    }));
}

#[test]
fn few_features_at_a_time() {
    survives(FEATURES.iter().zip(60..).map(|(features, seed)| Case {
        features: (*features).into(),
        threads: 1 + seed as u32 % 2,
        ..Case::new(seed)
    }));
}

fn case_of(seed: u64) -> Case {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % below
    };
    let features = std::env::var("UZSWAP_TEST_TORTURE_FEATURES").unwrap_or_else(|_| {
        let few = draw(2) == 0;
        if few {
            FEATURES[draw(FEATURES.len() as u64) as usize].into()
        } else {
            "all".into()
        }
    });
    Case {
        seed,
        seconds: 3 + draw(8) as u32,
        threads: [1, 2, 2, 4, 8][draw(5) as usize],
        processes: [1, 1, 1, 2, 3][draw(5) as usize],
        mib: 80 + draw(120) as u32,
        features,
        budget: 30 + draw(41) as u32,
    }
}

#[test]
fn long() {
    let Ok(seconds) = std::env::var("UZSWAP_TEST_TORTURE_SECONDS") else {
        testkit::skip!("request", "UZSWAP_TEST_TORTURE_SECONDS is not set");
        return;
    };
    let Some(torture) = workload("torture") else { return };
    let limit = Duration::from_secs(seconds.parse().expect("UZSWAP_TEST_TORTURE_SECONDS is a number"));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() % 1_000_000_000;
    let seeds = std::env::var("UZSWAP_TEST_SEED").map_or(clock * 1000, |_| first_seed());
    let (start, mut runs) = (Instant::now(), 0);
    while start.elapsed() < limit {
        let case = case_of(seeds + runs);
        println!("{:6} s, run {runs}: {}", start.elapsed().as_secs(), case.replay());
        if let Err(error) = case.run(torture) {
            panic!("{error}\nreplay: {}", case.replay());
        }
        runs += 1;
    }
    println!("{runs} runs in {} s", start.elapsed().as_secs());
}
