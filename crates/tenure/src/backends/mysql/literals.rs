//! What users chose, as it stands in statements: in hexadecimal, so that no quoting rule, character
//! set or SQL mode can change it.

use std::fmt::Write as _;
use std::time::Duration;

use super::book::NOW;
use crate::backend::{Claim, Scope};

/// What a claim puts into statements.
pub(super) struct Literals {
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) until: String,
    pub(super) note: String,
}

impl Literals {
    pub(super) fn of(claim: &Claim) -> Literals {
        Literals {
            key: hex(claim.key.as_str()),
            owner: format!("'{}'", claim.owner),
            until: format!("{NOW}+INTERVAL {} MICROSECOND", micros(claim.ttl)),
            note: hex(claim.note.encode()),
        }
    }
}

/// What the server keeps must not end before what the holder counts: parts are rounded up.
pub(super) fn micros(ttl: Duration) -> u128 {
    ttl.as_nanos().div_ceil(1000)
}

/// The keys of a listing. The end of a prefix's range is the prefix with its last byte raised.
pub(super) fn range(scope: Scope<'_>) -> String {
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
/// servers compare alike. Two keys with one name would only exclude each other. The server keeps
/// names for all databases together; ours differ by database.
pub(super) fn native_name(key: &str) -> String {
    // In hexadecimal, because a key joined to text would have to be text of the same kind.
    format!("CONCAT('tenure:',LEFT(SHA2(CONCAT(HEX(DATABASE()),'/',HEX({key})),256),40))")
}

pub(super) fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    text.push_str("X'");
    for byte in bytes {
        // Writing to a string cannot fail.
        let _fits = write!(text, "{byte:02x}");
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(range(Scope::Prefix("a/")), "k>=X'612f' AND k<X'6130'");
        assert_eq!(range(Scope::Prefix("")), "TRUE");
    }

    #[test]
    fn a_ttl_is_rounded_up() {
        assert_eq!(micros(Duration::from_nanos(1_000_001)), 1001);
        assert_eq!(micros(Duration::from_millis(50)), 50_000);
    }
}
