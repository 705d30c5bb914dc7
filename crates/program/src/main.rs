//! The uzswap program.

fn main() {
    uzswap_program::main()
}
