//! Scratch.
use forerun_core::roofline::*;
fn main() {
    let c = Config { buffer_bytes: 512 << 20, threads: vec![1], rounds: 3, ..Config::default() };
    let r = measure(&c, |_, _| ()).unwrap();
    for c in &r.cells { println!("{:?}: {:.1}", c, c.ns_per_line()); }
}
