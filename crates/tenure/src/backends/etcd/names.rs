//! The names of keys at the server: `SPACE ENCODED-NAME / LEASE-IN-HEX - OWNER`, which is how
//! etcd's own lock package names them, but for what follows the lease: it tells two claims of one
//! client apart, and nobody else reads it.

use crate::claim::Owner;
use crate::key::Key;

/// The part of the server's key space that the locks of a URL live in: a plain prefix.
#[derive(Clone, Debug)]
pub(super) struct Space(String);

impl Space {
    /// `/locks/` of `etcd://host/locks/`: what stands behind the first slash.
    pub(super) fn from_path(path: &str) -> Space {
        Space(path.strip_prefix('/').unwrap_or(path).to_owned())
    }

    /// What all claims to a key begin with.
    pub(super) fn claims(&self, key: &Key) -> Vec<u8> {
        format!("{}{}/", self.0, encode(key.as_str())).into_bytes()
    }

    /// What all claims to keys with this prefix begin with.
    pub(super) fn prefix(&self, prefix: &str) -> Vec<u8> {
        format!("{}{}", self.0, encode(prefix)).into_bytes()
    }

    /// Where one claim is written.
    pub(super) fn claim(&self, key: &Key, lease: i64, owner: Owner) -> Vec<u8> {
        format!("{}{}/{lease:x}-{owner}", self.0, encode(key.as_str())).into_bytes()
    }

    /// The mark that a claim was withdrawn while a request of it may be on its way. No encoded name
    /// has a `%` that is not followed by two hex digits, so this is nobody's claim.
    pub(super) fn void(&self, lease: i64, owner: Owner) -> Vec<u8> {
        format!("{}%void/{lease:x}-{owner}", self.0).into_bytes()
    }

    /// The lock that a key at the server belongs to, if it is a claim.
    pub(super) fn lock_of(&self, written: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(written).ok()?.strip_prefix(&self.0)?;
        let (name, claim) = rest.split_once('/')?;
        // A lock of somebody who does not encode slashes: not ours to show.
        if claim.contains('/') {
            return None;
        }
        Key::new(decode(name)?).ok()
    }
}

/// The end of the range of all keys that begin so.
pub(super) fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // Every key.
    vec![0]
}

/// Whether a key below `prefix` is a claim to it, and not one to a lock whose name goes on after a
/// slash.
pub(super) fn is_direct(written: &[u8], prefix: &[u8]) -> bool {
    written.strip_prefix(prefix).is_some_and(|rest| !rest.contains(&b'/'))
}

/// Without a slash in names, `a` does not wait for `a/b`.
fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '/' | '%' | '\0'..=' ' | '\x7f' => encoded.push_str(&format!("%{:02X}", c as u32)),
            c => encoded.push(c),
        }
    }
    encoded
}

fn decode(encoded: &str) -> Option<String> {
    let mut name = String::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((plain, tail)) = rest.split_once('%') {
        name.push_str(plain);
        let digits = tail.get(..2)?;
        name.push(u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii)?.into());
        rest = &tail[2..];
    }
    name.push_str(rest);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_its_encoding() {
        for name in ["a", "a/b", "100%", "%2F", "a b", "日本", "/", "%", "~", "%void"] {
            assert!(!encode(name).contains(['/', ' ']), "{name}");
            assert_eq!(decode(&encode(name)).as_deref(), Some(name));
        }
        assert_eq!(encode("nightly-report.1"), "nightly-report.1");
    }

    #[test]
    fn a_claim_is_found_again_and_a_foreign_key_is_not() {
        let (space, key) = (Space::from_path("/locks/"), Key::new("a/b").unwrap());
        let owner = Owner::random();
        let written = space.claim(&key, 0xabc, owner);
        assert_eq!(written, format!("locks/a%2Fb/abc-{owner}").into_bytes());
        assert!(is_direct(&written, &space.claims(&key)));
        assert_eq!(space.lock_of(&written), Some(key));
        assert_eq!(space.lock_of(b"locks/a/b/abc"), None);
        assert_eq!(space.lock_of(b"locks/nothing"), None);
        assert_eq!(space.lock_of(&space.void(1, owner)), None);
    }

    #[test]
    fn the_end_of_a_range_is_the_next_prefix() {
        assert_eq!(range_end(b"a/"), b"a0");
        assert_eq!(range_end(b"a\xff"), b"b");
        assert_eq!(range_end(b"\xff"), [0]);
        assert_eq!(range_end(b""), [0]);
    }
}
