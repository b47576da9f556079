//! What the keys of one queue say: in which mode each claim is, and which of them hold.
//!
//! **The rule** of [`Mode`] needs no state but the claims. In the order of their create revisions,
//! a claim holds if the weights of the claims up to it are at most its limit, and every claim
//! before it holds too. Claims before it only leave, or become lighter (a downgrade), so that a
//! claim which holds goes on holding.
//!
//! **Only known names are not exclusive.** `~shared-` and `~permits-` stand before everything that
//! a lock of etcd's own package can be named: those are hexadecimal numbers. Every other key is a
//! claim to the whole lock, whatever program wrote it: a mutex or an election of Go, `etcdctl
//! lock`, and a mode that a later version of tenure may bring.
//!
//! **A downgraded claim** keeps its key, and with it its place and its token. It is an exclusive
//! claim of tenure that was put a second time, because a claim is otherwise written once. It is the
//! oldest claim of its queue: it held alone, and all later ones are younger. An election of Go also
//! puts its key again, but its name has no owner in it.

use std::fmt::Write;
use std::str::FromStr;

use super::messages::KeyValue;
use super::{KeyRange, is_in_queue, token_of};
use crate::backend::{Claim, Holder, HolderInfo, Mode, Owner, Waiter};

const SHARED: &str = "~shared-";
const PERMITS: &str = "~permits-";

/// One claim of a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueuedClaim {
    pub(crate) kv: KeyValue,
    pub(crate) mode: Mode,
}

/// What follows the prefix of the queue in the key of a claim.
pub(super) fn claim_name(mode: Mode, lease: i64, owner: Owner) -> String {
    let mut name = match mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => SHARED.to_owned(),
        Mode::Permits { take, .. } => format!("{PERMITS}{take}-"),
    };
    let _infallible = write!(name, "{lease:x}-{owner}");
    name
}

/// The value of a claim's key: its holder's description; of permits with the limit before it, which
/// a waiter may change.
pub(crate) fn value(claim: &Claim) -> String {
    let info = claim.holder_info.encode();
    match claim.mode {
        Mode::Permits { of, .. } => format!("{of} {info}"),
        Mode::Exclusive | Mode::Shared => info,
    }
}

/// The keys of all claims to permits.
pub(crate) fn permits(queue_prefix: &[u8]) -> KeyRange {
    KeyRange::below(&[queue_prefix, PERMITS.as_bytes()].concat())
}

/// The keys that readers, or claims to permits, do not share with others of their mode: what is
/// before theirs, and what is behind.
pub(crate) fn outside(queue_prefix: &[u8], mode: Mode) -> [KeyRange; 2] {
    let own = match mode {
        Mode::Permits { .. } => PERMITS,
        Mode::Exclusive | Mode::Shared => SHARED,
    };
    let own = KeyRange::below(&[queue_prefix, own.as_bytes()].concat());
    let all = KeyRange::below(queue_prefix);
    [KeyRange { end: own.from, ..all.clone() }, KeyRange { from: own.end, ..all }]
}

/// Whether a key of the queue is outside of what claims of this mode share.
pub(crate) fn is_outside(server_key: &[u8], queue_prefix: &[u8], mode: Mode) -> bool {
    let ranges = outside(queue_prefix, mode);
    ranges.iter().any(|range| *range.from <= *server_key && *server_key < *range.end)
}

/// In which mode a claim is. One to permits is recognized only if its value was read.
pub(crate) fn mode_of(kv: &KeyValue, queue_prefix: &[u8]) -> Mode {
    let name = kv.key.strip_prefix(queue_prefix).unwrap_or_default();
    let name = std::str::from_utf8(name).unwrap_or_default();
    if name.starts_with(SHARED) {
        return Mode::Shared;
    }
    if let Some(rest) = name.strip_prefix(PERMITS) {
        return permits_of(rest, &kv.value).unwrap_or(Mode::Exclusive);
    }
    let was_put_again = kv.mod_revision > kv.create_revision;
    if was_put_again && is_of_tenure(name) { Mode::Shared } else { Mode::Exclusive }
}

fn permits_of(rest: &str, value: &[u8]) -> Option<Mode> {
    let (take, _) = rest.split_once('-')?;
    let (limit, _) = split_limit(value)?;
    Mode::permits(take.parse().ok()?, limit).ok()
}

/// The limit before the description of a claim to permits.
fn split_limit(value: &[u8]) -> Option<(u32, &str)> {
    let (limit, info) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    Some((limit.parse().ok()?, info))
}

/// Whether an exclusive claim is one of tenure: it has an owner in its name.
fn is_of_tenure(name: &str) -> bool {
    let parts = name.split_once('-');
    parts.is_some_and(|(lease, owner)| {
        i64::from_str_radix(lease, 16).is_ok() && Owner::from_str(owner).is_ok()
    })
}

impl QueuedClaim {
    pub(crate) fn new(kv: KeyValue, queue_prefix: &[u8]) -> QueuedClaim {
        QueuedClaim { mode: mode_of(&kv, queue_prefix), kv }
    }

    /// Who made the claim. The value of a foreign client's claim is shown as its note.
    pub(crate) fn holder(&self) -> Holder {
        let token = token_of(self.kv.create_revision).ok();
        Holder { token, mode: self.mode, ..Holder::new(&self.info()) }
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter { mode: self.mode, ..Waiter::new(&self.info()) }
    }

    fn info(&self) -> HolderInfo {
        match split_limit(&self.kv.value) {
            Some((_, info)) if !self.mode.is_lock() => HolderInfo::decode(info),
            _ => HolderInfo::decode(&String::from_utf8_lossy(&self.kv.value)),
        }
    }
}

/// The claims among these keys, the oldest first.
pub(crate) fn claims(kvs: Vec<KeyValue>, queue_prefix: &[u8]) -> Vec<QueuedClaim> {
    let kvs = kvs.into_iter().filter(|kv| is_in_queue(&kv.key, queue_prefix));
    let mut claims: Vec<_> = kvs.map(|kv| QueuedClaim::new(kv, queue_prefix)).collect();
    claims.sort_by_key(|claim| claim.kv.create_revision);
    claims
}

/// How many claims hold, by the modes of all claims of a queue from the oldest on.
pub(crate) fn holders(modes: impl IntoIterator<Item = Mode>) -> usize {
    let mut modes = modes.into_iter().peekable();
    let is_lock = modes.peek().is_some_and(|first| first.is_lock());
    let mut used: u64 = 0;
    let fits = |mode: &Mode| {
        used += u64::from(mode.weight());
        mode.is_lock() == is_lock && used <= u64::from(mode.limit())
    };
    modes.take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &[u8] = b"locks/a/";

    fn kv(name: &str, value: &str) -> KeyValue {
        let key = [PREFIX, name.as_bytes()].concat();
        let (create_revision, mod_revision) = (5, 5);
        KeyValue { key, create_revision, mod_revision, value: value.into(), lease: 0x1f }
    }

    fn permit(take: u32, of: u32) -> Mode {
        Mode::permits(take, of).unwrap()
    }

    #[test]
    fn a_mode_is_read_back_from_its_key() {
        let owner = Owner::random();
        for mode in [Mode::Exclusive, Mode::Shared, permit(2, 5)] {
            let mut claim =
                Claim::new(crate::Key::new("a").unwrap(), owner, std::time::Duration::ZERO);
            claim.mode = mode;
            claim.holder_info = HolderInfo::new("web-3", "h", 7, "9 lives");
            let written =
                QueuedClaim::new(kv(&claim_name(mode, 0x1f, owner), &value(&claim)), PREFIX);
            assert_eq!((written.mode, &*written.holder().note), (mode, "9 lives"));
            assert_eq!(written.waiter().owner, "web-3");
        }
    }

    #[test]
    fn only_known_names_are_not_exclusive() {
        let names = ["694d8f", "694d8f-x", "", "~", "~other-694d8f", "~permits-694d8f", "日本"];
        for name in names {
            assert_eq!(mode_of(&kv(name, "5 x"), PREFIX), Mode::Exclusive, "{name}");
        }
        // Without a limit, or with more than there are.
        for value in ["", "x", "1 x"] {
            assert_eq!(mode_of(&kv("~permits-2-1f-x", value), PREFIX), Mode::Exclusive);
        }
    }

    #[test]
    fn only_a_claim_of_tenure_that_was_put_again_is_downgraded() {
        let of_tenure = claim_name(Mode::Exclusive, 0x1f, Owner::random());
        // An election of Go puts its value again.
        for (name, mode) in [(&*of_tenure, Mode::Shared), ("694d8f", Mode::Exclusive)] {
            let once = kv(name, "s");
            let again = KeyValue { mod_revision: 9, ..once.clone() };
            assert_eq!(mode_of(&once, PREFIX), Mode::Exclusive);
            assert_eq!(mode_of(&again, PREFIX), mode, "{name}");
        }
    }

    #[test]
    fn every_key_but_those_of_its_mode_is_outside() {
        let key = |name: &str| kv(name, "").key;
        for name in ["", "694d8f", "~", "~permits-1-1f-x", "~tickets-1f", "日本"] {
            assert!(is_outside(&key(name), PREFIX, Mode::Shared), "{name}");
        }
        assert!(!is_outside(&key("~shared-1f-x"), PREFIX, Mode::Shared));
        assert!(is_outside(&key("~shared-1f-x"), PREFIX, permit(1, 2)));
        assert!(!is_outside(&key("~permits-1-1f-x"), PREFIX, permit(1, 2)));
    }

    #[test]
    fn a_queue_never_moves_past_a_claim_that_does_not_fit() {
        let (writer, reader) = (Mode::Exclusive, Mode::Shared);
        assert_eq!(holders([]), 0);
        assert_eq!(holders([writer, reader, reader]), 1);
        assert_eq!(holders([reader, reader, writer, reader]), 2);
        assert_eq!(holders([permit(2, 3), permit(2, 3), permit(1, 3)]), 1);
        assert_eq!(holders([permit(2, 3), permit(1, 3), permit(1, 3)]), 2);
        // The second one waits by its own limit; the third one would fit by its own.
        assert_eq!(holders([permit(1, 5), permit(1, 1), permit(1, 5)]), 1);
        // A claim of the other kind that is about to be deleted.
        assert_eq!(holders([permit(1, 5), reader, permit(1, 5)]), 1);
        assert_eq!(holders([reader, permit(1, 5), reader]), 1);
    }
}
