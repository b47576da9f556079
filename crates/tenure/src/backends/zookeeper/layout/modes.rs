//! The mode of a claim, in the name of its node: part of what stands before `lock-`, which Curator
//! and other clients skip. They and earlier versions see every node as one to wait for.
//!
//! ```text
//! _c_UUID-lock-0000000007                  exclusive
//! _c_UUID-shared-lock-0000000008           shared
//! _c_UUID-permits-2-of-5-lock-0000000009   two permits of at most five
//! ```

use super::LOCK;
use crate::backend::Mode;

const SHARED: &str = "shared-";
const PERMITS: &str = "permits-";
const OF: &str = "-of-";
/// The digits of a sequence number, until the server's counter overflows.
const SEQUENCE_DIGITS: usize = 10;

/// What the name of a node has between the prefix of its claim and its sequence number.
pub(crate) fn marker(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => LOCK.to_owned(),
        Mode::Shared => format!("{SHARED}{LOCK}"),
        Mode::Permits { take, of } => format!("{PERMITS}{take}{OF}{of}-{LOCK}"),
    }
}

/// The mode that a name says; exclusive for every name that tenure did not give.
pub(crate) fn mode_of(name: &str) -> Mode {
    parse(name).unwrap_or_default()
}

fn parse(name: &str) -> Option<Mode> {
    let rest = name.strip_prefix("_c_")?.get(36..)?.strip_prefix('-')?;
    let marker = rest.get(..rest.rfind(LOCK)?)?;
    if !is_in_order(name) {
        return None;
    }
    if marker == SHARED {
        return Some(Mode::Shared);
    }
    let (take, of) = marker.strip_prefix(PERMITS)?.strip_suffix('-')?.split_once(OF)?;
    Mode::permits(take.parse().ok()?, of.parse().ok()?).ok()
}

/// Whether the sequence number of a node sorts behind all that were given before it. After 2^31
/// children of one node the server's counter overflows, and negative numbers sort first.
pub(crate) fn is_in_order(name: &str) -> bool {
    let sequence = name.rfind(LOCK).map_or("", |at| &name[at + LOCK.len()..]);
    sequence.len() == SEQUENCE_DIGITS && sequence.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(marker: &str, sequence: &str) -> String {
        format!("_c_0f0e0d0c-0b0a-4908-8706-050403020100-{marker}{sequence}")
    }

    #[test]
    fn a_name_says_the_mode_of_its_claim() {
        let permits = Mode::permits(2, 5).unwrap();
        for mode in [Mode::Exclusive, Mode::Shared, permits] {
            assert_eq!(mode_of(&name(&marker(mode), "0000000007")), mode);
        }
        assert_eq!(marker(permits), "permits-2-of-5-lock-");
    }

    #[test]
    fn a_name_that_tenure_did_not_give_is_exclusive() {
        let own = name("shared-lock-", "0000000007");
        for foreign in [
            "lock-0000000001",
            "shared-lock-0000000001",
            "_c_shared-lock-0000000001",
            "leases",
            "",
            &own[1..],
            &name("permits-6-of-5-lock-", "0000000007"),
            &name("permits-x-of-5-lock-", "0000000007"),
            &name("xshared-lock-", "0000000007"),
            &name("shared-lock-", "-2147483648"),
            &name("shared-lock-", "x"),
        ] {
            assert_eq!(mode_of(foreign), Mode::Exclusive, "{foreign}");
        }
    }

    #[test]
    fn a_sequence_number_that_overflowed_is_out_of_order() {
        assert!(is_in_order(&name("lock-", "2147483647")));
        for sequence in ["-2147483648", "-1", "", "21474836480", "x000000001"] {
            assert!(!is_in_order(&name("lock-", sequence)), "{sequence}");
        }
    }
}
