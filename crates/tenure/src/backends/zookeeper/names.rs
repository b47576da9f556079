//! What is where in the tree: keys as path elements, nodes of claims, and Curator's order of them.

use uuid::Uuid;

use crate::backend::Owner;
use crate::key::Key;

/// Where the locks of a URL are: its chroot, without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    base: String,
}

impl Tree {
    /// The tree below a path of the URL, such as `/locks`; `/` is the root itself.
    pub(super) fn below(path: &str) -> Tree {
        Tree { base: path.trim_end_matches('/').to_owned() }
    }

    /// The node whose children are the keys.
    pub(super) fn root(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    /// The node of a key.
    pub(super) fn key(&self, key: &Key) -> String {
        self.child(&encode(key.as_str()))
    }

    /// A child of the root by its name in the tree.
    pub(super) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }
}

/// The first part of a claim's node, as Curator's protected nodes have it. It names the session
/// too: what a dead session left behind for a moment is never taken for ours.
pub(super) fn protected(owner: Owner, session: i64) -> String {
    let mut id = owner.client();
    let (high, low) = id.split_at_mut(8);
    mix(high, session.to_be_bytes());
    mix(low, owner.number().to_be_bytes());
    format!("_c_{}-", Uuid::from_bytes(id))
}

fn mix(part: &mut [u8], with: [u8; 8]) {
    part.iter_mut().zip(with).for_each(|(byte, other)| *byte ^= other);
}

/// Puts children into the order in which they hold: by the text after the last `lock-`, and by the
/// whole name where there is none. All children count, as with Curator.
pub(super) fn sort(children: &mut [String]) {
    sort_by(children, LOCK);
}

/// The same order with another word before the sequence.
pub(super) fn sort_by(children: &mut [String], word: &str) {
    let sequence = |name: &str| name.rfind(word).map_or(0, |at| at + word.len());
    children.sort_by(|a, b| a[sequence(a)..].cmp(&b[sequence(b)..]));
}

/// The container beside a lock of one node. No key is encoded like this.
pub(super) fn beside(lock: &str) -> String {
    format!("{lock}%")
}

/// Whether a child was made by a lock recipe that we exclude.
pub(super) fn is_contender(name: &str) -> bool {
    name.contains(LOCK)
}

/// A key as one element of a path. What ZooKeeper or Java refuse in a path is percent-encoded, and
/// so is `%` itself.
pub(super) fn encode(name: &str) -> String {
    let mut element = String::with_capacity(name.len());
    // Elements with a meaning of their own keep it only as they are.
    let special = matches!(name, "." | ".." | "zookeeper");
    for (at, c) in name.char_indices() {
        if refused(c) || (special && at == 0) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                element.push_str(&format!("%{byte:02X}"));
            }
        } else {
            element.push(c);
        }
    }
    element
}

/// The key that a path element stands for, if [`encode`] wrote it.
pub(super) fn decode(element: &str) -> Option<Key> {
    let mut bytes = Vec::with_capacity(element.len());
    let mut rest = element.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    let key = Key::new(String::from_utf8(bytes).ok()?).ok()?;
    (encode(key.as_str()) == element).then_some(key)
}

/// Whether ZooKeeper refuses the character in a path. Java sees characters beyond the first plane
/// as two surrogates, and refuses those.
fn refused(c: char) -> bool {
    matches!(c, '/' | '%' | '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}')
        || c >= '\u{fff0}'
}

/// What Curator puts between its protection and the sequence.
pub(super) const LOCK: &str = "lock-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_element_and_comes_back() {
        let names = ["orders/42", "100%", ".", "..", "zookeeper", "日本 🦀", "a\u{e000}b", "x%2Fy"];
        for name in names {
            let element = encode(name);
            assert!(!element.contains('/') && !["", ".", "..", "zookeeper"].contains(&&*element));
            assert!(!element.chars().any(|c| c != '%' && refused(c)), "{element}");
            assert_eq!(decode(&element).expect(&element).as_str(), name);
        }
        assert_eq!(encode("plain-name.1"), "plain-name.1");
    }

    #[test]
    fn what_we_did_not_write_is_not_a_key() {
        for element in ["%", "a%", "%2", "%zz", "%2f", "%41", "%FF", "orders%"] {
            assert_eq!(decode(element), None, "{element}");
        }
    }

    #[test]
    fn the_order_is_that_of_curator() {
        let mut names = vec![
            "x-1-0000000000".to_owned(),
            "_c_b-lock-0000000002".to_owned(),
            "lock-0000000010".to_owned(),
            "_c_a-lock-0000000003".to_owned(),
            "0a__lock__0000000001".to_owned(),
        ];
        sort(&mut names);
        let order = ["_c_b-lock-0000000002", "_c_a-lock-0000000003", "lock-0000000010"];
        // Others sort by their whole name: behind, unless that begins with a low digit.
        assert_eq!(names[..3], order);
    }

    #[test]
    fn a_claim_has_another_node_in_another_session() {
        let owner = Owner::random();
        let other = Owner::new(owner.client(), owner.number() + 1);
        let names = [protected(owner, 1), protected(owner, 2), protected(other, 1)];
        assert!(names[0] != names[1] && names[0] != names[2] && names[1] != names[2]);
        assert_eq!(names[0].len(), 40, "the length that Curator gives its protection");
    }
}
