//! The uzswap program.

fn main() {}
