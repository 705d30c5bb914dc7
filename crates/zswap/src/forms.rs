//! The forms of stored pages, for reports.

use acomp::{Algorithm, Object};

const SAME: usize = 0;
/// Pages kept raw.
const RAW: usize = 1;
/// First of the algorithm's forms; one for all of its objects if it does not distinguish them.
const FIRST: usize = 2;

/// Most forms.
pub const FORMS_MAX: usize = FIRST + acomp::FORMS_MAX;

/// Pages by stored form; [`form_names`] has the names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forms {
    /// Pages of each form.
    pub pages: [u32; FORMS_MAX],
    /// Requests to the compressor for these pages; their units include those that did not shrink.
    pub compress: Requests,
}

/// Requests to a compressor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// All of them.
    pub count: u32,
    /// Units in them.
    pub units: u32,
    /// Those of `count` that emulated devices served.
    pub emulated: u32,
}

impl Requests {
    pub(crate) fn add(&mut self, algorithm: &dyn Algorithm, units: usize) {
        self.count += 1;
        self.units += units as u32;
        self.emulated += u32::from(algorithm.is_emulated());
    }
}

/// Receives the forms of every folio once all of it is stored, from any thread at any time, so it
/// must neither allocate nor take long. A folio stored during a change of compressor may have forms
/// of both.
pub type Tally = fn(&Forms);

/// Receives the requests to decompress of each load that needs some, as [`Tally`] does.
pub type LoadTally = fn(&Requests);

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

/// The names of an algorithm's [`Forms`], in order; a repeated name has one meaning. If all objects
/// are alike, their form is the algorithm's name without parameters.
pub fn form_names(algorithm: &dyn Algorithm) -> Vec<String> {
    let own = algorithm.forms();
    let family = algorithm.name().split(':').next().unwrap_or_default();
    let alike = own.is_empty().then_some(family);
    ["same", "raw"].into_iter().chain(own.iter().copied()).chain(alike).map(str::to_owned).collect()
}
