//! Algorithms by name.

use std::sync::Arc;

use crate::Algorithm;

/// The name is unknown, or its parameter is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{}", told(.name, .reason, .known))]
pub struct UnknownAlgorithm {
    /// The requested name.
    pub name: String,
    /// Why a known family refused it; empty if no family has the name.
    pub reason: String,
    /// Usages of the known families, in the order of registration.
    pub known: Vec<String>,
}

fn told(name: &str, reason: &str, known: &[String]) -> String {
    if reason.is_empty() {
        return format!("unknown compressor {name:?}; known: {}", known.join(", "));
    }
    let family = name.split(':').next().unwrap_or_default();
    let usage = known.iter().find(|usage| usage.split(['[', ':']).next() == Some(family));
    let usage = usage.map_or_else(String::new, |usage| format!("; write {usage}"));
    format!("compressor {name:?}: {reason}{usage}")
}

type Make = Box<dyn Fn(Option<&str>) -> Result<Arc<dyn Algorithm>, String> + Send + Sync>;

struct Family {
    name: &'static str,
    usage: &'static str,
    make: Make,
}

/// The algorithms a program knows. Crates with algorithms offer a function that registers them.
#[derive(Default)]
pub struct Registry {
    families: Vec<Family>,
    /// Families that this build leaves out, and the features that include them.
    left_out: Vec<(&'static str, &'static str)>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the family `name`, shown to users as `usage` (`zstd:LEVEL`). `make` receives the text
    /// after the colon, if any, and returns an algorithm or why the parameter is wrong.
    pub fn register<F>(&mut self, name: &'static str, usage: &'static str, make: F)
    where
        F: Fn(Option<&str>) -> Result<Arc<dyn Algorithm>, String> + Send + Sync + 'static,
    {
        assert!(self.families.iter().all(|family| family.name != name), "{name} registered twice");
        self.families.push(Family { name, usage, make: Box::new(make) });
    }

    /// Notes that only builds with the feature `feature` have the family `name`; errors mention it.
    pub fn leave_out(&mut self, name: &'static str, feature: &'static str) {
        self.left_out.push((name, feature));
    }

    /// Usages of all families, as shown in help and errors.
    pub fn usages(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.families.iter().map(|family| family.usage)
    }

    /// Finds `name`, which may carry a parameter after a colon.
    ///
    /// # Errors
    /// [`UnknownAlgorithm`], which lists the known ones.
    pub fn find(&self, name: &str) -> Result<Arc<dyn Algorithm>, UnknownAlgorithm> {
        let (family, parameter) = match name.split_once(':') {
            Some((family, parameter)) => (family, Some(parameter)),
            None => (name, None),
        };
        let unknown = |reason: String| UnknownAlgorithm {
            name: name.to_owned(),
            reason,
            known: self.usages().map(str::to_owned).collect(),
        };
        let found = self.families.iter().find(|known| known.name == family);
        let found = found.ok_or_else(|| {
            let left_out = self.left_out.iter().find(|(name, _)| *name == family);
            unknown(left_out.map_or_else(String::new, |(_, feature)| {
                format!(
                    "this build leaves it out; the Debian package has it, or build uzswap with `--features {feature}`"
                )
            }))
        })?;
        (found.make)(parameter).map_err(unknown)
    }
}
