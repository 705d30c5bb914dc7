//! Makes other programs' text safe to print.

/// Escapes control characters and characters that change the writing direction.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            // Backslashes stay, so paths remain readable.
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                shown.extend(character.escape_unicode());
            }
            other if other.is_control() => shown.extend(other.escape_default()),
            other => shown.push(other),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn control_characters_are_shown_by_their_numbers() {
        assert_eq!(plain("a \\ 'ü' \u{1f600}"), "a \\ 'ü' \u{1f600}");
        assert_eq!(plain("a\x1b[2Jb\r\n\0\x7f\u{9b}5m"), "a\\u{1b}[2Jb\\r\\n\\u{0}\\u{7f}\\u{9b}5m");
        assert_eq!(plain("txt.\u{202e}exe\u{2028}"), "txt.\\u{202e}exe\\u{2028}");
        let all: String = (0..0x3000).filter_map(char::from_u32).collect();
        assert!(!plain(&all).chars().any(char::is_control));
    }
}
