//! The scripts' answers, read.

use std::time::Duration;

use redis::Value;

use crate::backend::Note;
use crate::claim::{Holder, Holding, Waiter};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// What `take` answers.
#[derive(Debug)]
pub(super) enum Taken {
    Busy(Refusal),
    Granted(FencingToken),
    /// The claim was withdrawn before this request arrived.
    Withdrawn,
}

/// Who has it, and where we are in the queue.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) again: Option<Duration>,
    pub(super) ahead: Option<u32>,
    pub(super) place: u64,
    pub(super) holder: Option<Holder>,
}

impl Refusal {
    /// Whether the holder does not know of our queue.
    pub(super) fn is_strangers(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.token.is_none())
    }
}

pub(super) fn taken(answer: &Value) -> Result<Taken> {
    let read = || {
        let Value::Array(parts) = answer else { return None };
        match &parts[..] {
            [Value::Int(1), token, ..] => Some(Taken::Granted(text(token).parse().ok()?)),
            [Value::Int(-1)] => Some(Taken::Withdrawn),
            [Value::Int(0), again, ahead, place, who, left, token, note, age] => {
                Some(Taken::Busy(Refusal {
                    again: millis(again),
                    ahead: number(ahead).and_then(|ahead| u32::try_from(ahead).ok()),
                    place: text(place).parse().unwrap_or(0),
                    holder: holder(&text(who), left, token, note, age),
                }))
            }
            _ => None,
        }
    };
    read().ok_or_else(|| odd("take", answer))
}

/// One whose owner id and note `show` tells.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Queued {
    pub(in crate::backends) owner: String,
    pub(in crate::backends) waiter: Waiter,
}

/// What `show` answers about a held lock.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Shown {
    /// What stands in the lock itself.
    pub(in crate::backends) owner: String,
    pub(in crate::backends) holder: Holder,
    pub(in crate::backends) queue: Vec<Queued>,
}

impl Shown {
    pub(in crate::backends) fn holding(self, key: Key) -> Holding {
        let mut holding = Holding::new(key, self.holder);
        holding.waiters = self.queue.into_iter().map(|queued| queued.waiter).collect();
        holding
    }
}

pub(super) fn shown(answer: &Value) -> Option<Shown> {
    let Value::Array(parts) = answer else { return None };
    let [who, left, token, note, age, Value::Array(queue)] = &parts[..] else { return None };
    let owner = text(who);
    let holder = holder(&owner, left, token, note, age)?;
    let waiter = |parts: &[Value]| {
        let [owner, note, age] = parts else { return None };
        let mut waiter = Waiter::new(&Note::decode(&text(note)));
        waiter.waiting_for = millis(age);
        Some(Queued { owner: text(owner), waiter })
    };
    let queue = queue.chunks(3).filter_map(waiter).collect();
    Some(Shown { owner, holder, queue })
}

fn holder(who: &str, left: &Value, token: &Value, note: &Value, age: &Value) -> Option<Holder> {
    if who.is_empty() {
        return None;
    }
    let token: Option<FencingToken> = text(token).parse().ok();
    let note = match token {
        Some(_) => Note::decode(&text(note)),
        // A stranger's lock holds nothing but its id.
        None => Note::new(who, "", 0, ""),
    };
    let mut holder = Holder::new(&note);
    holder.token = token;
    holder.held_for = millis(age);
    holder.ttl_left = millis(left);
    Some(holder)
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// A time in ms; one below zero is not known.
fn millis(value: &Value) -> Option<Duration> {
    Some(Duration::from_millis(u64::try_from(number(value)?).ok()?))
}

/// A stranger may write any bytes.
fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

pub(super) fn odd(script: &str, answer: &Value) -> Error {
    let message = format!("redis answered the script `{script}` with {answer:?}; please report it");
    Error::new(ErrorKind::Internal, message)
}
