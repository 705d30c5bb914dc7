//! Programs without a dynamic loader: static C, Rust and Go, and the programs they start.

mod support;

use std::process::Command;

use support::{can_unshare, command, has, managed, own, printed, tests, workload_with, Scratch};

fn workload() -> Option<&'static str> {
    workload_with("traps", &["-static"])
}

fn is_managed(ram: &str, command: &[&str]) -> String {
    let ran = managed(ram, &["-q"], command).expect("callers have what it needs");
    ran.assert_quiet().assert_paged().assert_all_managed();
    ran.printed
}

fn survives(modes: &[&str]) {
    let Some(program) = workload() else { return };
    modes.iter().for_each(|mode| drop(is_managed("40M", &[program, mode, "64"])));
}

tests! {
    fn a_static_program_is_paged() = survives(&["plain"]);
    fn its_threads_write_while_pages_are_evicted() = survives(&["threads"]);
    fn its_forks_have_their_own_bytes() = survives(&["raw_fork"]);
    fn its_mappings_come_and_go() = survives(&["discard", "churn"]);
    fn the_kernel_accesses_its_memory() = survives(&["kernel", "close"]);
    fn its_huge_and_giant_memory() = survives(&["huge", "sparse"]);
}

#[test]
fn a_static_program_that_a_dynamic_one_starts_with_an_environment_of_its_own() {
    let Some(program) = workload() else { return };
    is_managed("40M", &["sh", "-c", &format!("env -i {program} plain 64; exit $?")]);
}

#[test]
fn a_static_program_with_another_root() {
    let Some(program) = workload() else { return };
    if !can_unshare(&["-m"]) {
        return;
    }
    // Paging reads /proc, which every root for programs has.
    let scratch = Scratch::new("static-root");
    let root = scratch.path("root");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    testkit::copy_program(program, root.join("workload"));
    let root = root.display();
    let script = format!("mount --bind /proc {root}/proc && exec chroot {root} /workload plain 64");
    is_managed("40M", &["unshare", "-m", "sh", "-c", &script]);
}

#[test]
fn one_that_is_traced_runs_alone_and_is_named() {
    let Some(program) = workload() else { return };
    let command = ["strace", "-f", "-o", "/dev/null", program, "plain", "64"];
    let Some(ran) = managed("40M", &["-q"], &command) else { return };
    ran.assert_status(0);
    assert!(ran.text("unmanaged").contains("traced"), "{ran}");
}

/// Regression: a thread took the lock of musl's thread list, and the lock's page was evicted when
/// the kernel had to release it at the thread's end. All other threads waited for it for ever.
#[test]
fn words_that_the_kernel_clears_for_ending_threads_stay_in_memory() {
    if !support::can_manage() || !has("musl-gcc") {
        return;
    }
    let scratch = Scratch::new("static-cleared");
    for options in [&["-static"][..], &[]] {
        let target = scratch.text("cleared");
        let mut compiler = Command::new("musl-gcc");
        printed(compiler.args(options).args(["-O2", "-o", &target]).arg(own("tests/workloads/cleared.c")));
        assert_eq!(is_managed("30M", &[&target]), "present\n");
    }
}

#[test]
fn a_go_program_and_its_collector() {
    if !support::can_manage() || !has("go") {
        return;
    }
    let scratch = Scratch::new("static-go");
    let source = scratch.write("heap.go", GO);
    let target = scratch.text("heap");
    let mut go = command(&["go", "build", "-o", &target, &source]);
    go.env("CGO_ENABLED", "0").env("GOCACHE", scratch.path("cache")).env("GO111MODULE", "off");
    printed(go.current_dir(scratch.path("")));
    assert_eq!(is_managed("72M", &[&target]), printed(&mut Command::new(&target)));
}

/// Goroutines change a table of small objects, whose sum does not depend on their order.
const GO: &str = r#"package main

import (
	"fmt"
	"sync"
)

type node struct {
	next *node
	data [6]uint64
}

func main() {
	const lists, length = 64, 24000
	heads := make([]*node, lists)
	var all sync.WaitGroup
	for i := range heads {
		i := i // every goroutine's own, before Go 1.22 too
		all.Add(1)
		go func() {
			defer all.Done()
			for j := uint64(0); j < length; j++ {
				one := &node{next: heads[i]}
				for k := range one.data {
					one.data[k] = uint64(i)*length + j + uint64(k)
				}
				heads[i] = one
			}
		}()
	}
	all.Wait()
	sums := make([]uint64, lists)
	for round := 0; round < 2; round++ {
		for i := range heads {
			i := i
			all.Add(1)
			go func() {
				defer all.Done()
				for one := heads[i]; one != nil; one = one.next {
					for k := range one.data {
						sums[i] = sums[i]*31 + one.data[k]
					}
				}
			}()
		}
		all.Wait()
	}
	var sum uint64
	for _, one := range sums {
		sum = sum*17 + one
	}
	fmt.Println(sum)
}
"#;

#[test]
fn a_static_rust_program() {
    if !support::can_manage() || !has("rustc") {
        return;
    }
    let scratch = Scratch::new("static-rust");
    let source = scratch.write("heap.rs", RUST);
    let target = scratch.text("heap");
    let options =
        ["rustc", "--edition", "2021", "-O", "-C", "target-feature=+crt-static", "-o", &target, &source];
    printed(&mut command(&options));
    assert_eq!(is_managed("40M", &[&target]), printed(&mut Command::new(&target)));
}

const RUST: &str = r#"use std::collections::BTreeMap;
fn main() {
    let mut map = BTreeMap::new();
    for i in 0..1_200_000u64 {
        map.insert(i.wrapping_mul(0x9e3779b97f4a7c15) >> 20, [i, i * 3]);
    }
    let sum = map.iter().fold(0u64, |sum, (key, [a, b])| sum.rotate_left(5) ^ key ^ a ^ b);
    println!("{sum} {}", map.len());
}
"#;

#[test]
fn pipelines_of_a_static_shell() {
    let script =
        "i=0; while [ $i -lt 40 ]; do seq 1 200 | sort -n | tail -n 1; i=$((i+1)); done | sort | uniq -c; \
                  seq 1 900000 | sort -r | tail -n 3";
    let shell = ["busybox", "sh", "-c", script];
    let Some(ran) = managed("32M", &["-q"], &shell) else { return };
    ran.assert_status(0).assert_all_managed();
    assert_eq!(ran.printed, printed(&mut command(&shell)));
}
