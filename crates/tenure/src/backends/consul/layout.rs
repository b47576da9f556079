//! What is stored in Consul: the keys of a lock, and the record that holders and waiters write.
//!
//! ```text
//! NAME/.lock          the lock: held by the session of its exclusive holder, value = LockRecord
//! NAME/.held/OWNER    a grant beside others, shared or permits: held by the session of its holder
//! NAME/.holders       the holders marker: exists while there are such grants; value = the last
//! NAME/.permits       the permits marker: exists as well while these are permits
//! NAME/.queue         the queue marker: exists while claims wait; value = owner of the last entry
//! NAME/.wait/OWNER    a queue entry: held by the session of its waiter, value = LockRecord
//! NAME/.gone/OWNER    a tombstone: refuses late requests of a cancelled claim
//! ```
//!
//! `NAME/.lock` is the key that `consul lock NAME` uses. The other keys are known to tenure only. A
//! lock that is only held exclusively has no `.held`, `.holders` or `.permits`.

use std::time::Duration;

use crate::backend::{HolderInfo, Mode, Owner};
use crate::key::Key;
use crate::support::percent;

/// The flags of a lock of Consul's own `api.Lock`; other flags mean another use of the key.
pub(super) const LOCK_FLAG: u64 = 0x2ddc_cbc0_58a5_0c18;

const LOCK: &str = "/.lock";
const HELD: &str = "/.held/";
const QUEUE_MARKER: &str = "/.queue";
const HOLDERS_MARKER: &str = "/.holders";
const PERMITS_MARKER: &str = "/.permits";
const QUEUE_ENTRY: &str = "/.wait/";
const TOMBSTONE: &str = "/.gone/";

/// The names of the keys of one lock.
#[derive(Clone, Debug)]
pub(super) struct LockKeys(String);

impl LockKeys {
    pub(super) fn new(key: &Key) -> LockKeys {
        LockKeys(encode(key.as_str()))
    }

    /// The lock itself.
    pub(super) fn lock(&self) -> String {
        format!("{}{LOCK}", self.0)
    }

    /// A grant beside others.
    pub(super) fn held(&self, owner: Owner) -> String {
        format!("{}{HELD}{owner}", self.0)
    }

    /// The common prefix of all grants beside others.
    pub(super) fn all_held(&self) -> String {
        format!("{}{HELD}", self.0)
    }

    /// A marker. A claim without a queue entry must not acquire the lock while the queue marker
    /// exists.
    pub(super) fn marker(&self, marker: Marker) -> String {
        let name = match marker {
            Marker::Queue => QUEUE_MARKER,
            Marker::Holders => HOLDERS_MARKER,
            Marker::Permits => PERMITS_MARKER,
        };
        format!("{}{name}", self.0)
    }

    /// The queue entry of a waiter.
    pub(super) fn queue_entry(&self, owner: Owner) -> String {
        format!("{}{QUEUE_ENTRY}{owner}", self.0)
    }

    /// Says that this claim was cancelled: a late request of it must not acquire the lock.
    pub(super) fn tombstone(&self, owner: Owner) -> String {
        format!("{}{TOMBSTONE}{owner}", self.0)
    }

    /// The common prefix of all keys of the lock.
    pub(super) fn tree(&self) -> String {
        format!("{}/.", self.0)
    }
}

/// A key that exists while there are others of a kind. Consul can check in a transaction that one
/// key is absent, but not that no key with a prefix is there. Every key of the kind is created in a
/// transaction that also writes the marker; a marker is deleted only if it has the index at which
/// no key of the kind was left. So no such key exists without its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Marker {
    /// Of the queue entries.
    Queue,
    /// Of the grants beside others. Its index changes with every such grant, so that a claim can
    /// check that those that it counted are all.
    Holders,
    /// Of those that are permits, for readers: they write the holders marker without a check, and
    /// so do not see what kind it is of. It is written and deleted together with that one.
    Permits,
}

/// What a key in Consul is to a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyRole {
    Lock(Key),
    Held(Key, Owner),
    QueueEntry(Key, Owner),
    Marker(Key, Marker),
}

impl KeyRole {
    /// The lock that the key belongs to.
    pub(super) fn lock(&self) -> &Key {
        match self {
            KeyRole::Lock(key)
            | KeyRole::Held(key, _)
            | KeyRole::QueueEntry(key, _)
            | KeyRole::Marker(key, _) => key,
        }
    }
}

/// The role of a key by its name; `None` for tombstones, and for keys that belong to no lock.
pub(super) fn role(name: &str) -> Option<KeyRole> {
    if let Some(name) = name.strip_suffix(LOCK) {
        return Some(KeyRole::Lock(decode(name)?));
    }
    let markers = [
        (QUEUE_MARKER, Marker::Queue),
        (HOLDERS_MARKER, Marker::Holders),
        (PERMITS_MARKER, Marker::Permits),
    ];
    for (suffix, marker) in markers {
        if let Some(name) = name.strip_suffix(suffix) {
            return Some(KeyRole::Marker(decode(name)?, marker));
        }
    }
    let (path, owner) = name.rsplit_once('/')?;
    let owner = owner.parse().ok()?;
    // Both constants end in the slash at which the name was split.
    let ends_in = |folder: &str| path.strip_suffix(folder.trim_end_matches('/'));
    if let Some(name) = ends_in(QUEUE_ENTRY) {
        return Some(KeyRole::QueueEntry(decode(name)?, owner));
    }
    Some(KeyRole::Held(decode(ends_in(HELD)?)?, owner))
}

/// The longest prefix that the names in Consul of all keys with this prefix share.
pub(super) fn common_prefix(prefix: &str) -> &str {
    // A character that may be stored encoded, by itself or because of what stands beside it.
    let encoded = |(at, c): (usize, char)| {
        let next = prefix[at + c.len_utf8()..].chars().next();
        let slash = c == '/' && (at == 0 || matches!(next, None | Some('/' | '.')));
        let first_dot = c == '.' && at == 0;
        (slash || first_dot || is_escaped(c)).then_some(at)
    };
    let end = prefix.char_indices().find_map(encoded).unwrap_or(prefix.len());
    &prefix[..end]
}

/// The name of a lock as a path that Consul's HTTP server does not change: it merges slashes,
/// resolves dots and refuses what cannot be printed. Most names are stored as they are, so that
/// `consul lock` finds them.
fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let segments: Vec<&str> = name.split('/').collect();
    for (at, segment) in segments.iter().enumerate() {
        if at > 0 {
            // Next to an empty segment a slash would be lost.
            let beside_empty = segment.is_empty() || segments[at - 1].is_empty();
            text.push_str(if beside_empty { "%2F" } else { "/" });
        }
        match *segment {
            "." => text.push_str("%2E"),
            ".." => text.push_str("%2E%2E"),
            plain => text.push_str(&percent::encode(plain, |_, c| is_escaped(c))),
        }
    }
    text
}

fn is_escaped(c: char) -> bool {
    c == '%' || !(c.is_ascii_graphic() || c == ' ' || (!c.is_ascii() && c.is_alphanumeric()))
}

/// The key that a name stands for; `None` if it cannot be one.
fn decode(name: &str) -> Option<Key> {
    Key::new(percent::decode(name)?).ok()
}

/// What the holder of a lock and its waiters write into their keys, for other clients to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockRecord {
    pub(super) owner: Owner,
    /// How long the owner's session lasts without a renewal.
    pub(super) ttl: Duration,
    /// How long Consul keeps the key locked when that session is ended.
    pub(super) lock_delay: Duration,
    pub(super) mode: Mode,
    /// Of a lock that was downgraded: the index of its grant, which the holder keeps. The key that
    /// had it is gone.
    pub(super) downgraded: Option<u64>,
    pub(super) holder_info: HolderInfo,
}

impl LockRecord {
    pub(super) fn encode(&self) -> String {
        let ttl = self.ttl.as_millis();
        let lock_delay = self.lock_delay.as_millis();
        let mode = match (self.mode, self.downgraded) {
            (Mode::Exclusive, _) => String::new(),
            (Mode::Shared, None) => " shared".to_owned(),
            (Mode::Shared, Some(index)) => format!(" shared {index}"),
            (Mode::Permits { take, of }, _) => format!(" permits {take} {of}"),
        };
        format!("{}\t{ttl}\t{lock_delay}{mode}\t{}", self.owner, self.holder_info.encode())
    }

    /// `None` if a foreign client wrote the value.
    pub(super) fn decode(value: &str) -> Option<LockRecord> {
        let mut fields = value.splitn(4, '\t');
        let owner = fields.next()?.parse().ok()?;
        let ttl = Duration::from_millis(fields.next()?.parse().ok()?);
        let words: Vec<&str> = fields.next()?.split(' ').collect();
        let (mode, downgraded) = match words[1..] {
            [] => (Mode::Exclusive, None),
            ["shared"] => (Mode::Shared, None),
            ["shared", index] => (Mode::Shared, Some(index.parse().ok()?)),
            ["permits", take, of] => {
                (Mode::permits(take.parse().ok()?, of.parse().ok()?).ok()?, None)
            }
            _ => return None,
        };
        let lock_delay = Duration::from_millis(words[0].parse().ok()?);
        let holder_info = HolderInfo::decode(fields.next()?);
        Some(LockRecord { owner, ttl, lock_delay, mode, downgraded, holder_info })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn ordinary_names_are_stored_as_they_are() {
        for name in ["a", "orders/42", "a b", "é", "a.b/.c", "x:y&z=#?"] {
            assert_eq!(LockKeys::new(&key(name)).lock(), format!("{name}/.lock"));
        }
    }

    #[test]
    fn every_name_decodes_again_and_no_http_server_changes_it() {
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
            "a/.held/b",
            "a/.holders",
        ];
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let lock = LockKeys::new(&key(name)).lock();
            assert_eq!(role(&lock), Some(KeyRole::Lock(key(name))), "{lock}");
            let clean = lock.split('/').all(|part| !matches!(part, "" | "." | ".."));
            assert!(clean, "{name} became {lock}");
            assert!(seen.insert(lock), "{name}");
        }
    }

    #[test]
    fn the_keys_of_a_lock_are_told_apart() {
        let keys = LockKeys::new(&key("a/b"));
        let owner = Owner::random();
        assert_eq!(role(&keys.queue_entry(owner)), Some(KeyRole::QueueEntry(key("a/b"), owner)));
        assert_eq!(role(&keys.held(owner)), Some(KeyRole::Held(key("a/b"), owner)));
        for marker in [Marker::Queue, Marker::Holders, Marker::Permits] {
            assert_eq!(role(&keys.marker(marker)), Some(KeyRole::Marker(key("a/b"), marker)));
        }
        assert_eq!(role(&keys.tombstone(owner)), None);
        assert_eq!(role("a/b/.wait/no owner"), None);
        assert_eq!(role("some/other/key"), None);
    }

    #[test]
    fn the_common_prefix_is_shared_by_every_name_with_that_prefix() {
        for prefix in ["", "a", "a/", "a/b", "a//", "/", ".", "a/.", "b%", "é/", "a/.."] {
            for rest in ["", "x", "/", "/x", ".", "./x", "//", "é", "%"] {
                let Ok(key) = Key::new(format!("{prefix}{rest}")) else { continue };
                let name = LockKeys::new(&key).lock();
                assert!(name.starts_with(common_prefix(prefix)), "{prefix:?} {rest:?} {name}");
            }
        }
        assert_eq!(common_prefix("orders/42"), "orders/42");
    }

    #[test]
    fn a_lock_record_survives_its_encoding_and_a_foreign_value_is_none() {
        let record = LockRecord {
            owner: Owner::random(),
            ttl: Duration::from_secs(15),
            lock_delay: Duration::from_millis(1500),
            mode: Mode::Exclusive,
            downgraded: None,
            holder_info: HolderInfo::new("tab\t", "host", 7, "text\twith\ttabs"),
        };
        let kinds = [
            (Mode::Exclusive, None),
            (Mode::Shared, None),
            (Mode::Shared, Some(4711)),
            (Mode::permits(2, 5).unwrap(), None),
        ];
        for (mode, downgraded) in kinds {
            let record = LockRecord { mode, downgraded, ..record.clone() };
            assert_eq!(LockRecord::decode(&record.encode()), Some(record));
        }
        // An exclusive record is what earlier versions read.
        let expected = format!("{}\t15000\t1500\t", record.owner);
        assert!(record.encode().starts_with(&expected), "{}", record.encode());
        for value in ["", "hello", "a\tb\tc\td", "a\tb\t0 shared x\td"] {
            assert_eq!(LockRecord::decode(value), None);
        }
    }
}
