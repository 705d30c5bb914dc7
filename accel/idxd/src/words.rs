//! Sets of words: in sysfs, in specifications of emulated devices, in control files.

/// Gives the variants of an enum their words: `word`, `Display` and `FromStr`.
macro_rules! words {
    ($name:ident, $known:literal, $($variant:ident => $word:literal),+) => {
        impl $name {
            /// The word for it.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
        impl std::str::FromStr for $name {
            type Err = $crate::Refusal;
            fn from_str(text: &str) -> Result<Self, $crate::Refusal> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::Refusal(format!("{text:?} is none of {}", $known))),
                }
            }
        }
    };
}
pub(crate) use words;
