//! How the values in responses of scripts are read.

use std::time::Duration;

use redis::Value;

use super::mode;
use crate::backend::{Holder, HolderInfo};
use crate::error::Error;
use crate::token::FencingToken;

/// Reads a holder from `[owner, ms left, token, info, age, mode]` of a response. The owner is empty
/// if the lock is free.
pub(crate) fn holder(parts: &[Value]) -> Option<Holder> {
    let [who, left, token, info, age, mode] = parts else { return None };
    let who = text(who);
    if who.is_empty() {
        return None;
    }
    let token = self::token(token);
    let info = match token {
        Some(_) => HolderInfo::decode(&text(info)),
        // A foreign client's lock holds nothing but its id.
        None => HolderInfo::new(who, "", 0, ""),
    };
    let mut holder = Holder::new(&info);
    holder.mode = mode::read(&text(mode));
    holder.token = token;
    holder.held_for = millis(age);
    holder.ttl_left = millis(left);
    Some(holder)
}

pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// Reads a time in ms. One below zero is not known.
pub(crate) fn millis(value: &Value) -> Option<Duration> {
    Some(Duration::from_millis(u64::try_from(number(value)?).ok()?))
}

/// Reads a token.
pub(crate) fn token(value: &Value) -> Option<FencingToken> {
    match value {
        Value::Int(number) => FencingToken::new(u64::try_from(*number).ok()?),
        other => text(other).parse().ok(),
    }
}

/// Reads a text, of which a foreign client may have written any bytes.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

/// A script responded with something that it cannot respond with.
pub(crate) fn unexpected(script: &str, response: &Value) -> Error {
    let what = format_args!("{response:?} to the script `{script}`; please report it");
    Error::unexpected_response("redis", what)
}
