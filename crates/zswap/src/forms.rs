//! In what forms pages are stored, for reports.

use acomp::{Algorithm, Object};

/// Pages that repeat a word.
const SAME: usize = 0;
/// Pages kept as they are.
const RAW: usize = 1;
/// The algorithm's forms come behind; one for all of its objects where it does not tell them apart.
const FIRST: usize = 2;

/// Forms told apart.
pub const FORMS_MAX: usize = FIRST + acomp::FORMS_MAX;

/// Pages by the form they are stored in; [`form_names`] has the names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forms {
    /// A number a form.
    pub pages: [u32; FORMS_MAX],
    /// Requests to the compressor that this took.
    pub requests: u32,
    /// Units in them, those included that did not shrink.
    pub units: u32,
}

/// Told the forms of every folio once all of it is stored, from any thread, at any time; so it
/// neither allocates nor takes long. A folio that is stored while the compressor is changed may
/// have forms of both.
pub type Tally = fn(&Forms);

impl Forms {
    pub(crate) fn add_same(&mut self, pages: usize) {
        self.pages[SAME] += pages as u32;
    }

    pub(crate) fn add_raw(&mut self, pages: usize) {
        self.pages[RAW] += pages as u32;
    }

    pub(crate) fn add_object(&mut self, algorithm: &dyn Algorithm, object: &[u8], pages: usize) {
        match algorithm.forms().len() {
            0 => self.pages[FIRST] += pages as u32,
            count => {
                let counts = &mut self.pages[FIRST..FIRST + count];
                algorithm.count_forms(Object::whole(object), pages, counts);
            }
        }
    }
}

/// The names of an algorithm's [`Forms`], in their order; a name that comes twice means the same
/// both times. Where all objects are alike, theirs is the algorithm's, without parameters.
pub fn form_names(algorithm: &dyn Algorithm) -> Vec<String> {
    let own = algorithm.forms();
    let family = algorithm.name().split(':').next().unwrap_or_default();
    let alike = own.is_empty().then_some(family);
    ["same", "raw"].into_iter().chain(own.iter().copied()).chain(alike).map(str::to_owned).collect()
}
