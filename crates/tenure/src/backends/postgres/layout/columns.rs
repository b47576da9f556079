//! Conversions between columns and the types of tenure.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::backend::{Holder, HolderInfo, Holding, Mode, Waiter};
use crate::backends::postgres::error;
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// A column of a row, by the name that the statement gives it.
pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(error::from_server)
}

/// A key as it is stored: its bytes, so that no collation can mix two keys up.
pub(crate) fn key_bytes(key: &Key) -> Vec<u8> {
    key.as_str().as_bytes().to_vec()
}

/// A key as a literal for text without parameters; contains nothing but hex digits.
pub(crate) fn key_literal(key: &Key) -> String {
    bytes_literal(key.as_str().as_bytes())
}

pub(crate) fn bytes_literal(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{digits}'")
}

/// The first key with this prefix, and the first key after all of them: UTF-8 has no byte 0xff.
pub(crate) fn key_range(prefix: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    let from = prefix.as_bytes().to_vec();
    let mut to = from.clone();
    let beyond = to.last_mut().map(|last| *last += 1);
    (from, beyond.map(|()| to))
}

/// The column `note`. PostgreSQL's text stores every character but NUL.
pub(crate) fn note(info: &HolderInfo) -> String {
    info.encode().replace('\0', "\u{fffd}")
}

/// A lease for the server, in seconds: parts of a millisecond are rounded up, so that the lease
/// does not end before the holder's own deadline.
pub(crate) fn ttl_seconds(ttl: Duration) -> f64 {
    let up = ttl.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(up).unwrap_or(u64::MAX)).as_secs_f64()
}

/// A span that the server computed, in seconds; zero if it is negative.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// The column `token`; `None` for 0, which is a row that was never granted.
pub(crate) fn token(number: i64) -> Result<Option<FencingToken>> {
    let number = u64::try_from(number).map_err(|_| error::unexpected("a negative token"))?;
    Ok(FencingToken::new(number))
}

/// What an element of `holders` or `queue` says about its mode, as JSON.
pub(crate) fn mode_fields(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "{}".to_owned(),
        Mode::Shared => r#"{"m":1,"w":1}"#.to_owned(),
        Mode::Permits { take, of } => format!(r#"{{"m":1,"w":{take},"l":{of}}}"#),
    }
}

/// A mode, as statements respond it: the weight, and of permits the limit; nothing if exclusive.
pub(crate) fn mode(text: &str) -> Result<Mode> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| {
        word.parse().map_err(|_| error::unexpected("a weight or limit that is not a number"))
    };
    match words[..] {
        [] => Ok(Mode::Exclusive),
        [_weight] => Ok(Mode::Shared),
        [take, of, ..] => Mode::permits(number(take)?, number(of)?),
    }
}

/// A row of a listing of leases. `None` if the key is not a valid one, or no holder is left.
pub(crate) fn lease_holding(row: &Row) -> Result<Option<Holding>> {
    let Some(mut holding) = holding(row)? else { return Ok(None) };
    let modes: Vec<String> = get(row, "waiter_modes")?;
    for (waiter, text) in holding.waiters.iter_mut().zip(&modes) {
        waiter.mode = mode(text)?;
    }
    let Some(notes) = get::<Option<Vec<String>>>(row, "holder_notes")? else {
        return Ok(Some(holding));
    };
    let modes: Vec<String> = get(row, "holder_modes")?;
    let tokens: Vec<i64> = get(row, "holder_tokens")?;
    let ttls: Vec<f64> = get(row, "holder_ttls")?;
    let times: Vec<f64> = get(row, "holder_times")?;
    let holder = |number: usize| {
        Ok(Holder {
            mode: mode(&modes[number])?,
            token: token(tokens[number])?,
            ttl_left: Some(duration(ttls[number])),
            held_for: Some(duration(times[number])),
            ..Holder::new(&HolderInfo::decode(&notes[number]))
        })
    };
    // The clock goes on within a statement: a lease may end between two columns.
    let count = [notes.len(), modes.len(), tokens.len(), ttls.len(), times.len()];
    let count = count.into_iter().min().unwrap_or_default();
    let holders = (0..count).map(holder).collect::<Result<_>>()?;
    let waiters = holding.waiters;
    Ok(Holding::of(holding.key, holders).map(|holding| Holding { waiters, ..holding }))
}

/// A row of a listing. `None` if the key is not a valid one, as a foreign client may have written
/// it.
pub(crate) fn holding(row: &Row) -> Result<Option<Holding>> {
    let key: Vec<u8> = get(row, "key")?;
    let key = String::from_utf8(key).ok().and_then(|key| Key::new(key).ok());
    let Some(key) = key else { return Ok(None) };
    let holder_note: String = get(row, "note")?;
    let holder = Holder {
        token: token(get(row, "token")?)?,
        ttl_left: Some(duration(get(row, "ttl_left")?)),
        held_for: Some(duration(get(row, "held_for")?)),
        ..Holder::new(&HolderInfo::decode(&holder_note))
    };
    let mut holding = Holding::new(key, holder);
    let notes: Vec<String> = get(row, "waiters")?;
    let waits: Vec<f64> = get(row, "waiting_for")?;
    let waiters = notes.iter().zip(waits).map(|(note, wait)| Waiter {
        waiting_for: Some(duration(wait)),
        ..Waiter::new(&HolderInfo::decode(note))
    });
    holding.waiters = waiters.collect();
    Ok(Some(holding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up() {
        for (nanos, seconds) in [(1_000_000, 0.001), (1_000_001, 0.002), (1, 0.001), (0, 0.0)] {
            let rounded = ttl_seconds(Duration::from_nanos(nanos));
            assert!((rounded - seconds).abs() < 1e-9, "{nanos}");
        }
    }

    #[test]
    fn a_mode_is_read_as_it_was_written() {
        let permits = Mode::permits(2, 5).unwrap();
        for (as_written, as_read) in [(Mode::Exclusive, ""), (Mode::Shared, "1"), (permits, "2 5")]
        {
            assert_eq!(mode(as_read).unwrap(), as_written);
        }
        assert_eq!(mode_fields(permits), r#"{"m":1,"w":2,"l":5}"#);
        assert!(mode("2 x").is_err());
    }

    #[test]
    fn a_prefix_is_a_range_of_bytes() {
        assert_eq!(key_range(""), (vec![], None));
        assert_eq!(key_range("a/"), (b"a/".to_vec(), Some(b"a0".to_vec())));
        let (from, to) = key_range("\u{10ffff}");
        assert!(to.is_some_and(|to| to > from));
    }
}
