//! Escapes text from histories, which can contain anything: names, keys and messages.

use std::fmt::Write;

/// Escapes text for the content and the attributes of HTML and SVG. Active characters, and those
/// that XML forbids, are shown as `\u{…}`.
pub(super) fn xml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if is_active(c) => {
                // Writing to a string cannot fail.
                let _ignored = write!(safe, "{}", c.escape_unicode());
            }
            c => safe.push(c),
        }
    }
    safe
}

/// Escapes text for a terminal.
pub(super) fn terminal(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_active(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    safe
}

/// Escapes lines of JSON inside a script: no `<` can end the script or open a comment, and there is
/// no active character. The JSON value stays the same.
pub(super) fn script(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '<' || (is_active(c) && c != '\n') {
            let _ignored = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// At most this many characters, cut in the middle: names differ most at their ends.
pub(super) fn short(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let tail = most / 3;
    let head: String = text.chars().take(most - tail - 1).collect();
    let tail: String = text.chars().skip(count - tail).collect();
    format!("{head}…{tail}")
}

/// Whether a character is active: control characters, marks that change the direction of text or
/// break lines, and what XML forbids.
fn is_active(c: char) -> bool {
    let directs = matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2066}'..='\u{2069}');
    let forbidden = matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{feff}');
    c.is_control() || directs || forbidden || matches!(c, '\u{2028}'..='\u{202e}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_contains_no_markup() {
        let hostile = "</title><script>alert('\u{202e}\"&')</script>\u{0}\u{1b}[2J";
        let safe = xml(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{202e}', '\u{0}', '\u{1b}']), "{safe}");
        assert!(!script(hostile).contains('<'));
        assert!(!terminal(hostile).contains('\u{1b}'));
    }

    #[test]
    fn a_script_has_the_same_value() {
        let json = serde_json::to_string("<!-- </script> &amp; \u{2028}").unwrap();
        let back: String = serde_json::from_str(&script(&json)).unwrap();
        assert_eq!(back, "<!-- </script> &amp; \u{2028}");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(short("orders/2026/11/15/42", 10), "orders…/42");
        assert_eq!(short("ok", 10), "ok");
    }
}
