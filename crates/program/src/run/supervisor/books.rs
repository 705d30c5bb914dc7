//! The shared memory of a tree, by user: each user has its own ledger, board and swap file, and
//! processes receive only their user's.

use std::io;
use std::os::fd::RawFd;

use ledger::{Keeper, Settings, Share, Slot, Tree};

use crate::run::peers::Owner;
use crate::run::supervisor::swap::{Swap, SwapArguments};
use crate::size::{self, Size};

/// Users of one tree. Each has memfds and may have a swap file.
const USERS_MAX: usize = 64;

/// The most that a processor touches in 2 ms, the interval between looks.
const TOUCHED_BYTES: u64 = 16 << 20;

/// Returns the bytes promised to `others` of a tree's users until the next look. A user's processes
/// know their own sum at once, and the others' from the last look. So each user is promised an
/// equal part of the free memory, which counts as used to the others, and the budget holds. Free
/// memory ends where pagers begin to reclaim, so that a promise alone evicts no pages.
fn promised(budget: u64, total: u64, users: u64, others: u64) -> u64 {
    (budget - budget / 16).saturating_sub(total).div_ceil(users.max(1)) * others
}

struct Book {
    owner: Owner,
    keeper: Keeper,
    swap: Option<Swap>,
    has_no_swap: bool,
    bytes: u64,
}

pub struct Books {
    pub settings: Settings,
    number: u64,
    books: Vec<Book>,
    /// The ledgers.
    pub tree: Tree,
    arguments: SwapArguments,
    /// Opened before the program started, for the first user who needs one.
    spare: Option<Swap>,
    /// The most that all processes touch between two looks.
    touched_max: u64,
    /// The use of all processes at the last look, and the most so far.
    pub total_bytes: u64,
    pub total_peak_bytes: u64,
}

impl Books {
    /// Creates the books of tree `number`. Fails if the settings are too long, or without memfds.
    pub fn new(
        settings: Settings,
        number: u64,
        arguments: SwapArguments,
        spare: Option<Swap>,
    ) -> io::Result<Self> {
        // A trial, so that errors appear before the program starts.
        Keeper::create(&settings, number)?;
        Ok(Books {
            settings,
            number,
            books: Vec::new(),
            tree: Tree::default(),
            arguments,
            spare,
            touched_max: TOUCHED_BYTES * sys::cpu::count() as u64,
            total_bytes: 0,
            total_peak_bytes: 0,
        })
    }

    /// Sets the process id by which users know the tree.
    pub fn set_supervisor(&mut self, pid: u32) {
        self.settings.supervisor = pid;
        self.books.iter().for_each(|book| book.keeper.set_supervisor(pid));
    }

    /// Gives a process of `owner` a place, or returns why there is none.
    pub fn join(&mut self, owner: Owner, pid: u32) -> Result<usize, String> {
        let at = match self.books.iter().position(|book| book.owner == owner) {
            Some(at) => at,
            None => self.open(owner)?,
        };
        let index = self.books[at].keeper.claim(pid);
        let index = index.ok_or("more processes at a time than the ledger has room for")?;
        Ok(Tree::place(at, index))
    }

    fn open(&mut self, owner: Owner) -> Result<usize, String> {
        if self.books.len() >= USERS_MAX {
            return Err("more users than there is room for".to_owned());
        }
        let keeper = Keeper::create(&self.settings, self.number);
        let keeper = keeper.map_err(|error| format!("no ledger for {owner}: {error}"))?;
        self.tree.add(keeper.ledger());
        self.books.push(Book { owner, keeper, swap: None, has_no_swap: false, bytes: 0 });
        self.audit();
        Ok(self.books.len() - 1)
    }

    /// Returns the memfds of a place: board and ledger.
    pub fn files(&self, place: usize) -> [RawFd; 2] {
        self.books[Tree::at(place).0].keeper.files()
    }

    /// Returns a part of the owner's swap file (see `ledger::wire`); `None` without a swap file. An
    /// error is returned once.
    pub fn swap_part(&mut self, place: usize, number: u32) -> Result<Option<RawFd>, String> {
        let book = &mut self.books[Tree::at(place).0];
        if book.swap.is_none() && !book.has_no_swap {
            let swap = self.spare.take().map_or_else(|| self.arguments.open(), |spare| Ok(Some(spare)));
            book.has_no_swap = swap.is_err();
            book.swap = swap.map_err(|error| format!("no swap file for {}: {error:#}", book.owner))?;
        }
        Ok(book.swap.as_ref().and_then(|swap| swap.part(number)))
    }

    /// Returns whether there is room for all pages that are out. Says so if there is not.
    pub fn can_leave(&self) -> bool {
        let sum =
            |of: fn(&Slot) -> u64| self.tree.live().map(|live| of(live.slot)).fold(0, u64::saturating_add);
        let out = (sum(Slot::stored_pages) + sum(Slot::disk_pages)).saturating_mul(4096);
        let needed = out.saturating_sub(sum(Slot::pool_bytes));
        let rooms = self.tree.live().map(|live| size::available_bytes(live.pid));
        let room = rooms.min().unwrap_or(u64::MAX);
        let fits = needed <= room;
        if !fits {
            eprintln!(
                "uzswap: cannot leave: {} would have to come in, and only {} are free: stop the program or make room",
                Size::from(needed),
                Size::from(room)
            );
        }
        fits
    }

    /// Returns a swap file, if one was asked for. All have the same settings.
    pub fn swap(&self) -> Option<&Swap> {
        self.books.iter().find_map(|book| book.swap.as_ref()).or(self.spare.as_ref())
    }

    pub fn swap_used_bytes(&self) -> u64 {
        self.books.iter().filter_map(|book| book.swap.as_ref()).map(|swap| swap.shared.used_bytes()).sum()
    }

    /// Releases a place whose process has ended: all its threads, and their writes, have ended too.
    pub fn leave(&mut self, place: usize) {
        // A process that changed its user may have used another user's file before.
        self.books.iter().filter_map(|book| book.swap.as_ref()).for_each(|swap| swap.reap(place));
        let (at, index) = Tree::at(place);
        self.books[at].keeper.release(index);
    }

    /// Returns the relatives' share in the memory of the process in a place.
    pub fn share(&self, place: usize) -> Share {
        let (at, index) = Tree::at(place);
        self.books[at].keeper.ledger().share(index)
    }

    /// Sets that share.
    pub fn set_share(&self, place: usize, share: Share) {
        let (at, index) = Tree::at(place);
        self.books[at].keeper.set_share(index, share);
    }

    /// Overrides the use that the process in a place reports; `None` restores its own figure.
    pub fn know(&mut self, place: usize, bytes: Option<u64>) {
        let (at, index) = Tree::at(place);
        self.books[at].keeper.know(index, bytes);
    }

    /// Adds up all uses, corrects the shared sums, and tells each user the use of the others.
    pub fn audit(&mut self) {
        for book in &mut self.books {
            book.bytes = book.keeper.audit();
        }
        self.tell();
    }

    /// Like `audit`, but cheaper: does not correct sums.
    pub fn relay(&mut self) {
        for book in &mut self.books {
            book.bytes = book.keeper.sum();
        }
        self.tell();
    }

    /// Returns whether processes of several users live, which know of each other only by `tell`.
    pub fn has_several_users(&self) -> bool {
        self.books.iter().filter(|book| book.keeper.processes() > 0).nth(1).is_some()
    }

    /// Tells each user the use of the others and their promises until the next look.
    fn tell(&mut self) {
        let total = self.books.iter().fold(0, |sum: u64, book| sum.saturating_add(book.bytes));
        self.total_bytes = total;
        self.total_peak_bytes = self.total_peak_bytes.max(total);
        let pagers: u64 = self.books.iter().map(|book| book.keeper.pagers()).sum();
        let users = self.books.iter().filter(|book| book.keeper.processes() > 0).count() as u64;
        let budget = self.settings.budget_bytes;
        for book in &self.books {
            let others = users - u64::from(book.keeper.processes() > 0);
            let promised = promised(budget, total, users, others).min(self.touched_max);
            let others = (total - book.bytes).saturating_add(promised);
            let other_pagers = pagers - book.keeper.pagers().min(pagers);
            book.keeper.set_others(others, other_pagers, self.total_peak_bytes);
        }
    }

    /// Returns how often a shared sum was corrected.
    pub fn corrections(&self) -> u64 {
        self.books.iter().map(|book| book.keeper.corrections()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::Ledger;

    fn books() -> Books {
        let settings = Settings { budget_bytes: BUDGET, compressor: "lz4".into(), ..Settings::default() };
        Books::new(settings, 1, SwapArguments::default(), None).unwrap()
    }

    fn owner(user: u32) -> Owner {
        Owner::of(&crate::run::peers::Ids::of_user(user))
    }

    const BUDGET: u64 = 32 << 20;
    /// The reclaim level, up to which free memory is promised.
    const MARK: u64 = 30 << 20;

    fn joined_total(books: &Books, at: usize) -> u64 {
        let keeper = &books.books[at].keeper;
        Ledger::map(keeper.board_file(), keeper.ledger_file()).unwrap().total_bytes()
    }

    #[test]
    fn users_have_ledgers_of_their_own_and_one_budget() {
        let mut books = books();
        let places = [(0, 10), (7, 11), (7, 12)].map(|(user, pid)| books.join(owner(user), pid).unwrap());
        assert_eq!(books.files(places[1]), books.files(places[2]));
        assert!(books.files(places[0]).iter().all(|file| !books.files(places[1]).contains(file)));
        for (place, bytes) in places.into_iter().zip([100, 20, 3]) {
            let (at, index) = Tree::at(place);
            books.books[at].keeper.ledger().publish(index, bytes, 0, 0, 0);
        }
        books.audit();
        assert_eq!((books.total_bytes, books.total_peak_bytes), (123, 123));
        for at in 0..2 {
            // What the other was promised counts.
            assert_eq!(joined_total(&books, at), 123 + (MARK - 122) / 2);
        }
        // Both users take everything they were promised between two looks.
        for place in [0, 1].map(|at: usize| places[at]) {
            let (at, index) = Tree::at(place);
            let room = MARK - books.books[at].keeper.ledger().total_bytes();
            let ledger = books.books[at].keeper.ledger();
            ledger.publish(index, ledger.slot(index).resident_bytes() + room, 0, 0, 0);
        }
        books.relay();
        assert!((MARK - 2..=MARK).contains(&books.total_bytes));
        for (place, bytes) in places.into_iter().zip([100, 20, 3]) {
            let (at, index) = Tree::at(place);
            books.books[at].keeper.ledger().publish(index, bytes, 0, 0, 0);
        }
        books.leave(places[0]);
        books.audit();
        assert_eq!(books.total_bytes, 23);
        assert_eq!(joined_total(&books, 1), 23, "a user without processes is promised nothing");
        assert_eq!(books.tree.live().map(|live| live.pid).collect::<Vec<_>>(), [11, 12]);
        assert_eq!(books.swap_part(places[1], 0), Ok(None), "none was asked for");
    }

    /// Promises from the whole budget made a tree of twenty users page at two thirds of it.
    #[test]
    fn promises_make_no_pages_leave() {
        for users in 1..=USERS_MAX as u64 {
            for total in (0..=BUDGET + 4096).step_by(4096) {
                let seen = total + promised(BUDGET, total, users, users - 1);
                assert!(seen <= total.max(MARK), "{users} users with {total} bytes see {seen}");
            }
        }
        let mut books = books();
        books.touched_max = 1000;
        for user in [0, 7, 8] {
            books.join(owner(user), user + 1).unwrap();
        }
        books.audit();
        assert_eq!(joined_total(&books, 2), 1000, "no more than can be touched");
    }

    #[test]
    fn users_are_bounded() {
        let mut books = books();
        for user in 1..=USERS_MAX as u32 {
            books.join(owner(user), user).unwrap();
        }
        assert!(books.join(owner(1000), 1000).is_err());
        assert!(books.join(owner(1), 1000).is_ok());
    }
}
