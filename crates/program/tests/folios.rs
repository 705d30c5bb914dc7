//! `--folio 2M`: huge pages leave and return whole, and every byte is right although parts of them
//! are discarded, replaced, moved, protected and forked.

mod support;

use support::{can_manage, can_move, managed_without, workload_in, Scratch};

/// Whether programs get huge pages that are moved as a whole here.
fn has_folios() -> bool {
    let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let has = modes.contains("[madvise]") || modes.contains("[always]");
    if !has {
        testkit::skip!("kernel", "no transparent huge pages");
    }
    has && can_move()
}

/// Runs the workload over 100 MiB in 64; pages must leave, and return, as whole huge pages.
fn survives(name: &str, options: &[&str]) {
    let scratch = Scratch::new(name);
    let Some(program) = workload_in(&scratch, "folios").filter(|_| has_folios()) else { return };
    let options = [&["--folio", "2M", "--verify"], options].concat();
    let (output, report) = managed_without("", "64M", &scratch, &options, &[&program, "100", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("the same as 64K"), "{said}");
    let number = |pointer: &str| report.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap();
    let whole = number("/stored_pages_by_folio/2048kB");
    assert!(whole > 512 && whole.is_multiple_of(512), "{whole} pages of whole folios: {report}");
    assert!(number("/huge_pages_in") > 512 && number("/huge_pages_in").is_multiple_of(512), "{report}");
    assert!(whole <= number("/zswpout"), "{report}");
}

#[test]
fn parts_of_huge_pages_are_changed_while_the_whole_is_out() {
    survives("folios", &[]);
}

#[test]
fn huge_pages_go_on_to_the_swap_file() {
    survives("folios-swap", &["--swap", "1G"]);
}

#[test]
fn without_moves_64k_is_used_and_said() {
    if !can_manage() {
        return;
    }
    for (without, why) in [("move", "UFFDIO_MOVE"), ("scan", "PAGEMAP_SCAN")] {
        if without == "scan" && !can_move() {
            continue;
        }
        let scratch = Scratch::new("folios-without");
        let (output, _) = managed_without(without, "64M", &scratch, &["--folio", "2M"], &["true"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("the same as 64K") && said.contains(why), "{said}");
    }
}
