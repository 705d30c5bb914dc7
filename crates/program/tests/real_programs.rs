//! Real programs: the same output and exit status, bare and in about half of the memory they want.

mod support;

use std::path::Path;

use support::{command, has, managed, printed, run, wait_until, Ran, Scratch, Started};

fn same_answer(ram: &str, words: &[&str]) {
    let Some(ran) = managed(ram, &["-q", "--verify"], words) else { return };
    let bare = Ran::of(&mut command(words));
    assert_eq!(ran.status, bare.status, "{ran}");
    assert!(ran.printed == bare.printed, "another result: {ran}");
    assert!(ran.number("zswpout") > 1000, "nothing was evicted: {ran}");
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
    same_answer("72M", &["python3", &script]);
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
    same_answer("90M", &["node", &script]);
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
    printed(&mut command(&["javac", &source]));
    same_answer("110M", &["java", "-Xmx300m", "-cp", &scratch.text(""), "J"]);
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
    same_answer("100M", &["g++", "-O2", "-S", "-o", "-", &source]);
}

#[test]
fn sort_of_a_large_file() {
    let scratch = Scratch::new("sort-src");
    let lines: String = (0..1_200_000u64).map(|i| format!("{} line {i}\n", i * 7919 % 10_000_019)).collect();
    let file = scratch.write("big.txt", &lines);
    same_answer("60M", &["sort", "-S", "200M", "--parallel=2", &file]);
}

#[test]
fn sqlite_in_memory_with_an_integrity_check() {
    let statements = "create table t(a integer primary key,b text,c real); with recursive n(i) as (select 1 union all \
                      select i+1 from n where i<700000) insert into t select i,hex(i*7)||'-row',i/3.0 from n; create \
                      index tb on t(b); select count(*),sum(length(b)),round(sum(c),1) from t; pragma integrity_check;";
    same_answer("32M", &["sqlite3", ":memory:", statements]);
}

#[test]
fn redis_under_load_then_a_digest() {
    if !support::can_manage() || !has("redis-server") || !has("redis-benchmark") {
        return;
    }
    let scratch = Scratch::new("redis");
    let (socket, report) = (scratch.text("socket"), scratch.text("report.json"));
    let words =
        ["redis-server", "--port", "0", "--unixsocket", &socket, "--save", "", "--enable-debug-command"];
    let options = ["-q", "--report", &report];
    let server = Started::new(&mut run("48M", &options, &[&words[..], &["yes"]].concat()));
    wait_until("redis listens", || Path::new(&socket).exists());
    let cli = |words: &[&str]| {
        let said = Ran::of(&mut command(&[&["redis-cli", "-s", &socket], words].concat())).printed;
        said.trim().to_owned()
    };
    // Known values, so the digest can be recomputed from them.
    assert_eq!(cli(&["debug", "populate", "120000", "key", "400"]), "OK");
    let digest = cli(&["debug", "digest"]);
    let benchmark = ["redis-benchmark", "-s", &socket, "-q", "-t", "get,set", "-n", "60000", "-r", "50000"];
    printed(&mut command(&[&benchmark[..], &["-d", "300"]].concat()));
    assert_eq!(
        cli(&["eval", "local n=0 for i=0,119999 do n=n+#redis.call('get','key:'..i) end return n", "0"]),
        "48000000"
    );
    assert_eq!(digest.len(), 40, "{digest}");
    cli(&["shutdown", "nosave"]);
    server.end().with_report(report).assert_paged();
}

/// Its own verification passes while pages are evicted.
#[test]
fn stress_ng_verifies_its_memory() {
    let command =
        ["stress-ng", "--vm", "2", "--vm-bytes", "100M", "--vm-method", "all", "--verify", "-t", "20"];
    let Some(ran) = managed("60M", &["-q"], &command) else { return };
    ran.assert_paged();
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
    let page = format!("file://{page}");
    let command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", &profile, "--dump-dom", &page];
    same_answer("240M", &command);
}
