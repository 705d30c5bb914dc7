//! The child: it inherits copies of table, staging and pool, and pages itself.

use address_space::units::PageNumber;
use address_space::StartError;
use sys::maps;
use sys::memory::USER_END;
use sys::pagemap::Run;
use sys::procfs::ProcFile;
use sys::thread;
use sys::userfaultfd::feature;

use crate::registrations::is_private_memory;
use sys::pagemap::Pagemap;
use sys::userfaultfd::Userfaultfd;

use super::Forks;

impl Forks {
    /// The number after the pager's highest descriptor. A child uses the same numbers.
    pub fn numbers_end(&self) -> i32 {
        let (pages, files) = (&self.process.pages, &self.process.files);
        let own = [pages.pagemap().descriptor(), files.statm.descriptor(), files.maps.descriptor()];
        let reports = Some(pages.reports().descriptor());
        let gate = self.service.gate.descriptor();
        let window = pages.staging.discard_window.descriptor();
        let all = own.into_iter().chain(reports).chain(gate).chain([window]);
        all.max().map_or(0, |most| most + 1)
    }

    /// See `Pager::inherit`.
    pub fn inherit(&self, main: i32, gate: i32, copied: &[u64]) -> Result<(), StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let own_gate = self.service.gate.descriptor().expect("the parent had one");
        let end = self.numbers_end();
        let main = thread::renumber_above(main, end).map_err(system("userfaultfd"))?;
        let gate = thread::renumber_above(gate, end).map_err(system("userfaultfd"))?;
        let keep = |descriptor: i32, number: i32, what: &'static str| {
            let above = thread::renumber_above(descriptor, end).map_err(system(what))?;
            thread::renumber(above, number).map_err(system(what))
        };
        keep(main, self.process.pages.reports().descriptor(), "userfaultfd")?;
        keep(gate, own_gate, "userfaultfd")?;
        let window = &self.process.pages.staging.discard_window;
        keep(Userfaultfd::open(feature::MOVE)?.descriptor(), window.descriptor(), "userfaultfd")?;
        let pagemap = Pagemap::open().map_err(system("/proc/thread-self/pagemap"))?;
        keep(pagemap.descriptor(), self.process.pages.pagemap().descriptor(), "/proc/thread-self/pagemap")?;
        let files = [
            (c"statm", &self.process.files.statm, "/proc/thread-self/statm"),
            (c"maps", &self.process.files.maps, "/proc/thread-self/maps"),
        ];
        for (name, file, what) in files {
            let opened = ProcFile::open_own(name).map_err(system(what))?;
            keep(opened.descriptor(), file.descriptor(), what)?;
        }
        // `main` has guarded staging since the kernel made the child.
        window.guard().map_err(system("staging"))?;
        self.service.gate.end(self.process.pages.reports());

        // The parent's threads do not exist here. They held only their frame caches.
        self.reclaimer.reset();
        self.service.reset();
        self.process.pages.own_threads.reset();
        self.process.pages.forget_reports();
        self.lifecycle.reset_grace();
        self.process.pages.store.inherit();
        for at in copied {
            self.process.pages.forget_copied(PageNumber::of(*at as usize));
        }
        let mut registrations = self.process.registrations();
        // Out pages of unmapped ranges are useless, and a later mapping there must not find them.
        registrations
            .for_each_gap(&self.process.files.maps, |start, end| self.process.pages.discard(start, end));
        drop(registrations);
        self.discard_wiped().map_err(system("/proc/self/smaps"))?;
        self.process.refresh();
        self.process.gauge.note_inherited(self.process.pages.store.stored_pages());
        self.process.quiesce.reset();
        Ok(())
    }

    /// In the child: discards out pages of mappings that the kernel wiped (MADV_WIPEONFORK, which
    /// no event reports). Such a mapping has no present page. Mappings' flags are read only if a
    /// mapping has out pages and none present, because the kernel then visits every page.
    fn discard_wiped(&self) -> std::io::Result<()> {
        let (mut buffer, mut is_likely) = ([0; 8192], false);
        maps::for_each(&self.process.files.maps, &mut buffer, |mapping| {
            let (start, end) = (mapping.start, mapping.end.min(USER_END));
            is_likely |= is_private_memory(&mapping)
                && self.process.pages.table().busy(start, end).next().is_some()
                && self.process.pages.pagemap().present(start, end, &mut [Run::default()]).0 == 0;
        });
        if is_likely {
            let smaps = ProcFile::open(c"/proc/self/smaps")?;
            let forget = |start, end: usize| self.process.pages.discard(start, end.min(USER_END));
            maps::for_each_wiped(&smaps, &mut buffer, forget);
            smaps.close();
        }
        Ok(())
    }
}
