//! The names of keys and channels. All keys of a lock lie in the hash slot of its own key, whatever
//! that is called, and no two locks share one.

use std::sync::LazyLock;

/// The keys of one lock: the lock itself, which others may know, and ours beside it.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) lock: String,
    pub(super) state: String,
    pub(super) queue: String,
    pub(super) places: String,
}

impl Names {
    pub(super) fn of(lock: &str) -> Names {
        Names {
            lock: lock.to_owned(),
            state: own("s", lock),
            queue: own("q", lock),
            places: own("w", lock),
        }
    }

    /// The tombstone of a claim.
    pub(super) fn grave(&self, owner: &str) -> String {
        format!("{}:{owner}", own("x", &self.lock))
    }
}

/// The key of this kind that belongs to a lock.
///
/// A name with a hash tag keeps it. The two colons tell `{foo}` from `foo`, whose key would be the
/// same without them. A name whose braces would cut a tag short gets a number in its slot as tag.
pub(super) fn own(kind: &str, lock: &str) -> String {
    match tag(lock) {
        Some(_) => format!("tenure:{kind}::{lock}"),
        None if !lock.contains('}') => format!("tenure:{kind}:{{{lock}}}"),
        None => format!("tenure:{kind}:{{{}}}:{lock}", number_in(slot(lock))),
    }
}

/// The lock that a key of this kind belongs to.
pub(super) fn lock_of<'a>(kind: &str, key: &'a str) -> Option<&'a str> {
    let rest = key.strip_prefix("tenure:")?.strip_prefix(kind)?.strip_prefix(':')?;
    if let Some(lock) = rest.strip_prefix(':') {
        return Some(lock);
    }
    let (inside, behind) = rest.strip_prefix('{')?.split_once('}')?;
    if behind.is_empty() { Some(inside) } else { behind.strip_prefix(':') }
}

/// The channel on which Redisson's waiters are woken. Its rule looks only for a `{`, so that the
/// channel may lie in another slot than the lock; Redisson itself cannot use such names in a
/// cluster.
pub(super) fn redisson_channel(lock: &str) -> String {
    match lock.contains('{') {
        true => format!("redisson_lock__channel:{lock}"),
        false => format!("redisson_lock__channel:{{{lock}}}"),
    }
}

/// What the channels of clients begin with; in a cluster there is one per client and slot.
pub(super) fn inbox_prefix(slot: Option<u16>) -> String {
    match slot {
        Some(slot) => format!("{INBOX}{{{}}}:", number_in(slot)),
        None => INBOX.to_owned(),
    }
}

/// The client that an inbox belongs to.
pub(super) fn client_of(channel: &str) -> Option<&str> {
    channel.strip_prefix(INBOX)?.rsplit(':').next()
}

const INBOX: &str = "tenure:c:";

/// The hash slot of a key.
pub(super) fn slot(key: &str) -> u16 {
    crc16(tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// The part of a key that its slot depends on, if it is not the whole.
fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

/// The smallest number whose slot this is.
fn number_in(slot: u16) -> u32 {
    NUMBERS[usize::from(slot)]
}

static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut numbers = vec![u32::MAX; usize::from(SLOTS)];
    let mut missing = SLOTS;
    // The sum of a number is that of its leading digits and one digit more.
    let mut sums: Vec<u16> = Vec::new();
    while missing > 0 {
        let number = sums.len();
        let leading = if number < 10 { 0 } else { sums[number / 10] };
        let sum = crc16_step(leading, b'0' + (number % 10) as u8);
        sums.push(sum);
        let slot = &mut numbers[usize::from(sum % SLOTS)];
        if *slot == u32::MAX {
            *slot = number as u32;
            missing -= 1;
        }
    }
    numbers
});

/// CRC-16/XMODEM, as Redis Cluster computes slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc16_step(crc, *byte))
}

fn crc16_step(crc: u16, byte: u8) -> u16 {
    (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]
}

const CRC16: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

const SLOTS: u16 = 16384;

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: [&str; 18] = [
        "foo", "{foo}", "a{b", "a}b", "{}x", "x{}y", "{", "}", "{}", "}{", "a{}{b}", "{a}b}c",
        "a{b}c{d}", ":", "::foo", "{foo", "foo}", "日本{}",
    ];

    #[test]
    fn every_key_of_a_lock_lies_in_its_slot() {
        for lock in HOSTILE {
            for kind in ["s", "q", "w", "x"] {
                assert_eq!(slot(&own(kind, lock)), slot(lock), "{lock}");
            }
            assert_eq!(slot(&Names::of(lock).grave("c:1")), slot(lock), "{lock}");
            assert_eq!(slot(&inbox_prefix(Some(slot(lock)))), slot(lock), "{lock}");
        }
    }

    #[test]
    fn no_two_locks_share_a_key_and_each_is_found_again() {
        let keys: std::collections::HashSet<_> = HOSTILE.iter().map(|l| own("s", l)).collect();
        assert_eq!(keys.len(), HOSTILE.len());
        for lock in HOSTILE {
            assert_eq!(lock_of("s", &own("s", lock)), Some(lock));
        }
        assert_eq!(lock_of("s", "tenure:q:{foo}"), None);
    }

    #[test]
    fn slots_are_those_of_redis() {
        // The examples of the cluster specification.
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
    }

    #[test]
    fn the_number_of_a_slot_lies_in_it() {
        for slot in 0..SLOTS {
            assert_eq!(super::slot(&number_in(slot).to_string()), slot);
        }
    }

    #[test]
    fn redisson_finds_its_channel() {
        assert_eq!(redisson_channel("foo"), "redisson_lock__channel:{foo}");
        assert_eq!(redisson_channel("a{b}"), "redisson_lock__channel:a{b}");
    }

    #[test]
    fn an_inbox_names_its_client() {
        for slot in [None, Some(7)] {
            let channel = format!("{}some-client", inbox_prefix(slot));
            assert_eq!(client_of(&channel), Some("some-client"));
        }
        assert_eq!(client_of("redisson_lock__channel:{foo}"), None);
    }
}
