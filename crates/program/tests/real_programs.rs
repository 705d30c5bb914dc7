//! Real programs: the same output and exit status, bare and in about half of the memory they want.

mod support;

use std::path::Path;
use std::process::Command;

use support::{can_manage, has, managed, Scratch};

fn same_answer(name: &str, ram: &str, directory: &Path, command: &[&str]) {
    if !can_manage() || !has(command[0]) {
        return;
    }
    let scratch = Scratch::new(name);
    let bare = Command::new(command[0]).args(&command[1..]).current_dir(directory).output().unwrap();
    std::env::set_current_dir(directory).unwrap();
    let (output, report) = managed(ram, &scratch, &["-q", "--verify"], command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), bare.status.code(), "{name}: {said}");
    assert!(output.stdout == bare.stdout, "{name}: another answer: {said}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{name}: nothing was evicted: {report}");
}

#[test]
fn cpython_with_objects_gc_threads_subprocess_and_fork() {
    let scratch = Scratch::new("python");
    let script = r#"
import gc, hashlib, json, multiprocessing, random, subprocess, threading
random.seed(1)
table = {i: {'a': i, 'b': str(i) * 2, 'c': [i, i + 1]} for i in range(150000)}
gc.collect()
def digest(part):
    h = hashlib.sha256()
    for i in range(part, 150000, 4 * 7): h.update(json.dumps(table[i]).encode())
    return h.hexdigest()
if __name__ == '__main__':
    print([digest(part) for part in range(4)])
    results = {}
    threads = [threading.Thread(target=lambda p=p: results.update({p: digest(p)})) for p in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print(sorted(results.items()))
    print(subprocess.run(['python3', '-c', 'print(sum(range(10**6)))'], capture_output=True, text=True).stdout)
    with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(digest, range(4)))
    keys = list(table); random.shuffle(keys)
    print(sum(table[k]['c'][1] for k in keys[:50000]))
"#;
    let script = scratch.write("job.py", script);
    same_answer("cpython", "72M", &std::env::temp_dir(), &["python3", script.to_str().unwrap()]);
}

#[test]
fn node() {
    let scratch = Scratch::new("node-src");
    let script = scratch.write(
        "job.js",
        "const m=new Map();for(let i=0;i<500000;i++)m.set(i,{a:i,s:'k'+i,l:[i,i+1]});let s=0;\
         const c=require('crypto').createHash('sha256');\
         for(let i=0;i<500000;i+=11){s+=m.get(i).l[1];c.update(JSON.stringify(m.get(i)))}console.log(s,c.digest('hex'))",
    );
    same_answer("node", "90M", &std::env::temp_dir(), &["node", script.to_str().unwrap()]);
}

#[test]
fn java_with_threads() {
    if !has("javac") {
        return;
    }
    let scratch = Scratch::new("java-src");
    let source = scratch.write(
        "J.java",
        "import java.util.*; public class J { public static void main(String[] a) throws Exception {\
         HashMap<Integer,String> m=new HashMap<>(); for(int i=0;i<1000000;i++) m.put(i,\"v\"+i*7); long s=0;\
         for(int i=0;i<1000000;i+=2) s+=m.get(i).hashCode(); Thread[] t=new Thread[3]; long[] r=new long[3];\
         for(int k=0;k<3;k++){final int q=k; t[k]=new Thread(()->{long x=0; for(int i=q;i<1000000;i+=3)\
         x+=m.get(i).length(); r[q]=x;}); t[k].start();} for(Thread x:t) x.join();\
         System.out.println(s+\" \"+Arrays.toString(r)); } }",
    );
    let directory = source.parent().unwrap().to_owned();
    assert!(Command::new("javac").arg(&source).status().unwrap().success());
    same_answer(
        "java",
        "110M",
        &std::env::temp_dir(),
        &["java", "-Xmx300m", "-cp", directory.to_str().unwrap(), "J"],
    );
}

#[test]
fn the_c_plus_plus_compiler_on_templates() {
    let scratch = Scratch::new("gxx-src");
    let source = scratch.write(
        "t.cc",
        "#include <regex>\n#include <map>\n#include <string>\n#include <iostream>\n#include <vector>\n\
         template<int N> struct F{ static int f(int x){ std::map<int,std::vector<std::string>> m;\
         m[x].push_back(std::to_string(N)); return F<N-1>::f(x)+(int)m.size(); } };\n\
         template<> struct F<0>{ static int f(int x){return x;} };\n\
         int main(){ std::regex r(\"a+b*(c|d)?\"); std::cout<<std::regex_match(std::string(\"aabbc\"),r)<<F<40>::f(3); }\n",
    );
    same_answer(
        "gxx",
        "100M",
        &std::env::temp_dir(),
        &["g++", "-O2", "-S", "-o", "-", source.to_str().unwrap()],
    );
}

#[test]
fn sort_of_a_large_file() {
    let scratch = Scratch::new("sort-src");
    let lines: String = (0..1_200_000u64).map(|i| format!("{} line {i}\n", i * 7919 % 10_000_019)).collect();
    let file = scratch.write("big.txt", &lines);
    same_answer(
        "sort",
        "60M",
        &std::env::temp_dir(),
        &["sort", "-S", "200M", "--parallel=2", file.to_str().unwrap()],
    );
}

#[test]
fn sqlite_in_memory_with_an_integrity_check() {
    let statements = "create table t(a integer primary key,b text,c real); with recursive n(i) as (select 1 union all \
                      select i+1 from n where i<700000) insert into t select i,hex(i*7)||'-row',i/3.0 from n; create \
                      index tb on t(b); select count(*),sum(length(b)),round(sum(c),1) from t; pragma integrity_check;";
    same_answer("sqlite", "32M", &std::env::temp_dir(), &["sqlite3", ":memory:", statements]);
}

#[test]
fn redis_under_load_then_a_digest() {
    if !can_manage() || !has("redis-server") || !has("redis-benchmark") {
        return;
    }
    let scratch = Scratch::new("redis");
    let socket = scratch.path("socket");
    let socket = socket.to_str().unwrap();
    let report = scratch.path("report.json");
    let mut server = support::uzswap()
        .args(["run", "-q", "--ram", "48M", "--report", report.to_str().unwrap(), "--", "redis-server"])
        .args(["--port", "0", "--unixsocket", socket, "--save", "", "--enable-debug-command", "yes"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..100 {
        if Path::new(socket).exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let cli = |arguments: &[&str]| {
        let output = Command::new("redis-cli").args(["-s", socket]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    // Known values, so the digest can be recomputed from them.
    assert_eq!(cli(&["debug", "populate", "120000", "key", "400"]), "OK");
    let digest = cli(&["debug", "digest"]);
    let load = ["-s", socket, "-q", "-t", "get,set", "-n", "60000", "-r", "50000", "-d", "300"];
    assert!(Command::new("redis-benchmark")
        .args(load)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap()
        .success());
    assert_eq!(
        cli(&["eval", "local n=0 for i=0,119999 do n=n+#redis.call('get','key:'..i) end return n", "0"]),
        "48000000"
    );
    assert_eq!(digest.len(), 40, "{digest}");
    cli(&["shutdown", "nosave"]);
    assert_eq!(server.wait().unwrap().code(), Some(0));
    let text = std::fs::read_to_string(&report).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{report}");
}

/// A stress program's own verification passes while pages are evicted.
fn verifies_itself(name: &str, ram: &str, command: &[&str]) {
    if !can_manage() || !has(command[0]) {
        return;
    }
    let scratch = Scratch::new(name);
    let (output, report) = managed(ram, &scratch, &["-q"], command);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{name}: {said}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{name}: nothing was evicted: {report}");
}

#[test]
fn stress_ng_verifies_its_memory() {
    let command =
        ["stress-ng", "--vm", "2", "--vm-bytes", "100M", "--vm-method", "all", "--verify", "-t", "20"];
    verifies_itself("stress-ng", "60M", &command);
}

/// A table of 24,000 cells, and objects. A process with only its first thread forks.
#[test]
fn chromium_renders_a_page() {
    let scratch = Scratch::new("chromium-src");
    let page = scratch.write(
        "page.html",
        "<html><body><p id=sum></p><script>\
         const all = []; for (let i = 0; i < 400000; i++) all.push({i, s: 'x' + i, l: [i, i + 1]});\
         let sum = 0; for (let i = 0; i < all.length; i += 7) sum += all[i].l[1];\
         const table = document.createElement('table');\
         for (let i = 0; i < 3000; i++) { const row = table.insertRow();\
         for (let j = 0; j < 8; j++) row.insertCell().textContent = i * j; }\
         document.body.appendChild(table); document.getElementById('sum').textContent = sum + ' ' + table.offsetHeight;\
         </script></body></html>",
    );
    let profile = format!("--user-data-dir={}", scratch.path("profile").display());
    let page = format!("file://{}", page.display());
    let command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", &profile, "--dump-dom", &page];
    same_answer("chromium", "240M", &std::env::temp_dir(), &command);
}
