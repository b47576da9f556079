//! Durations as users write them.

use std::time::Duration;

use crate::error::{Error, Result};

const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Reads a duration such as `250ms`, `10s`, `1m30s`, `2h` or `1d`.
///
/// # Errors
///
/// [`Invalid`](crate::ErrorKind::Invalid) for anything else, a number without a unit included, and
/// above 365 days.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tenure::duration("1m30s")?, Duration::from_secs(90));
/// assert!(tenure::duration("30").is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn duration(text: &str) -> Result<Duration> {
    let bad = || {
        let shown = text.escape_debug();
        Error::invalid(format!(
            "`{shown}` is not a duration; write it as in 250ms, 10s, 1m30s or 2h"
        ))
    };
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let seconds = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())?;
        total = total.saturating_add(part);
        rest = tail;
    }
    // Whatever is reckoned with it, such as some times a timeout, does not overflow then.
    if total > LONGEST {
        return Err(Error::invalid("a duration can be 365 days at most"));
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        for (text, millis) in
            [("250ms", 250), ("10s", 10_000), ("1.5s", 1500), ("1h1m1s", 3_661_000)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(millis));
        }
        assert_eq!(duration("365d").unwrap(), LONGEST);
        let bad = ["", "10", "s", "-1s", "1x", "1s ", "99999999999999999999h", "1e3s", "365d1ms"];
        for text in bad {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
