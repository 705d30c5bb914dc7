#![allow(missing_docs)]
use replacement::{simulate::*, trace::Reader};
fn main() {
    let names: Vec<String> = std::env::args().nth(1).unwrap().split(',').map(str::to_owned).collect();
    for path in std::env::args().skip(2) {
        let out = std::process::Command::new("zstd").args(["-dc", &path]).output().unwrap().stdout;
        let trace: Vec<_> = Reader::new(&out[..]).unwrap().map(|r| r.unwrap()).collect();
        let refs = References::new(&trace);
        let peak = refs.peak_pages();
        for share in [25, 50, 70] {
            let pages = peak * share / 100;
            print!("{} peak {peak} {share}%:", path.rsplit('/').next().unwrap());
            for name in &names {
                let t = std::time::Instant::now();
                let mut p = policy(name, &refs, pages).unwrap();
                let o = play(&refs, &mut *p);
                print!(" {name} {} ({:.1}s)", o.pages_in, t.elapsed().as_secs_f64());
                if name == "pager" {
                    print!(" [{}; looks/in {:.1}]", o.note, o.looks as f64 / o.pages_in as f64);
                }
            }
            println!();
        }
    }
}
