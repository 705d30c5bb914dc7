//! Rows of pages, newest first: linked through an array, so that any page can leave.

const NONE: u32 = u32::MAX;

/// Rows over the same pages; a page is in at most one of them.
pub struct Rows {
    links: Vec<[u32; 2]>,
    row: Vec<u8>,
    ends: Vec<[u32; 2]>,
    lens: Vec<usize>,
}

/// The row number of a page that is in no row.
pub const NOWHERE: u8 = u8::MAX;

impl Rows {
    /// `rows` empty rows over `pages` pages.
    pub fn new(pages: usize, rows: usize) -> Self {
        Rows {
            links: vec![[NONE; 2]; pages],
            row: vec![NOWHERE; pages],
            ends: vec![[NONE; 2]; rows],
            lens: vec![0; rows],
        }
    }

    pub fn of(&self, page: u32) -> u8 {
        self.row[page as usize]
    }

    pub fn len(&self, row: u8) -> usize {
        self.lens[usize::from(row)]
    }

    /// Puts a page that is in no row at the front of one.
    pub fn push(&mut self, row: u8, page: u32) {
        debug_assert_eq!(self.of(page), NOWHERE);
        let [first, _] = self.ends[usize::from(row)];
        self.links[page as usize] = [NONE, first];
        match first {
            NONE => self.ends[usize::from(row)][1] = page,
            first => self.links[first as usize][0] = page,
        }
        self.ends[usize::from(row)][0] = page;
        self.row[page as usize] = row;
        self.lens[usize::from(row)] += 1;
    }

    pub fn take(&mut self, page: u32) {
        let row = usize::from(self.row[page as usize]);
        let [before, after] = self.links[page as usize];
        match before {
            NONE => self.ends[row][0] = after,
            before => self.links[before as usize][1] = after,
        }
        match after {
            NONE => self.ends[row][1] = before,
            after => self.links[after as usize][0] = before,
        }
        self.row[page as usize] = NOWHERE;
        self.lens[row] -= 1;
    }

    pub fn last(&self, row: u8) -> Option<u32> {
        Some(self.ends[usize::from(row)][1]).filter(|page| *page != NONE)
    }
}
