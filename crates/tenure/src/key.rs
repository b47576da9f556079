//! The name of a lock. `Key::new` is the only door: what is a `Key` is safe to print, to put into a
//! path, a statement or a script, and fits every server.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters.
///
/// Slashes have no meaning to tenure; `orders/42` is a name like any other. When part of a key
/// comes from a user's input, put the fixed part first (`orders/{id}`): whatever the input holds,
/// it cannot leave that prefix, nor the namespace of the server.
///
/// Refused as control characters are also the line and paragraph separators and the marks that turn
/// the direction of text: they do to a terminal or a log what control characters do.
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
    /// [`ErrorKind::Invalid`] if the name is empty, too long, or has a control character in it.
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

fn check(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "the key is empty; give the lock a name"));
    }
    if name.len() > Key::MAX_LEN {
        let message = format!(
            "the key `{}…` has {} bytes; at most {} are allowed",
            name.chars().take(32).collect::<String>().escape_debug(),
            name.len(),
            Key::MAX_LEN
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if let Some(c) = name.chars().find(|&c| acts_on_a_terminal(c)) {
        let message = format!(
            "the key `{}` contains the control character {}; remove it",
            name.escape_debug(),
            c.escape_unicode()
        );
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
