//! What is stored at the server, and the requests that read and write it.
//!
//! ```text
//! SPACE NAME / LEASE-IN-HEX - OWNER                    one claim; its value: who made it
//! SPACE NAME / ~shared- LEASE-IN-HEX - OWNER           one of a reader
//! SPACE NAME / ~permits- TAKE - LEASE-IN-HEX - OWNER   one to permits; its value: LIMIT and who
//! SPACE %void / LEASE-IN-HEX - OWNER                   the tombstone of a cancelled claim
//! ```
//!
//! NAME is encoded. All are attached to the lease that is part of their name, so that the server
//! deletes them when the lease ends. A claim is named as etcd's own lock package names it, but for
//! the owner, which tells two claims of one client apart and which no other program reads. `queue`
//! has what the keys of one queue say together; the messages themselves are in `messages`.

pub(crate) mod messages;
pub(crate) mod queue;

use self::messages::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, KeyValue, Op, Outcome,
    PutRequest, RangeRequest, RangeResponse, RequestOp, SortOrder, SortTarget, TxnRequest,
    TxnResponse,
};
use super::connection::Method;
use crate::backend::{Mode, Owner};
use crate::error::Result;
use crate::key::Key;
use crate::support::percent;
use crate::token::FencingToken;

pub(crate) const TXN: Method = Method("/etcdserverpb.KV/Txn");
pub(crate) const RANGE: Method = Method("/etcdserverpb.KV/Range");
pub(crate) const DELETE: Method = Method("/etcdserverpb.KV/DeleteRange");

/// The part of the server's key space that the locks of a URL are in: a plain prefix.
#[derive(Clone, Debug)]
pub(crate) struct Space(String);

impl Space {
    /// `locks/` of `etcd://host/locks/`: what stands behind the first slash.
    pub(crate) fn from_path(path: &str) -> Space {
        Space(path.strip_prefix('/').unwrap_or(path).to_owned())
    }

    /// The prefix of all claims to a lock: its queue.
    pub(crate) fn queue_prefix(&self, key: &Key) -> Vec<u8> {
        format!("{}{}/", self.0, encode(key.as_str())).into_bytes()
    }

    /// The prefix of all claims to locks whose keys start with `prefix`.
    pub(crate) fn list_prefix(&self, prefix: &str) -> Vec<u8> {
        format!("{}{}", self.0, encode(prefix)).into_bytes()
    }

    /// The server key of one claim.
    pub(crate) fn claim_key(&self, key: &Key, mode: Mode, lease: i64, owner: Owner) -> Vec<u8> {
        let name = queue::claim_name(mode, lease, owner);
        format!("{}{}/{name}", self.0, encode(key.as_str())).into_bytes()
    }

    /// The server key of a claim's tombstone. In an encoded name two hex digits follow every `%`,
    /// so that no lock has this name.
    pub(crate) fn tombstone_key(&self, lease: i64, owner: Owner) -> Vec<u8> {
        format!("{}%void/{lease:x}-{owner}", self.0).into_bytes()
    }

    /// The lock that a server key belongs to, if it is a claim.
    pub(crate) fn lock_of(&self, server_key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(server_key).ok()?.strip_prefix(&self.0)?;
        let (name, claim) = rest.split_once('/')?;
        // A foreign client's lock with a slash in its name, which this backend cannot lock.
        if claim.contains('/') {
            return None;
        }
        Key::new(decode(name)?).ok()
    }
}

/// Whether a server key below the prefix of a queue is a claim in it, and not one to a foreign
/// client's lock whose name goes on after a slash.
pub(crate) fn is_in_queue(server_key: &[u8], queue_prefix: &[u8]) -> bool {
    server_key.strip_prefix(queue_prefix).is_some_and(|rest| !rest.contains(&b'/'))
}

/// The token of the grant whose key has this create revision: the first of its range.
pub(crate) fn token_of(create_revision: i64) -> Result<FencingToken> {
    FencingToken::of_index(u64::try_from(create_revision).unwrap_or(0))
}

/// The create revision of the grant in whose range this token lies.
pub(crate) fn revision_of(token: FencingToken) -> i64 {
    // Fits: an index is a token divided by 1024.
    token.index() as i64
}

/// Reads one key.
pub(crate) fn get(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// Reads everything with this prefix, by age.
pub(crate) fn all(prefix: &[u8]) -> RangeRequest {
    // An empty prefix is written as the smallest key.
    let key = if prefix.is_empty() { vec![0] } else { prefix.to_vec() };
    RangeRequest {
        key,
        range_end: range_end(prefix),
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// Leaves the values out of a read: foreign clients may have stored values of any size.
pub(crate) fn keys_only(request: RangeRequest) -> RangeRequest {
    RangeRequest { keys_only: true, ..request }
}

/// A part of the key space: from its first key to before its end. Without an end it is one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) from: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl KeyRange {
    /// One key.
    pub(crate) fn one(key: Vec<u8>) -> KeyRange {
        KeyRange { from: key, end: Vec::new() }
    }

    /// All keys with this prefix, which is not empty.
    pub(crate) fn below(prefix: &[u8]) -> KeyRange {
        KeyRange { from: prefix.to_vec(), end: range_end(prefix) }
    }
}

/// Reads the youngest key of a part of a queue, without those that were created after
/// `max_create_revision`; 0 is no bound.
pub(crate) fn youngest_in(range: KeyRange, max_create_revision: i64) -> RangeRequest {
    RangeRequest {
        key: range.from,
        range_end: range.end,
        limit: 1,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Create.into(),
        max_create_revision,
        ..RangeRequest::default()
    }
}

/// Reads all keys of a part of a queue by age, without those that were created after
/// `max_create_revision`; 0 is no bound.
pub(crate) fn all_in(range: KeyRange, max_create_revision: i64) -> RangeRequest {
    let sort_order = SortOrder::Ascend.into();
    RangeRequest { limit: 0, sort_order, ..youngest_in(range, max_create_revision) }
}

/// Reads a page of the keys with this prefix, from `from` on, in the order of the keys.
pub(crate) fn page(prefix: &[u8], from: Vec<u8>, limit: i64) -> RangeRequest {
    RangeRequest {
        key: from,
        limit,
        sort_order: SortOrder::None.into(),
        sort_target: SortTarget::Key.into(),
        ..keys_only(all(prefix))
    }
}

/// Reads the oldest key with this prefix.
pub(crate) fn oldest(prefix: &[u8]) -> RangeRequest {
    RangeRequest { limit: 1, ..all(prefix) }
}

/// Reads the youngest two keys with this prefix, the youngest first, without those that were
/// created after `max_create_revision`; 0 is no bound.
pub(crate) fn youngest_two(prefix: &[u8], max_create_revision: i64) -> RangeRequest {
    let sort_order = SortOrder::Descend.into();
    RangeRequest { limit: 2, sort_order, max_create_revision, ..all(prefix) }
}

pub(crate) fn read_op(request: RangeRequest) -> RequestOp {
    RequestOp { op: Some(Op::Range(request)) }
}

pub(crate) fn put_op(key: &[u8], value: String, lease: i64) -> RequestOp {
    let request = PutRequest { key: key.to_vec(), value: value.into_bytes(), lease };
    RequestOp { op: Some(Op::Put(request)) }
}

pub(crate) fn delete_op(key: &[u8]) -> RequestOp {
    RequestOp { op: Some(Op::Delete(DeleteRangeRequest { key: key.to_vec() })) }
}

/// The condition that a key was created at this revision.
pub(crate) fn if_created_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        with: Some(CompareWith::CreateRevision(revision)),
        range_end: Vec::new(),
    }
}

/// The condition that a key is not there.
pub(crate) fn if_absent(key: &[u8]) -> Compare {
    if_created_at(key, 0)
}

/// The condition that no key has this prefix.
pub(crate) fn if_none_below(prefix: &[u8]) -> Compare {
    Compare { range_end: range_end(prefix), ..if_absent(prefix) }
}

/// The condition that every key of this range is older than this revision, also if there is none.
pub(crate) fn if_all_before(range: KeyRange, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Less.into(),
        range_end: range.end,
        ..if_created_at(&range.from, revision)
    }
}

/// A transaction that only reads, everything at one revision. It is no proposal to the cluster.
pub(crate) fn read_all(reads: Vec<RangeRequest>) -> TxnRequest {
    let success = reads.into_iter().map(read_op).collect();
    TxnRequest { compare: Vec::new(), success, failure: Vec::new() }
}

/// What the reads of a transaction found, in order.
pub(crate) fn ranges(response: TxnResponse) -> Vec<RangeResponse> {
    let outcomes = response.responses.into_iter().filter_map(|response| response.outcome);
    let ranges = outcomes.filter_map(|outcome| match outcome {
        Outcome::Range(range) => Some(range),
        Outcome::Put(_) | Outcome::Delete(_) => None,
    });
    ranges.collect()
}

/// How many keys a transaction deleted.
pub(crate) fn deleted(response: &TxnResponse) -> i64 {
    let outcomes = response.responses.iter().filter_map(|response| response.outcome.as_ref());
    let deleted = outcomes.map(|outcome| match outcome {
        Outcome::Delete(response) => response.deleted,
        Outcome::Range(_) | Outcome::Put(_) => 0,
    });
    deleted.sum()
}

/// The revision at which a transaction was carried out.
pub(crate) fn revision(response: &TxnResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}

/// The first key that a read found.
pub(crate) fn first(range: Option<&RangeResponse>) -> Option<&KeyValue> {
    range.and_then(|range| range.kvs.first())
}

/// The end of the range of all keys with this prefix.
fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // etcd's notation for "up to the last key there is".
    vec![0]
}

/// Without a slash in names, a claim to `a` does not wait for one to `a/b`.
fn encode(name: &str) -> String {
    percent::encode(name, |_, c| matches!(c, '/' | '%' | '\0'..=' ' | '\x7f'))
}

/// The name behind an encoded one. Only ASCII is ever escaped: what a foreign client wrote as
/// `%C3%A9` is not the claim to `é`, and is not shown as one.
fn decode(encoded: &str) -> Option<String> {
    let non_ascii = |text: &str| text.bytes().filter(|byte| !byte.is_ascii()).count();
    percent::decode(encoded).filter(|name| non_ascii(name) == non_ascii(encoded))
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
        assert_eq!(decode("caf%C3%A9"), None);
    }

    #[test]
    fn a_claim_is_found_again_and_a_foreign_key_is_not() {
        let space = Space::from_path("/locks/");
        let key = Key::new("a/b").unwrap();
        let owner = Owner::random();
        let claim = space.claim_key(&key, Mode::Exclusive, 0xabc, owner);
        assert_eq!(claim, format!("locks/a%2Fb/abc-{owner}").into_bytes());
        assert!(is_in_queue(&claim, &space.queue_prefix(&key)));
        assert_eq!(space.lock_of(&claim), Some(key));
        assert_eq!(space.lock_of(b"locks/a/b/abc"), None);
        assert_eq!(space.lock_of(b"locks/nothing"), None);
        assert_eq!(space.lock_of(&space.tombstone_key(1, owner)), None);
    }

    #[test]
    fn the_end_of_a_range_is_the_next_prefix() {
        assert_eq!(range_end(b"a/"), b"a0");
        assert_eq!(range_end(b"a\xff"), b"b");
        assert_eq!(range_end(b"\xff"), [0]);
        assert_eq!(range_end(b""), [0]);
    }
}
