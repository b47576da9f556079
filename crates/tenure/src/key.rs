//! The name of a lock. Every key is checked by `Key::new`: a `Key` is safe to print and to put into
//! a path, a statement or a script, and it fits every server.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The name of a lock: 1 to 512 bytes of UTF-8, without control characters and invisible ones, and
/// without a blank at either end.
///
/// Slashes have no meaning to tenure; `orders/42` is a name like any other. When part of a key
/// comes from a user's input, put the fixed part first, **and end it with a separator**
/// (`orders/{id}`): whatever the input contains, it cannot leave that prefix, nor the namespace of
/// the server. Without the separator, `order` and `s/42` are the key `orders/42`. The same holds
/// for [`Config::prefix`](crate::Config::prefix).
///
/// Refused as control characters are also the line and paragraph separators and the marks that turn
/// the direction of text: they do to a terminal or a log what control characters do. Refused as
/// invisible are those that Unicode lets a program ignore, such as the soft hyphen, the zero-width
/// space and joiners, and variation selectors: `deploy` with one of them looks like `deploy`, and
/// would be another lock.
///
/// **Names are compared byte by byte and not normalized.** `é` as one character and as `e` with an
/// accent, which is what some systems make of file names, are two locks; so are letters of
/// different alphabets that look alike. Where names come from users or from files, normalize
/// them (NFC) first.
///
/// # Examples
///
/// ```
/// use tenure::Key;
///
/// let key = Key::new("orders/42")?;
/// assert_eq!(key.as_str(), "orders/42");
/// assert!(Key::new("").is_err());
/// assert!(Key::new("two\nlines").is_err());
/// assert!(Key::new("deploy ").is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes, together with its prefix. Every server can index this much.
    pub const MAX_LEN: usize = 512;

    /// Checks a name and makes it a key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty, too long, has a control character or an
    /// invisible one in it, or a blank at either end.
    pub fn new(name: impl AsRef<str>) -> Result<Key> {
        let name = name.as_ref();
        check(name)?;
        Ok(Key(name.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This key behind a prefix; the two together have to be a key as well.
    pub(crate) fn prefixed(&self, prefix: &str) -> Result<Key> {
        if prefix.is_empty() { Ok(self.clone()) } else { Key::new(format!("{prefix}{self}")) }
    }

    /// The key that stands behind `prefix`, if it does.
    pub(crate) fn strip(&self, prefix: &str) -> Option<Key> {
        match self.0.strip_prefix(prefix)? {
            "" => None,
            _ if prefix.is_empty() => Some(self.clone()),
            rest => Some(Key(rest.into())),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for Key {
    type Error = Error;
    fn try_from(name: &str) -> Result<Key> {
        Key::new(name)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;
    fn try_from(name: String) -> Result<Key> {
        Key::new(name)
    }
}

impl TryFrom<&String> for Key {
    type Error = Error;
    fn try_from(name: &String) -> Result<Key> {
        Key::new(name)
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

impl std::str::FromStr for Key {
    type Err = Error;
    fn from_str(name: &str) -> Result<Key> {
        Key::new(name)
    }
}

/// Whether a character could act on a terminal or a log instead of being shown.
pub(crate) fn acts_on_a_terminal(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2066}'..='\u{2069}');
    // Line and paragraph separators, and the older marks of direction.
    let breaks = matches!(c, '\u{2028}'..='\u{202e}');
    c.is_control() || turns || breaks
}

/// Whether a character is shown as nothing: what Unicode calls *default ignorable*.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A name in a message: with control characters and invisible ones escaped.
fn shown(name: &str) -> String {
    let escape = |c: char| {
        if is_invisible(c) { c.escape_unicode().to_string() } else { c.escape_debug().to_string() }
    };
    name.chars().map(escape).collect()
}

fn check(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "the key is empty; give the lock a name"));
    }
    if name.len() > Key::MAX_LEN {
        let message = format!(
            "the key `{}…` has {} bytes; at most {} are allowed",
            shown(&name.chars().take(32).collect::<String>()),
            name.len(),
            Key::MAX_LEN
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let found = |kind: &str, c: char| {
        let name = shown(name);
        let c = c.escape_unicode();
        let message = format!("the key `{name}` contains the {kind} character {c}; remove it");
        Err(Error::new(ErrorKind::Invalid, message))
    };
    if let Some(c) = name.chars().find(|&c| acts_on_a_terminal(c)) {
        return found("control", c);
    }
    if let Some(c) = name.chars().find(|&c| is_invisible(c)) {
        return found("invisible", c);
    }
    if name.trim() != name {
        let message = format!("the key `{}` has a blank at an end; remove it", shown(name));
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_printable_text_is_a_key() {
        for name in
            ["a", "orders/42", "../../etc/passwd", "'; DROP TABLE x; --", "日本 🦀", "{a}b", "a b"]
        {
            assert_eq!(Key::new(name).unwrap().as_str(), name);
        }
        assert!(Key::new("k".repeat(Key::MAX_LEN)).is_ok());
    }

    #[test]
    fn what_could_break_a_terminal_is_refused_and_shown_escaped() {
        for name in ["", "a\nb", "\u{1b}[2J", "a\0", "\u{202e}evil", "a\u{2028}b", "\u{9b}x"] {
            let error = Key::new(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!error.to_string().contains(acts_on_a_terminal), "{error:?}");
        }
    }

    /// Two such names were two locks, and looked like one.
    #[test]
    fn names_that_cannot_be_told_apart_by_eye_are_refused_and_shown_escaped() {
        let unseen = ["\u{200b}", "\u{ad}", "\u{200d}", "\u{2060}", "\u{feff}", "\u{fe0f}"];
        for hidden in unseen {
            for name in [format!("deploy{hidden}"), format!("de{hidden}ploy"), hidden.to_owned()] {
                let error = Key::new(&name).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid);
                assert!(!error.to_string().contains(is_invisible), "{error:?}");
            }
        }
        for name in ["deploy ", " deploy", " ", "deploy\u{a0}", "\u{3000}deploy"] {
            let error = Key::new(name).unwrap_err();
            assert!(error.to_string().contains("blank at an end"), "{error}");
        }
        let long = "\u{200b}".repeat(Key::MAX_LEN);
        assert!(!Key::new(long).unwrap_err().to_string().contains(is_invisible));
    }

    #[test]
    fn a_key_over_the_limit_is_refused_by_its_bytes() {
        let error = Key::new("é".repeat(257)).unwrap_err();
        assert!(error.to_string().contains("514 bytes"), "{error}");
    }

    #[test]
    fn a_prefix_is_put_on_and_taken_off() {
        let key = Key::new("b").unwrap();
        let full = key.prefixed("a/").unwrap();
        assert_eq!(full.as_str(), "a/b");
        assert_eq!(full.strip("a/"), Some(key));
        assert_eq!(full.strip("a/b"), None);
        assert_eq!(full.strip("x"), None);
    }
}
