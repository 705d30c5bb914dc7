//! The report as a page: a browser shows the figures of the same run's JSON report.

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use support::{can_manage, printed, run, Ran, Scratch, PROGRAM};

fn browser() -> Option<&'static str> {
    static ANSWER: OnceLock<Option<&'static str>> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| support::has(name))
    })
}

/// Returns a file's DOM after its scripts have run; `options` are the browser's own.
fn shown(browser: &str, scratch: &Scratch, file: &Path, options: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["120", browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    // Without a resolver, the page cannot load anything from elsewhere.
    command.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", scratch.path("browser").display())).args(options);
    printed(command.arg(format!("file://{}", file.display())))
}

/// Runs a job of two processes that wants twice its budget; returns its page and its JSON report.
fn reports(scratch: &Scratch) -> (String, Value) {
    let (page, json) = (scratch.text("r.html"), scratch.text("r.json"));
    // The task lives on when it has filled its memory, so that paging begins.
    let says = "printf 'fill\\n'; sleep 1; printf 'read\\n'";
    let task = format!("({says}) | {PROGRAM} trial-task 67108864 > /dev/null; exit 3");
    let options = ["--quiet", "--report", &page, "--report", &json];
    let run = Ran::of(&mut run("32M", &options, &["sh", "-c", &task, "<b>&\"'</script>"])).with_report(json);
    run.assert_status(3);
    (std::fs::read_to_string(page).expect("a page"), run.report)
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let value = tag.split_once(&format!(" {name}=\""))?.1.split('"').next()?;
    Some(plain(value))
}

fn plain(text: &str) -> String {
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&nbsp;", "\u{a0}"), ("&amp;", "&")]
        .iter()
        .fold(text.to_owned(), |text, (name, character)| text.replace(name, character))
}

fn figures(page: &str) -> Vec<(String, Value, String)> {
    let tags = page.split('<').filter(|part| part.contains(" data-figure=\""));
    tags.map(|part| {
        let (tag, shown) = part.split_once('>').expect("a tag ends");
        let value = attribute(tag, "data-value").expect("a figure has its value");
        let value = serde_json::from_str(&value).unwrap_or_else(|error| panic!("{error}: {value}"));
        (attribute(tag, "data-figure").expect("looked for"), value, plain(shown))
    })
    .collect()
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name} in {report:#}"))
}

fn column(report: &Value, name: &str) -> Vec<f64> {
    let values = report["series"][name].as_array().unwrap_or_else(|| panic!("{name} in the series"));
    values.iter().map(|value| value.as_f64().unwrap_or(0.0)).collect()
}

#[test]
fn a_series_and_the_processes_agree_with_the_sums() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("series");
    let (page, report) = reports(&scratch);
    let ends = column(&report, "end_seconds");
    assert!(
        ends.windows(2).all(|two| two[0] < two[1])
            && ends[ends.len() - 1] <= number(&report, "elapsed_seconds") + 1.0
    );
    for name in ["zswpout", "zswpin", "faults"] {
        assert_eq!(column(&report, name).iter().sum::<f64>(), number(&report, name), "{name}");
    }
    let most = |name: &str| column(&report, name).into_iter().fold(0.0, f64::max);
    assert!(number(&report, "zswpout") > 1000.0 && most("pool_total_size") > 0.0);
    // Both are sampled at the same looks, one after the other.
    let (wanted, peak) = (most("ram_wanted_bytes"), number(&report, "ram_wanted_peak_bytes"));
    assert!((wanted - peak).abs() < peak / 4.0 && wanted > f64::from(60 << 20), "{wanted} {peak}");

    let processes = report["processes"].as_array().expect("an array");
    let task = processes.iter().max_by_key(|one| one["ram_wanted_peak_bytes"].as_u64()).expect("processes");
    assert_eq!(
        (task["managed"].as_bool(), task["zswpout"].as_f64()),
        (Some(true), report["zswpout"].as_f64())
    );
    let parent = processes.iter().find(|one| one["number"] == task["parent"]).expect("a parent");
    assert_eq!((parent["name"].as_str(), parent["parent"].as_u64()), (Some("sh"), None), "{processes:#?}");
    // An agent with a pager takes longer to end: its process's end may be heard of last.
    let ended = task["ended_seconds"].as_f64().expect("it ended before the program");
    assert!(
        ended > task["started_seconds"].as_f64().unwrap() && ended < number(&report, "elapsed_seconds") + 1.0
    );

    for outside in ["src=", "href=", "url(", "@import", "http:", "https:"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_browser_shows_the_reports_figures() {
    let Some(browser) = browser().filter(|_| can_manage()) else { return };
    let scratch = Scratch::new("page");
    let (_, report) = reports(&scratch);
    let dom = shown(browser, &scratch, &scratch.path("r.html"), &[]);
    let figures = figures(&dom);
    for (name, value, _) in &figures {
        let pointer = format!("/{}", name.replace('.', "/"));
        assert_eq!(report.pointer(&pointer), Some(value), "{name}");
    }
    for name in
        ["ram_peak_bytes", "ram_wanted_peak_bytes", "compression_ratio", "zswpout", "zswpin", "faults"]
    {
        assert!(figures.iter().filter(|figure| figure.0 == name).count() >= 2, "{name} is shown and listed");
    }
    let text = |name: &str| &figures.iter().find(|figure| figure.0 == name).expect("marked").2;
    assert_eq!(text("ram_limit_bytes"), "32 MiB");
    assert_eq!(text("zswpout").replace('\u{202f}', ""), report["zswpout"].to_string());
    assert_eq!(text("exit_status"), "3");
    let processes = report["processes"].as_array().expect("an array").len();
    assert_eq!(dom.matches("<td class=\"life\"").count(), processes, "a row a process");
    assert_eq!(dom.matches("class=\"chart\"").count(), 4);
    assert!(dom.contains("&lt;b&gt;&amp;") && !dom.contains("<b>&amp;"), "the command is text");
    assert!(dom.contains("class=\"line level\"") && !dom.contains("NaN"));
}

/// Shows another page in a telephone-wide frame, points at its first chart, records the result.
const FRAME: &str = r#"<!DOCTYPE html><meta charset="utf-8"><body><iframe style="width:400px;height:900px;border:0"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const inner = frame.contentDocument, plot = inner.querySelector(".plot svg"), box = plot.getBoundingClientRect();
  plot.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove", {clientX: box.left + box.width * 0.999}));
  const smallest = [...inner.querySelectorAll("body *")].filter((one) => one.innerText)
    .map((one) => parseFloat(frame.contentWindow.getComputedStyle(one).fontSize)).reduce((a, b) => Math.min(a, b));
  Object.assign(document.body.dataset, {
    width: inner.documentElement.clientWidth, scrolled: inner.documentElement.scrollWidth, plot: Math.round(box.width),
    smallest, ground: frame.contentWindow.getComputedStyle(inner.body).backgroundColor,
    pointed: inner.querySelector("b[data-column=zswpout]").textContent, at: inner.querySelector(".at").textContent,
  });
};
frame.srcdoc = PAGE;
</script>"#;

#[test]
fn a_page_is_readable_on_a_telephone_light_and_dark() {
    let Some(browser) = browser().filter(|_| can_manage()) else { return };
    let scratch = Scratch::new("frame");
    let (page, _) = reports(&scratch);
    // The text must not end the script.
    let quoted = serde_json::to_string(&page).unwrap().replace('<', "\\u003c");
    let frame = scratch.write("frame.html", FRAME.replace("PAGE", &quoted));
    let seen = |scheme: &str| {
        let dom = shown(browser, &scratch, Path::new(&frame), &[scheme]);
        let body =
            dom.split("<body").nth(1).and_then(|rest| rest.split('>').next()).expect("a body").to_owned();
        move |name: &str| {
            attribute(&body, &format!("data-{name}")).unwrap_or_else(|| panic!("{name} in {body}"))
        }
    };
    let (dark, light) =
        (seen("--blink-settings=preferredColorScheme=0"), seen("--blink-settings=preferredColorScheme=1"));
    // A scroll bar may take its part.
    assert_eq!(light("scrolled"), light("width"), "nothing sticks out");
    assert!(light("width").parse::<f64>().unwrap() <= 400.0, "{}", light("width"));
    assert!(light("plot").parse::<f64>().unwrap() > 250.0, "{}", light("plot"));
    assert!(light("smallest").parse::<f64>().unwrap() >= 12.0, "{}", light("smallest"));
    assert!(
        light("pointed").ends_with("/s") && light("at").starts_with("at "),
        "{} {}",
        light("pointed"),
        light("at")
    );
    let brightness = |colour: String| -> u32 {
        let parts = colour.trim_start_matches("rgb(").trim_end_matches(')').split(',');
        parts.map(|part| part.trim().parse::<u32>().unwrap_or_else(|_| panic!("{colour}"))).sum()
    };
    assert!(brightness(light("ground")) > 600 && brightness(dark("ground")) < 150);
}
