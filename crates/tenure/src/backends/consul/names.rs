//! What stands in Consul: the names of the keys of a lock, and the value that its holder writes.
//!
//! `NAME/.lock` is the key that `consul lock NAME` uses. Beside it stand only keys of waiters and
//! of withdrawn claims, which no other program looks at.

use std::time::Duration;

use crate::backend::{Note, Owner};
use crate::key::Key;

/// Marks a lock of Consul's own `api.Lock`; another value means another use of the key.
pub(super) const LOCK_FLAG: u64 = 0x2ddc_cbc0_58a5_0c18;

/// The keys of one lock.
#[derive(Clone, Debug)]
pub(super) struct Names(String);

impl Names {
    pub(super) fn new(key: &Key) -> Names {
        Names(encode(key.as_str()))
    }

    /// The lock itself.
    pub(super) fn lock(&self) -> String {
        format!("{}{LOCK}", self.0)
    }

    /// There while somebody waits: newcomers must not pass. Its value is the owner who came last.
    pub(super) fn queue(&self) -> String {
        format!("{}{QUEUE}", self.0)
    }

    /// The place of a waiter.
    pub(super) fn place(&self, owner: Owner) -> String {
        format!("{}{PLACE}{owner}", self.0)
    }

    /// Says that this claim was withdrawn, and that a late request of it must not take the lock.
    pub(super) fn grave(&self, owner: Owner) -> String {
        format!("{}{GRAVE}{owner}", self.0)
    }

    /// What all of them begin with.
    pub(super) fn tree(&self) -> String {
        format!("{}/.", self.0)
    }
}

/// What a key in Consul is to us.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Role {
    Lock(Key),
    Place(Key, Owner),
    Queue(Key),
}

/// Whose key this is; `None` for keys that are no business of ours.
pub(super) fn role(name: &str) -> Option<Role> {
    if let Some(name) = name.strip_suffix(LOCK) {
        return Some(Role::Lock(decode(name)?));
    }
    if let Some(name) = name.strip_suffix(QUEUE) {
        return Some(Role::Queue(decode(name)?));
    }
    let (name, owner) = name.rsplit_once(PLACE)?;
    Some(Role::Place(decode(name)?, owner.parse().ok()?))
}

/// The longest beginning that all names in Consul of keys with this prefix share.
pub(super) fn common_prefix(prefix: &str) -> &str {
    let odd = |(at, c): (usize, char)| {
        let next = prefix[at + c.len_utf8()..].chars().next();
        let joint = c == '/' && (at == 0 || matches!(next, None | Some('/' | '.')));
        let dots = c == '.' && at == 0;
        (joint || dots || is_odd(c)).then_some(at)
    };
    let end = prefix.char_indices().find_map(odd).unwrap_or(prefix.len());
    &prefix[..end]
}

/// The name of a lock as a path that Consul's HTTP server leaves as it is: it merges slashes,
/// resolves dots and refuses what cannot be printed. Most names stand as they are, so that
/// `consul lock` finds them.
fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let segments: Vec<&str> = name.split('/').collect();
    for (at, segment) in segments.iter().enumerate() {
        if at > 0 {
            // Next to an empty segment a slash would be lost.
            let joint = segment.is_empty() || segments[at - 1].is_empty();
            text.push_str(if joint { "%2F" } else { "/" });
        }
        match *segment {
            "." => text.push_str("%2E"),
            ".." => text.push_str("%2E%2E"),
            plain => plain.chars().for_each(|c| push(&mut text, c)),
        }
    }
    text
}

fn push(text: &mut String, c: char) {
    if !is_odd(c) {
        return text.push(c);
    }
    let mut bytes = [0; 4];
    for byte in c.encode_utf8(&mut bytes).bytes() {
        text.push_str(&format!("%{byte:02X}"));
    }
}

fn is_odd(c: char) -> bool {
    c == '%' || !(c.is_ascii_graphic() || c == ' ' || (!c.is_ascii() && c.is_alphanumeric()))
}

/// The key whose name this is, unless the name is not one that [`encode`] writes.
fn decode(name: &str) -> Option<Key> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Key::new(String::from_utf8(bytes).ok()?).ok()
}

/// What the holder of a lock and a waiter write into their keys, for others to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) owner: Owner,
    /// How long its session lasts without a word from it.
    pub(super) ttl: Duration,
    /// How long Consul keeps the key when that session is ended.
    pub(super) lock_delay: Duration,
    pub(super) note: Note,
}

impl Card {
    pub(super) fn encode(&self) -> String {
        let (ttl, delay) = (self.ttl.as_millis(), self.lock_delay.as_millis());
        format!("{}\t{ttl}\t{delay}\t{}", self.owner, self.note.encode())
    }

    /// `None` if somebody else's program wrote the value.
    pub(super) fn decode(value: &str) -> Option<Card> {
        let mut fields = value.splitn(4, '\t');
        let owner = fields.next()?.parse().ok()?;
        let ttl = Duration::from_millis(fields.next()?.parse().ok()?);
        let lock_delay = Duration::from_millis(fields.next()?.parse().ok()?);
        Some(Card { owner, ttl, lock_delay, note: Note::decode(fields.next()?) })
    }
}

const LOCK: &str = "/.lock";
const QUEUE: &str = "/.queue";
const PLACE: &str = "/.wait/";
const GRAVE: &str = "/.gone/";

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn ordinary_names_stand_as_they_are() {
        for name in ["a", "orders/42", "a b", "é", "a.b/.c", "x:y&z=#?"] {
            assert_eq!(Names::new(&key(name)).lock(), format!("{name}/.lock"));
        }
    }

    #[test]
    fn every_name_is_found_again_and_none_is_changed_by_an_http_server() {
        let names = [
            "/",
            "//",
            "a/",
            "/a",
            "a//b",
            "a///b",
            ".",
            "..",
            "a/..",
            "../a",
            "%",
            "%2F",
            "a%2Fb",
            "日本",
            "e\u{301}",
            "\u{1f980}",
            "a\u{a0}b",
            "a/.lock",
            "a/.wait/b",
            "a/.queue",
        ];
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let lock = Names::new(&key(name)).lock();
            assert_eq!(role(&lock), Some(Role::Lock(key(name))), "{lock}");
            let clean = lock.split('/').all(|part| !matches!(part, "" | "." | ".."));
            assert!(clean, "{name} became {lock}");
            assert!(seen.insert(lock), "{name}");
        }
    }

    #[test]
    fn the_keys_of_a_lock_are_told_apart() {
        let (names, owner) = (Names::new(&key("a/b")), Owner::random());
        assert_eq!(role(&names.place(owner)), Some(Role::Place(key("a/b"), owner)));
        assert_eq!(role(&names.queue()), Some(Role::Queue(key("a/b"))));
        assert_eq!(role(&names.grave(owner)), None);
        assert_eq!(role("a/b/.wait/no owner"), None);
        assert_eq!(role("some/other/key"), None);
    }

    #[test]
    fn the_common_prefix_is_one_of_every_name_with_that_prefix() {
        for prefix in ["", "a", "a/", "a/b", "a//", "/", ".", "a/.", "b%", "é/", "a/.."] {
            for rest in ["", "x", "/", "/x", ".", "./x", "//", "é", "%"] {
                let Ok(key) = Key::new(format!("{prefix}{rest}")) else { continue };
                let name = Names::new(&key).lock();
                assert!(name.starts_with(common_prefix(prefix)), "{prefix:?} {rest:?} {name}");
            }
        }
        assert_eq!(common_prefix("orders/42"), "orders/42");
    }

    #[test]
    fn a_card_survives_its_encoding_and_a_foreign_value_is_none() {
        let card = Card {
            owner: Owner::random(),
            ttl: Duration::from_secs(15),
            lock_delay: Duration::from_millis(1500),
            note: Note::new("tab\t", "host", 7, "text\twith\ttabs"),
        };
        assert_eq!(Card::decode(&card.encode()), Some(card));
        for value in ["", "hello", "a\tb\tc\td"] {
            assert_eq!(Card::decode(value), None);
        }
    }
}
