//! Programs without a dynamic loader: static C, Rust and Go, and the programs they start.

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use support::{can_link_statically, can_manage, compile_with, has, managed, uzswap, Scratch};

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        if !can_manage() || !has("cc") {
            return None;
        }
        let scratch = Scratch::new("static-workload");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/traps.c");
        if !can_link_statically(&scratch) {
            return None;
        }
        let target = scratch.path("workload");
        compile_with(&["-static"], &source, &target).then(|| (scratch, target.to_str().unwrap().to_owned()))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

fn is_managed(name: &str, ram: &str, command: &[&str]) -> String {
    let scratch = Scratch::new(&format!("static-run-{name}"));
    let (output, report) = managed(ram, &scratch, &["-q"], command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{name}: {report}");
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{name}: {report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{name}: nothing was evicted: {report}");
    String::from_utf8(output.stdout).unwrap()
}

fn survives(mode: &str) {
    let Some(program) = workload() else { return };
    is_managed(mode, "40M", &[program, mode, "64"]);
}

#[test]
fn a_static_program_is_paged() {
    survives("plain");
}

#[test]
fn its_threads_write_while_pages_are_evicted() {
    survives("threads");
}

#[test]
fn its_forks_have_their_own_bytes() {
    survives("raw_fork");
}

#[test]
fn its_mappings_come_and_go() {
    survives("discard");
    survives("churn");
}

#[test]
fn the_kernel_accesses_its_memory() {
    survives("kernel");
    survives("close");
}

#[test]
fn its_huge_and_giant_memory() {
    survives("huge");
    survives("sparse");
}

#[test]
fn a_static_program_that_a_dynamic_one_starts_with_an_environment_of_its_own() {
    let Some(program) = workload() else { return };
    is_managed("child", "40M", &["sh", "-c", &format!("env -i {program} plain 64; exit $?")]);
}

#[test]
fn a_static_program_with_another_root() {
    let Some(program) = workload() else { return };
    let isolates =
        Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|output| output.status.success());
    if !isolates {
        testkit::skip!("namespace", "no namespaces can be made");
        return;
    }
    // Paging reads /proc, which every root for programs has.
    let scratch = Scratch::new("static-root");
    let root = scratch.path("root");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    testkit::copy_program(program, root.join("workload"));
    let root = root.display();
    let script = format!("mount --bind /proc {root}/proc && exec chroot {root} /workload plain 64");
    is_managed("root", "40M", &["unshare", "-m", "sh", "-c", &script]);
}

#[test]
fn one_that_is_traced_runs_alone_and_is_named() {
    let Some(program) = workload() else { return };
    if !has("strace") {
        return;
    }
    let scratch = Scratch::new("static-traced");
    let command = ["strace", "-f", "-o", "/dev/null", program, "plain", "64"];
    let (output, report) = managed("40M", &scratch, &["-q"], &command);
    assert_eq!(output.status.code(), Some(0), "{report}");
    let named =
        report["unmanaged"].as_array().unwrap().iter().any(|one| one.as_str().unwrap().contains("traced"));
    assert!(named, "{report}");
}

/// Regression: a thread took the lock of musl's thread list, and the lock's page was evicted when
/// the kernel had to release it at the thread's end. All other threads waited for it for ever.
#[test]
fn what_the_kernel_clears_for_ending_threads_stays() {
    if !can_manage() || !has("musl-gcc") {
        return;
    }
    let scratch = Scratch::new("static-cleared");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/cleared.c");
    for (name, options) in [("cleared-static", &["-static"][..]), ("cleared-dynamic", &[])] {
        let target = scratch.path(name);
        let mut compiler = Command::new("musl-gcc");
        let built = compiler.args(options).arg("-O2").arg("-o").arg(&target).arg(&source).status();
        assert!(built.unwrap().success());
        assert_eq!(is_managed(name, "30M", &[target.to_str().unwrap()]), "present\n");
    }
}

#[test]
fn a_go_program_and_its_collector() {
    if !can_manage() || !has("go") {
        return;
    }
    let scratch = Scratch::new("static-go");
    let source = scratch.write("heap.go", GO);
    let target = scratch.path("heap");
    let mut go = Command::new("go");
    go.arg("build").arg("-o").arg(&target).arg(&source).current_dir(scratch.path(""));
    go.env("CGO_ENABLED", "0").env("GOCACHE", scratch.path("cache")).env("GO111MODULE", "off");
    let built = go.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let target = target.to_str().unwrap();
    let bare = Command::new(target).output().unwrap();
    assert!(bare.status.success());
    let said = is_managed("go", "72M", &[target]);
    assert_eq!(said, String::from_utf8(bare.stdout).unwrap());
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
    if !can_manage() || !has("rustc") {
        return;
    }
    let scratch = Scratch::new("static-rust");
    let source = scratch.write("heap.rs", RUST);
    let target = scratch.path("heap");
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition", "2021", "-O", "-C", "target-feature=+crt-static", "-o"])
        .arg(&target)
        .arg(source);
    let built = rustc.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let target = target.to_str().unwrap();
    let bare = Command::new(target).output().unwrap();
    assert_eq!(is_managed("rust", "40M", &[target]), String::from_utf8(bare.stdout).unwrap());
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
    if !can_manage() || !has("busybox") {
        return;
    }
    let scratch = Scratch::new("static-busybox");
    let script =
        "i=0; while [ $i -lt 40 ]; do seq 1 200 | sort -n | tail -n 1; i=$((i+1)); done | sort | uniq -c; \
                  seq 1 900000 | sort -r | tail -n 3";
    let bare = Command::new("busybox").args(["sh", "-c", script]).output().unwrap();
    let report = scratch.path("report.json");
    let mut run = uzswap();
    run.args(["run", "-q", "--ram", "32M", "--report"])
        .arg(&report)
        .args(["--", "busybox", "sh", "-c", script]);
    let output = run.output().unwrap();
    assert_eq!((output.status.code(), &output.stdout), (Some(0), &bare.stdout));
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{report}");
}
