//! The tasks' data: index words as in usemem, random bytes, or the pages of files in turn.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use uzswap::{Page, PAGE_SIZE};

/// 8-byte words in a page.
const WORDS: usize = PAGE_SIZE / 8;

/// The options of the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DataArguments {
    /// Fill memory with the pages of these files in turn, instead of index words
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub pages: Vec<PathBuf>,
    /// Fill memory with random bytes, which do not compress
    #[arg(long, conflicts_with = "pages")]
    pub random: bool,
}

impl DataArguments {
    /// The same arguments, for the job and its tasks.
    pub fn words(&self) -> Vec<OsString> {
        let pages = self.pages.iter().flat_map(|path| ["--pages".into(), path.clone().into_os_string()]);
        pages.chain(self.random.then(|| "--random".into())).collect()
    }
}

/// The content of every page of a task.
pub enum Data {
    /// Each 8-byte word is its own index in the task's memory, from 0.
    Words,
    /// The words of a page are a sequence of random numbers of its own.
    Random {
        /// Of the task, so that no two tasks have the same pages.
        seed: u64,
    },
    /// The files' pages one after the other, repeated.
    Files {
        files: Vec<MappedPages>,
        pages: usize,
        /// The file page of page 0, so that tasks hold different pages at the same place.
        first: usize,
    },
}

impl Data {
    /// Data for task `index` of `tasks`.
    ///
    /// # Errors
    /// If a file cannot be read or is not whole pages.
    pub fn open(arguments: &DataArguments, index: usize, tasks: usize) -> Result<Self> {
        if arguments.random {
            return Ok(Data::Random { seed: (index as u64) << 48 });
        }
        if arguments.pages.is_empty() {
            return Ok(Data::Words);
        }
        let files = arguments.pages.iter().map(|path| MappedPages::open(path)).collect::<Result<Vec<_>>>()?;
        let pages = files.iter().map(|file| file.pages().len()).sum();
        Ok(Data::Files { files, pages, first: pages * index / tasks.max(1) })
    }

    #[inline]
    pub fn fill(&self, number: usize, page: &mut Page) {
        if let Some(from) = self.file_page(number) {
            return page.copy_from_slice(from);
        }
        let words = page.as_chunks_mut::<8>().0.iter_mut();
        match self {
            Data::Random { seed } => words
                .zip(first_word(number) + seed..)
                .for_each(|(word, index)| *word = mixed(index).to_ne_bytes()),
            _ => words.zip(first_word(number)..).for_each(|(word, index)| *word = index.to_ne_bytes()),
        }
    }

    /// Whether every byte of page `number` is as it was written.
    #[inline]
    pub fn check(&self, number: usize, page: &Page) -> bool {
        if let Some(from) = self.file_page(number) {
            return page == from;
        }
        let words = page.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        // Without a branch for each word, this is vector code.
        let wrong = match self {
            Data::Random { seed } => words
                .zip(first_word(number) + seed..)
                .fold(0, |wrong, (word, index)| wrong | (word ^ mixed(index))),
            _ => words.zip(first_word(number)..).fold(0, |wrong, (word, index)| wrong | (word ^ index)),
        };
        wrong == 0
    }

    fn file_page(&self, number: usize) -> Option<&Page> {
        let Data::Files { files, pages, first } = self else { return None };
        let mut number = (first + number) % pages;
        for file in files {
            match file.pages().get(number) {
                Some(page) => return Some(page),
                None => number -= file.pages().len(),
            }
        }
        unreachable!("the number is below the files' pages together")
    }
}

/// The index of a page's first word.
fn first_word(number: usize) -> u64 {
    (number * WORDS) as u64
}

/// The random word of this index (the mixer of splitmix64).
#[inline]
pub fn mixed(number: u64) -> u64 {
    let word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// A file of raw pages, mapped: it costs no anonymous memory.
pub struct MappedPages {
    at: *const Page,
    count: usize,
}

impl MappedPages {
    fn open(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let file = File::open(path).with_context(name)?;
        let metadata = file.metadata().with_context(name)?;
        ensure!(metadata.is_file(), "{} is no plain file", name());
        let len = metadata.len() as usize;
        ensure!(len > 0 && len.is_multiple_of(PAGE_SIZE), "{}: {len} bytes are not whole pages", name());
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).with_context(name);
        }
        Ok(MappedPages { at: at.cast(), count: len / PAGE_SIZE })
    }

    fn pages(&self) -> &[Page] {
        // SAFETY: mapped as long as `self` lives. The file should not change during that; if it
        // does, bytes are found wrong, and truncated pages end the task with SIGBUS: it measures
        // nothing false.
        unsafe { std::slice::from_raw_parts(self.at, self.count) }
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`.
        unsafe { libc::munmap(self.at.cast_mut().cast(), self.count * PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, pages: std::ops::Range<u8>) -> PathBuf {
        let path = std::env::temp_dir().join(format!("uzswap-data-{}-{name}", std::process::id()));
        let bytes: Vec<u8> = pages.flat_map(|byte| [byte; PAGE_SIZE]).collect();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn words_are_indices_and_every_byte_is_checked() {
        let data = Data::open(&DataArguments::default(), 3, 4).unwrap();
        let mut page = [0; PAGE_SIZE];
        data.fill(7, &mut page);
        assert_eq!(page[8..16], (7 * 512 + 1u64).to_ne_bytes());
        assert!(data.check(7, &page) && !data.check(8, &page));
        for at in [0, 9, 4095] {
            page[at] ^= 1;
            assert!(!data.check(7, &page), "byte {at}");
            page[at] ^= 1;
        }
    }

    #[test]
    fn random_pages_are_all_different_and_every_byte_is_checked() {
        let arguments = DataArguments { random: true, ..DataArguments::default() };
        let pages = [(0, 0), (0, 1), (1, 0)].map(|(task, number)| {
            let data = Data::open(&arguments, task, 2).unwrap();
            let mut page = [0; PAGE_SIZE];
            data.fill(number, &mut page);
            assert!(data.check(number, &page));
            page[4095] ^= 1;
            assert!(!data.check(number, &page));
            page
        });
        assert!(pages[0] != pages[1] && pages[0] != pages[2] && pages[1] != pages[2]);
        assert_eq!(arguments.words(), ["--random"]);
    }

    #[test]
    fn files_follow_each_other_and_tasks_start_apart() {
        let paths = [file("a", 0..3), file("b", 3..4)];
        let arguments = DataArguments { pages: paths.to_vec(), random: false };
        let order = |index| {
            let data = Data::open(&arguments, index, 2).unwrap();
            let mut page = [0xFF; PAGE_SIZE];
            (0..6)
                .map(|number| {
                    data.fill(number, &mut page);
                    assert!(data.check(number, &page));
                    page[PAGE_SIZE - 1] ^= 8;
                    assert!(!data.check(number, &page));
                    page[0]
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(order(0), [0, 1, 2, 3, 0, 1]);
        assert_eq!(order(1), [2, 3, 0, 1, 2, 3]);
        for path in paths {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_file_of_broken_pages_is_named() {
        let path = file("odd", 0..1);
        std::fs::write(&path, [1; 5000]).unwrap();
        let arguments = DataArguments { pages: vec![path.clone()], random: false };
        let error = Data::open(&arguments, 0, 1).err().unwrap().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("odd") && error.contains("5000 bytes"), "{error}");
    }
}
