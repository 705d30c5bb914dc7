//! The page's table of losses: time, memory, programs.

use super::figures::{count, percent, seconds, size, Figures};
use crate::markup::escaped;

struct Loss {
    cost: String,
    what: &'static str,
    why: String,
}

/// Returns the table, and the lists of unmanaged programs and failures.
pub fn html(figures: &Figures<'_>) -> String {
    let losses = losses(figures);
    let mut text = String::new();
    if losses.is_empty() {
        text.push_str("<p>Nothing: it ran as if alone.</p>\n");
    } else {
        text.push_str("<table class=\"lost\"><tbody>\n");
        for Loss { cost, what, why } in losses {
            text.push_str(&format!("<tr><td>{cost}</td><td>{what}</td><td>{why}</td></tr>\n"));
        }
        text.push_str("</tbody></table>\n");
    }
    for (name, title) in
        [("unmanaged", "Programs that ran without uzswap"), ("failures", "What broke in uzswap")]
    {
        let list = figures.list(name);
        if !list.is_empty() {
            let items: String = list
                .iter()
                .map(|item| format!("<li>{}</li>\n", escaped(item.as_str().unwrap_or_default())))
                .collect();
            text.push_str(&format!("<h3>{title}</h3>\n<ul data-list=\"{name}\">\n{items}</ul>\n"));
        }
    }
    text
}

fn losses(figures: &Figures<'_>) -> Vec<Loss> {
    let number = |name: &str| figures.number(name);
    let mut losses = Vec::new();
    let mut add = |is: bool, cost: String, what: &'static str, why: String| {
        if is {
            losses.push(Loss { cost, what, why });
        }
    };
    let faults = number("faults");
    add(
        faults > 0.0,
        figures.seconds("fault_seconds_total"),
        "of waiting",
        format!(
            "All threads together, for {} faults; {} of the time from start to end. Half of the faults took less than {}, one in a \
             hundred more than {}.",
            figures.count("faults"),
            percent(number("fault_seconds_total") / number("elapsed_seconds").max(1e-9)),
            figures.us("fault_latency_us.p50"),
            figures.us("fault_latency_us.p99"),
        ),
    );
    add(
        number("pool_total_size_at_peak") > 0.0,
        figures.size("pool_total_size_at_peak"),
        "of memory for the pool",
        format!("At the peak, for {} of pages.", size(number("stored_pages_peak") * 4096.0)),
    );
    add(
        number("over_limit_peak_bytes") > 0.0,
        figures.size("over_limit_peak_bytes"),
        "over the budget, at most",
        figures.value("over_limit_reason").as_str().map(escaped).unwrap_or_default(),
    );
    if figures.value("swap").is_object() {
        let waited = number("swap.write_wait_seconds");
        let read = number("swap.reads") * number("swap.read_us_mean") / 1e6;
        add(
            waited > 0.0 || read > 0.0,
            seconds(waited + read),
            "of waiting for the swap file's disk",
            format!(
                "{} for others' pages to be written, {} in {} reads; {} faults were served from the file.",
                figures.seconds("swap.write_wait_seconds"),
                seconds(read),
                figures.count("swap.reads"),
                figures.count("swap.disk_faults"),
            ),
        );
        add(
            number("swap.used_peak_bytes") > 0.0,
            figures.size("swap.used_peak_bytes"),
            "of the disk",
            format!(
                "Of {}; {} were written, {:.2} times what had to be.",
                figures.size("swap.limit_bytes"),
                figures.size("swap.bytes_written"),
                number("swap.write_amplification"),
            ),
        );
        add(
            number("swap.no_space") > 0.0,
            figures.count("swap.no_space"),
            "times the swap file had no room",
            "Give more with --swap, or another disk with --swap-dir.".to_owned(),
        );
    }
    add(
        number("reject_compress_poor") > 0.0,
        figures.count("reject_compress_poor"),
        "pages did not compress",
        format!(
            "They stay in memory: {} that were tried in vain.",
            size(number("reject_compress_poor") * 4096.0)
        ),
    );
    add(
        number("reject_compress_fail") + number("reject_alloc_fail") + number("pool_limit_hit") > 0.0,
        count(number("reject_compress_fail") + number("reject_alloc_fail") + number("pool_limit_hit")),
        "pages were refused",
        "The compressor failed, or there was no memory for the pool.".to_owned(),
    );
    add(
        number("over_budget") > 0.0,
        figures.count("over_budget"),
        "times nothing was left to evict",
        "What remained does not compress, is locked, shared or executable.".to_owned(),
    );
    add(
        number("forks") > 0.0,
        figures.count("forks"),
        "forks",
        "Pages are shared until one side changes them, and each side copies what it changes.".to_owned(),
    );
    add(
        number("brought_in") > 0.0,
        figures.count("brought_in"),
        "pages brought back at once",
        "Paging had to end: a seccomp filter for all threads, mlockall(), or a fork that could not be followed.".to_owned(),
    );
    add(
        number("refaults") > 0.0,
        figures.count("refaults"),
        "pages came back before they were compressed",
        "They were evicted too early; that cost a fault each, and no compression.".to_owned(),
    );
    add(
        number("replacement.read_ahead_wasted") > 0.0,
        figures.count("replacement.read_ahead_wasted"),
        "pages read ahead for nothing",
        format!("Of {} that came in beside one that was needed.", figures.count("replacement.read_ahead")),
    );
    add(
        number("shared_peak_bytes") > 0.0,
        figures.size("shared_peak_bytes"),
        "of shared memory beside it",
        "Shared memory is not paged, and not in the budget.".to_owned(),
    );
    add(
        number("fault_latency_us.p999") > 1e4,
        figures.us("fault_latency_us.p999"),
        "for one fault in a thousand, or more",
        format!("The mean is {}.", seconds(number("fault_latency_us.mean") / 1e6)),
    );
    losses
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A report without losses except for this swap file.
    fn html_with(swap: serde_json::Value) -> String {
        let mut report =
            json!({"swap": swap, "unmanaged": ["a <b>"], "failures": [], "elapsed_seconds": 1.0});
        for name in [
            "faults",
            "fault_seconds_total",
            "pool_total_size_at_peak",
            "stored_pages_peak",
            "over_limit_peak_bytes",
            "reject_compress_poor",
            "reject_compress_fail",
            "reject_alloc_fail",
            "pool_limit_hit",
            "over_budget",
            "forks",
            "brought_in",
            "refaults",
            "shared_peak_bytes",
        ] {
            report[name] = json!(0);
        }
        report["fault_latency_us"] = json!({"p50": 0, "p99": 0, "p999": 0, "mean": 0});
        report["over_limit_reason"] = serde_json::Value::Null;
        report["replacement"] = json!({"read_ahead": 0, "read_ahead_wasted": 0});
        html(&Figures(&report))
    }

    #[test]
    fn nothing_lost_is_said() {
        let html = html_with(serde_json::Value::Null);
        assert!(html.contains("as if alone") && html.contains("<li>a &lt;b&gt;</li>"), "{html}");
    }

    #[test]
    fn a_disk_that_was_waited_for_is_named() {
        let html = html_with(json!({
            "write_wait_seconds": 1.5, "reads": 10, "read_us_mean": 100.0, "disk_faults": 9, "used_peak_bytes": 1 << 20,
            "limit_bytes": 1 << 30, "bytes_written": 2 << 20, "write_amplification": null, "no_space": 0,
        }));
        assert!(html.contains(">1.50 s</span> for others") && html.contains(">1 MiB</span>"), "{html}");
        assert!(!html.contains("--swap-dir"), "{html}");
    }
}
