//! Values and names as they stand in a statement. User input is written in hexadecimal, so that no
//! quoting rule, character set or SQL mode can change its meaning.

use std::fmt::Write as _;
use std::time::Duration;

use super::statements::NOW;
use crate::backend::{Claim, Scope};

/// The start of the name of the lock that a wake connection holds; the wake id follows.
pub(crate) const WAKE_LOCK_PREFIX: &str = "tenure:bell:";

/// The literals of a claim.
pub(crate) struct Literals {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) until: String,
    pub(crate) note: String,
}

impl Literals {
    pub(crate) fn of(claim: &Claim) -> Literals {
        Literals {
            key: hex(claim.key.as_str()),
            owner: format!("'{}'", claim.owner),
            until: format!("{NOW}+INTERVAL {} MICROSECOND", micros(claim.ttl)),
            note: hex(claim.holder_info.encode()),
        }
    }
}

/// A ttl in microseconds, rounded up: the lease at the server must not end before the deadline of
/// the holder.
pub(crate) fn micros(ttl: Duration) -> u128 {
    ttl.as_nanos().div_ceil(1000)
}

/// The condition on the keys of a listing. The range of a prefix ends at the prefix with its last
/// byte raised.
pub(crate) fn range(scope: Scope<'_>) -> String {
    match scope {
        Scope::Key(key) => format!("k={}", hex(key.as_str())),
        Scope::Prefix("") => "TRUE".to_owned(),
        Scope::Prefix(prefix) => {
            let mut end = prefix.as_bytes().to_vec();
            // No byte of UTF-8 is 255.
            if let Some(last) = end.last_mut() {
                *last += 1;
            }
            format!("k>={} AND k<{}", hex(prefix), hex(end))
        }
    }
}

/// The name of the named lock of a key, as an expression: 47 characters in lower case, which both
/// servers compare alike. Two keys with one name would only exclude each other. The name contains
/// the database, because the server has one namespace for all databases.
pub(crate) fn named_lock(key: &str) -> String {
    // In hexadecimal, because a key joined to text would have to be text of the same kind.
    format!("CONCAT('tenure:',LEFT(SHA2(CONCAT(HEX(DATABASE()),'/',HEX({key})),256),40))")
}

/// Bytes as a hexadecimal literal.
pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    text.push_str("X'");
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ignored = write!(text, "{byte:02x}");
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_prefix_ends_before_the_next_prefix() {
        assert_eq!(range(Scope::Prefix("a/")), "k>=X'612f' AND k<X'6130'");
        assert_eq!(range(Scope::Prefix("")), "TRUE");
    }

    #[test]
    fn a_ttl_is_rounded_up() {
        assert_eq!(micros(Duration::from_nanos(1_000_001)), 1001);
        assert_eq!(micros(Duration::from_millis(50)), 50_000);
    }
}
