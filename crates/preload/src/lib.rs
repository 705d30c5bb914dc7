//! The shared object that uzswap run injects into a program
