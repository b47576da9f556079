//! What is stored in ZooKeeper: the path of a key, the names of the nodes of claims, and their
//! order.
//!
//! ```text
//! layout=queue, as Curator has it
//!   /CHROOT/KEY                               container
//!   /CHROOT/KEY/_c_UUID-lock-0000000007       ephemeral, sequential: the first in order holds
//!   /CHROOT/KEY/_c_UUID-shared-lock-…         a shared claim: holds beside others (`modes`)
//!   /CHROOT/KEY/_c_UUID-permits-2-of-5-lock-… a claim to permits
//!
//! layout=ephemeral
//!   /CHROOT/KEY                               ephemeral: the lock
//!   /CHROOT/KEY%                              container: the companion of the lock
//!   /CHROOT/KEY%/_c_UUID-hold                 ephemeral: created and deleted with the lock
//!   /CHROOT/KEY%/_c_UUID-wait-0000000003      ephemeral, sequential: a waiter
//! ```

pub(crate) mod modes;
pub(crate) mod node_data;

use uuid::Uuid;

use crate::backend::Owner;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::support::percent;
use crate::token::FencingToken;

/// What Curator puts between the prefix of a node and its sequence number.
pub(crate) const LOCK: &str = "lock-";
/// The end of the name of a holder's node, in the companion of a lock.
pub(crate) const HOLD: &str = "hold";
/// What stands before the sequence number of a waiter's node, in the companion of a lock.
pub(crate) const WAIT: &str = "wait-";

/// The part of ZooKeeper's tree that has the locks of a URL: its chroot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeTree {
    /// Without a slash at the end.
    base: String,
}

impl NodeTree {
    /// The tree below a path of the URL, such as `/locks`; `/` is the root itself.
    pub(crate) fn below(path: &str) -> NodeTree {
        NodeTree { base: path.trim_end_matches('/').to_owned() }
    }

    /// The node whose children are the keys.
    pub(crate) fn root(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    /// The node of a key.
    pub(crate) fn key(&self, key: &Key) -> String {
        self.child(&encode(key.as_str()))
    }

    /// A child of the root, by the name of its node.
    pub(crate) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }
}

/// The first part of the name of a claim's node, in the form of Curator's protected nodes. A claim
/// whose response was lost finds its node by this. It contains the session too, so that a claim
/// never mistakes a node of an ended session, which may stay for a moment, for its own.
pub(crate) fn node_prefix(owner: Owner, session: i64) -> String {
    let mut id = owner.client();
    let (high, low) = id.split_at_mut(8);
    xor(high, session.to_be_bytes());
    xor(low, owner.number().to_be_bytes());
    format!("_c_{}-", Uuid::from_bytes(id))
}

fn xor(bytes: &mut [u8], with: [u8; 8]) {
    bytes.iter_mut().zip(with).for_each(|(byte, other)| *byte ^= other);
}

/// The last element of a path.
pub(crate) fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(_, name)| name)
}

/// Sorts children into the order in which they hold the lock: by the text after the last `lock-`,
/// or by the whole name where there is none. All children count, as for Curator.
pub(crate) fn sort(children: &mut [String]) {
    sort_after(children, LOCK);
}

/// Sorts children by the text after the last occurrence of `marker`, or by the whole name where
/// there is none.
pub(crate) fn sort_after(children: &mut [String], marker: &str) {
    let sequence = |name: &str| name.rfind(marker).map_or(0, |at| at + marker.len());
    children.sort_by(|a, b| a[sequence(a)..].cmp(&b[sequence(b)..]));
}

/// Whether a child belongs to a lock with Curator's names.
pub(crate) fn is_contender(name: &str) -> bool {
    name.contains(LOCK)
}

/// Whether a child belongs to Curator's `InterProcessSemaphoreV2`.
pub(crate) fn is_of_semaphore_v2(name: &str) -> bool {
    matches!(name, "leases" | "locks")
}

/// The companion of an ephemeral lock: the container of its holder's and waiters' nodes. No key is
/// encoded like this.
pub(crate) fn companion(lock: &str) -> String {
    format!("{lock}%")
}

/// Whether a node in the companion of a lock is that of its holder.
pub(crate) fn is_holder_node(name: &str) -> bool {
    name.ends_with(HOLD)
}

/// Whether a node in the companion of a lock is that of a waiter.
pub(crate) fn is_waiter_node(name: &str) -> bool {
    name.contains(WAIT)
}

/// The first of the tokens that a node stands for: the id of the transaction that created it, times
/// the number of tokens of a grant.
///
/// The upper half of such an id is the number of elections that the ensemble has had. So the tokens
/// fit for two million elections; beyond, the error is `Internal`, and nothing is granted.
pub(crate) fn token(czxid: i64) -> Result<FencingToken> {
    match u64::try_from(czxid) {
        Ok(id @ 1..) => FencingToken::of_index(id),
        _ => {
            let what = format!("transaction id {czxid}; is it older than 3.5?");
            Err(Error::unexpected_response("zookeeper", what))
        }
    }
}

/// Whether a token is one of those that the node with this czxid stands for.
pub(crate) fn has_token(czxid: i64, token: FencingToken) -> bool {
    u64::try_from(czxid) == Ok(token.index())
}

/// A key as one element of a path. What ZooKeeper or Java refuse in a path is percent-encoded, and
/// so is `%` itself.
pub(crate) fn encode(name: &str) -> String {
    // As a whole element these have a meaning of their own.
    let is_special = matches!(name, "." | ".." | "zookeeper");
    percent::encode(name, |at, c| is_refused(c) || (is_special && at == 0))
}

/// The key that a path element stands for, if [`encode`] wrote it.
pub(crate) fn decode(element: &str) -> Option<Key> {
    let key = Key::new(percent::decode(element)?).ok()?;
    (encode(key.as_str()) == element).then_some(key)
}

/// Whether ZooKeeper refuses the character in a path. Java sees characters beyond the first plane
/// as two surrogates, and refuses those.
fn is_refused(c: char) -> bool {
    matches!(c, '/' | '%' | '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}')
        || c >= '\u{fff0}'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_key_is_one_path_element_and_decodes_again() {
        let names = ["orders/42", "100%", ".", "..", "zookeeper", "日本 🦀", "a\u{e000}b", "x%2Fy"];
        for name in names {
            let element = encode(name);
            assert!(!element.contains('/') && !["", ".", "..", "zookeeper"].contains(&&*element));
            assert!(!element.chars().any(|c| c != '%' && is_refused(c)), "{element}");
            assert_eq!(decode(&element).expect(&element).as_str(), name);
        }
        assert_eq!(encode("plain-name.1"), "plain-name.1");
    }

    #[test]
    fn an_element_that_encode_did_not_write_is_no_key() {
        for element in ["%", "a%", "%2", "%zz", "%2f", "%41", "%FF", "orders%"] {
            assert_eq!(decode(element), None, "{element}");
        }
    }

    #[test]
    fn children_are_sorted_as_by_curator() {
        let mut names = vec![
            "x-1-0000000000".to_owned(),
            "_c_b-lock-0000000002".to_owned(),
            "lock-0000000010".to_owned(),
            "_c_a-lock-0000000003".to_owned(),
            "0a__lock__0000000001".to_owned(),
        ];
        sort(&mut names);
        let order = ["_c_b-lock-0000000002", "_c_a-lock-0000000003", "lock-0000000010"];
        // Foreign names sort by their whole text: behind, unless that begins with a low digit.
        assert_eq!(names[..3], order);
    }

    #[test]
    fn a_token_is_the_czxid_in_another_scale_until_it_does_not_fit() {
        let czxid = 0x0000_0007_0000_002a;
        let first = token(czxid).unwrap();
        assert_eq!(first.get(), 0x0000_0007_0000_002a * 1024);
        let last = FencingToken::new(first.get() + 1023).unwrap();
        assert!(has_token(czxid, first) && has_token(czxid, last));
        assert!(!has_token(czxid + 1, last) && token(czxid + 1).unwrap() > last);
        let last_epoch = (1_i64 << 21) - 1;
        assert!(token((last_epoch << 32) + i64::from(u32::MAX)).is_ok());
        for refused in [(last_epoch + 1) << 32, i64::MAX, 0, -1] {
            assert_eq!(token(refused).unwrap_err().kind(), ErrorKind::Internal, "{refused}");
        }
    }

    #[test]
    fn a_claim_has_another_prefix_in_another_session() {
        let owner = Owner::random();
        let other = Owner::new(owner.client(), owner.number() + 1);
        let names = [node_prefix(owner, 1), node_prefix(owner, 2), node_prefix(other, 1)];
        assert!(names[0] != names[1] && names[0] != names[2] && names[1] != names[2]);
        assert_eq!(names[0].len(), 40, "the length that Curator gives its protection");
    }
}
