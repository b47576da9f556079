//! Strangers' text made harmless: names, keys and messages can hold anything.

use std::fmt::Write;

/// For the text and the attributes of HTML and SVG. Characters that act, or that XML forbids, are
/// shown as `\u{…}`.
pub(super) fn xml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if acts(c) => {
                // Writing to a string cannot fail.
                let _always = write!(safe, "{}", c.escape_unicode());
            }
            c => safe.push(c),
        }
    }
    safe
}

/// For a terminal.
pub(super) fn terminal(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    safe
}

/// For lines of JSON inside a script: no `<` can end it or open a comment, and nothing acts. The
/// value is the same.
pub(super) fn script(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '<' || (acts(c) && c != '\n') {
            let _always = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// At most so many characters, cut in the middle: the ends of a name tell most.
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

/// Control characters, marks that turn or break lines of text, and what XML has no place for.
fn acts(c: char) -> bool {
    let turns = matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2066}'..='\u{2069}');
    let nothing = matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{feff}');
    c.is_control() || turns || nothing || matches!(c, '\u{2028}'..='\u{202e}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_leaves_its_place() {
        let hostile = "</title><script>alert('\u{202e}\"&')</script>\u{0}\u{1b}[2J";
        let safe = xml(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{202e}', '\u{0}', '\u{1b}']), "{safe}");
        assert!(!script(hostile).contains('<'));
        assert!(!terminal(hostile).contains('\u{1b}'));
    }

    #[test]
    fn a_script_holds_the_same_value() {
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
