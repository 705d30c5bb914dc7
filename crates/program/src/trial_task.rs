//! The task that `uzswap check` runs under uzswap: it fills memory and reads it back.
//!
//! Each input line is a command, `fill` or `read`. Prints `ready` first, `done` after each.

use std::io::{BufRead, Write};

use anyhow::{bail, Context, Result};

const WORDS: usize = sys::PAGE_SIZE / size_of::<u64>();

/// Arguments of the hidden verb.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Memory to fill
    bytes: usize,
}

impl Arguments {
    /// Executes the commands until standard input ends.
    pub fn run(&self) -> Result<()> {
        let mut words = vec![0; self.bytes / size_of::<u64>()];
        say("ready")?;
        for line in std::io::stdin().lock().lines() {
            match &*line? {
                "fill" => fill(&mut words),
                "read" => check(&words)?,
                other => bail!("no such step: {other:?}"),
            }
            say("done")?;
        }
        Ok(())
    }
}

/// Each word holds its own index: half of a page is zeroes, and all pages differ.
fn fill(words: &mut [u64]) {
    words.iter_mut().enumerate().for_each(|(number, word)| *word = number as u64);
}

fn check(words: &[u64]) -> Result<()> {
    match words.iter().enumerate().find(|(number, word)| **word != *number as u64) {
        Some((number, _)) => bail!("page {} is not as it was written", number / WORDS),
        None => Ok(()),
    }
}

fn say(text: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").context("the reader of this task is gone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_found_and_its_page_named() {
        let mut words = vec![0; 8 * WORDS];
        fill(&mut words);
        check(&words).unwrap();
        words[5 * WORDS + 77] ^= 1;
        assert!(check(&words).unwrap_err().to_string().contains("page 5 "));
    }
}
