//! The few requests that locks are made of, and how their answers are read.

use super::names::range_end;
use super::proto::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, KeyValue, Op, Outcome,
    PutRequest, RangeRequest, RangeResponse, RequestOp, SortOrder, SortTarget, TxnRequest,
    TxnResponse,
};
use super::wire::Method;

pub(super) const TXN: Method = Method("/etcdserverpb.KV/Txn");
pub(super) const RANGE: Method = Method("/etcdserverpb.KV/Range");
pub(super) const DELETE: Method = Method("/etcdserverpb.KV/DeleteRange");

/// One key.
pub(super) fn get(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// Everything that begins so, by age.
pub(super) fn all(prefix: &[u8]) -> RangeRequest {
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

/// The same without the values, which may be anything that others have stored.
pub(super) fn keys(request: RangeRequest) -> RangeRequest {
    RangeRequest { keys_only: true, ..request }
}

/// A page of the keys that begin so, from this one on, in their own order.
pub(super) fn page(prefix: &[u8], from: Vec<u8>, limit: i64) -> RangeRequest {
    let (sort_order, sort_target) = (SortOrder::None.into(), SortTarget::Key.into());
    RangeRequest { key: from, limit, sort_order, sort_target, ..keys(all(prefix)) }
}

/// The oldest that begins so.
pub(super) fn first(prefix: &[u8]) -> RangeRequest {
    RangeRequest { limit: 1, ..all(prefix) }
}

/// The youngest two that begin so and are not younger than this; 0 for no bound.
pub(super) fn last_two(prefix: &[u8], max_create_revision: i64) -> RangeRequest {
    let sort_order = SortOrder::Descend.into();
    RangeRequest { limit: 2, sort_order, max_create_revision, ..all(prefix) }
}

/// The one that begins so and was created by this revision.
pub(super) fn created_by(prefix: &[u8], revision: i64) -> RangeRequest {
    let (min_create_revision, max_create_revision) = (revision, revision);
    RangeRequest { min_create_revision, max_create_revision, ..all(prefix) }
}

pub(super) fn read(request: RangeRequest) -> RequestOp {
    RequestOp { op: Some(Op::Range(request)) }
}

pub(super) fn put(key: &[u8], value: String, lease: i64) -> RequestOp {
    let (key, value) = (key.to_vec(), value.into_bytes());
    RequestOp { op: Some(Op::Put(PutRequest { key, value, lease })) }
}

pub(super) fn delete(key: &[u8]) -> RequestOp {
    RequestOp { op: Some(Op::Delete(DeleteRangeRequest { key: key.to_vec() })) }
}

/// That a key was created by this revision; 0 if it is not there.
pub(super) fn created(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        with: Some(CompareWith::CreateRevision(revision)),
        range_end: Vec::new(),
    }
}

/// That nothing begins so.
pub(super) fn nothing_below(prefix: &[u8]) -> Compare {
    Compare { range_end: range_end(prefix), ..created(prefix, 0) }
}

/// Only reads, all of one revision. This is no proposal to the cluster.
pub(super) fn look(reads: Vec<RangeRequest>) -> TxnRequest {
    let success = reads.into_iter().map(read).collect();
    TxnRequest { compare: Vec::new(), success, failure: Vec::new() }
}

/// What the reads of a transaction found, in order.
pub(super) fn found(answer: TxnResponse) -> Vec<RangeResponse> {
    let outcomes = answer.responses.into_iter().filter_map(|response| response.outcome);
    let ranges = outcomes.filter_map(|outcome| match outcome {
        Outcome::Range(range) => Some(range),
        Outcome::Put(_) | Outcome::Delete(_) => None,
    });
    ranges.collect()
}

/// How many keys a transaction deleted.
pub(super) fn deleted(answer: &TxnResponse) -> i64 {
    let outcomes = answer.responses.iter().filter_map(|response| response.outcome.as_ref());
    let deleted = outcomes.map(|outcome| match outcome {
        Outcome::Delete(answer) => answer.deleted,
        Outcome::Range(_) | Outcome::Put(_) => 0,
    });
    deleted.sum()
}

/// The revision at which a transaction was answered.
pub(super) fn revision(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// The first key of an answer.
pub(super) fn one(range: Option<&RangeResponse>) -> Option<&KeyValue> {
    range.and_then(|range| range.kvs.first())
}
