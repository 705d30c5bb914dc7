//! The page's table of losses: time, memory, programs.

use super::figures::{percent, seconds, size, Figures};
use crate::markup::escaped;

/// Costs, their subjects and explanations.
struct Losses<'a> {
    figures: &'a Figures<'a>,
    all: Vec<(String, &'static str, String)>,
}

impl Losses<'_> {
    fn add(&mut self, is: bool, cost: String, what: &'static str, why: impl Into<String>) {
        self.all.extend(is.then(|| (cost, what, why.into())));
    }

    fn size(&mut self, name: &str, what: &'static str, why: impl Into<String>) {
        self.add(self.figures.number(name) > 0.0, self.figures.size(name), what, why);
    }

    fn count(&mut self, name: &str, what: &'static str, why: impl Into<String>) {
        self.add(self.figures.number(name) > 0.0, self.figures.count(name), what, why);
    }
}

/// Returns the table, and the lists of unmanaged programs and failures.
pub fn html(figures: &Figures<'_>) -> String {
    let losses = losses(figures);
    let mut text = String::new();
    if losses.is_empty() {
        text.push_str("<p>Nothing: it ran as if alone.</p>\n");
    } else {
        text.push_str("<table class=\"lost\"><tbody>\n");
        for (cost, what, why) in losses {
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

fn losses(figures: &Figures<'_>) -> Vec<(String, &'static str, String)> {
    let number = |name: &str| figures.number(name);
    let mut lost = Losses { figures, all: Vec::new() };
    let why = format!(
        "All threads together, for {} faults; {} of the time from start to end. Half of the faults took less than {}, one in a \
         hundred more than {}.",
        figures.count("faults"),
        percent(number("fault_seconds_total") / number("elapsed_seconds").max(1e-9)),
        figures.us("fault_latency_us.p50"),
        figures.us("fault_latency_us.p99"),
    );
    lost.add(number("faults") > 0.0, figures.seconds("fault_seconds_total"), "of waiting", why);
    let why = format!("At the peak, for {} of pages.", size(number("stored_pages_peak") * 4096.0));
    lost.size("pool_total_size_at_peak", "of memory for the pool", why);
    let why = figures.value("over_limit_reason").as_str().map(escaped).unwrap_or_default();
    lost.size("over_limit_peak_bytes", "over the budget, at most", why);
    if figures.value("swap").is_object() {
        let waited = number("swap.write_wait_seconds");
        let read = number("swap.reads") * number("swap.read_us_mean") / 1e6;
        let why = format!(
            "{} for others' pages to be written, {} in {} reads; {} faults were served from the file.",
            figures.seconds("swap.write_wait_seconds"),
            seconds(read),
            figures.count("swap.reads"),
            figures.count("swap.disk_faults"),
        );
        let is = waited > 0.0 || read > 0.0;
        lost.add(is, seconds(waited + read), "of waiting for the swap file's disk", why);
        let why = format!(
            "Of {}; {} were written, {:.2} times what had to be.",
            figures.size("swap.limit_bytes"),
            figures.size("swap.bytes_written"),
            number("swap.write_amplification"),
        );
        lost.size("swap.used_peak_bytes", "of the disk", why);
        let why = "Give more with --swap, or another disk with --swap-dir.";
        lost.count("swap.no_space", "times the swap file had no room", why);
    }
    let poor = size(number("reject_compress_poor") * 4096.0);
    let why = format!("They stay in memory: {poor} that were tried in vain.");
    lost.count("reject_compress_poor", "pages did not compress", why);
    lost.count("reject_compress_fail", "pages failed to compress", "The compressor reported an error.");
    lost.count("reject_alloc_fail", "pages were refused", "There was no memory for the pool.");
    let why = "What remained does not compress, is locked, shared or executable.";
    lost.count("over_budget", "times nothing was left to evict", why);
    let why = "Pages are shared until one side changes them, and each side copies what it changes.";
    lost.count("forks", "forks", why);
    let why = "Paging had to end: a seccomp filter for all threads, mlockall(), or a fork that could not be followed.";
    lost.count("brought_in", "pages brought back at once", why);
    let why = "They were evicted too early; that cost a fault each, and no compression.";
    lost.count("refaults", "pages came back before they were compressed", why);
    let read_ahead = figures.count("replacement.read_ahead");
    let why = format!("Of {read_ahead} that came in beside one that was needed.");
    lost.count("replacement.read_ahead_wasted", "pages read ahead for nothing", why);
    let why = "Shared memory is not paged, and not in the budget.";
    lost.size("shared_peak_bytes", "of shared memory beside it", why);
    let (name, mean) = ("fault_latency_us.p999", seconds(number("fault_latency_us.mean") / 1e6));
    let why = format!("The mean is {mean}.");
    lost.add(number(name) > 1e4, figures.us(name), "for one fault in a thousand, or more", why);
    lost.all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A report without losses except for this swap file.
    fn html_with(swap: serde_json::Value) -> String {
        let mut report =
            json!({"swap": swap, "unmanaged": ["a <b>"], "failures": [], "elapsed_seconds": 1.0});
        let zero =
            "faults fault_seconds_total pool_total_size_at_peak stored_pages_peak over_limit_peak_bytes \
                    reject_compress_poor reject_compress_fail reject_alloc_fail over_budget forks \
                    brought_in refaults shared_peak_bytes";
        zero.split(' ').for_each(|name| report[name] = json!(0));
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
