//! What is stored at the server for a lock, and the scripts that read and write it.
//!
//! - `slot`: hash slots of a cluster
//! - `mode`: modes as texts
//! - `scripts`: the Lua scripts of `../lua` and their arguments
//! - `response`: the values in their responses
//!
//! | key | type | content |
//! |---|---|---|
//! | `name` | hash (or string) | the lock itself: owner, or the marker `~shared` or `~permits`, with the lease as expiry. Foreign clients know it |
//! | `tenure:s:{name}` | hash | state: last token, owner and holder info of an exclusive grant, last sequence of the queue |
//! | `tenure:q:{name}` | zset | queue: owner → sequence |
//! | `tenure:w:{name}` | hash | queue entries: owner → `<deadline ms> <lease ms> <mode>`, a line break, and the holder info |
//! | `tenure:r:{name}` | zset | ends of readers or permits: owner → last ms of its lease |
//! | `tenure:h:{name}` | hash | their grants: owner → `<token> <last token> <since ms> <mode>`, a line break, and the holder info; `#` → sum of the weights |
//! | `tenure:x:{name}:<owner>` | string | tombstone of a cancelled claim |
//!
//! Channels: each client has one, on which all of its claims are notified; in a cluster that can
//! publish to one shard, each client has one for each slot. And each lock has a channel that says
//! that it is free: Redisson's waiters subscribe to it, and so does the first waiter of tenure
//! while a foreign client holds the lock.
//!
//! All keys of a lock lie in the hash slot of its own key, whatever it is called, so that one
//! script may touch them all; and no two locks share one.

pub(crate) mod mode;
pub(crate) mod response;
pub(crate) mod scripts;
pub(crate) mod slot;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use self::slot::{hash_tag, number_in, slot};
use super::config::{Config, Layout, Topology};
use crate::backend::Owner;

/// What the channels of clients begin with.
const CLIENTS: &str = "tenure:c:";

/// The keys of one lock. Each is written where it is needed, without a string of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    pub(crate) lock: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn of(lock: &'a str) -> Keys<'a> {
        Keys { lock }
    }

    pub(crate) fn state(self) -> Beside<'a> {
        Beside { kind: "s", lock: self.lock }
    }

    pub(crate) fn queue(self) -> Beside<'a> {
        Beside { kind: "q", lock: self.lock }
    }

    pub(crate) fn entries(self) -> Beside<'a> {
        Beside { kind: "w", lock: self.lock }
    }

    /// When the leases of readers or permits end.
    pub(crate) fn ends(self) -> Beside<'a> {
        Beside { kind: "r", lock: self.lock }
    }

    /// What is known of the grants of readers or permits.
    pub(crate) fn grants(self) -> Beside<'a> {
        Beside { kind: "h", lock: self.lock }
    }

    /// The key of the tombstone of a claim.
    pub(crate) fn tombstone(self, owner: Owner) -> Tombstone<'a> {
        Tombstone { lock: self.lock, owner }
    }
}

/// The key of the tombstone of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone<'a> {
    lock: &'a str,
    owner: Owner,
}

impl fmt::Display for Tombstone<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", Beside { kind: "x", lock: self.lock }, self.owner)
    }
}

/// The key of this kind that belongs to a lock, in the slot of the lock.
///
/// A name with a hash tag keeps it. The two colons tell `{foo}` from `foo`, whose key would be the
/// same without them. A name whose braces would cut a tag short gets a number in its slot as tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside<'a> {
    kind: &'static str,
    lock: &'a str,
}

impl fmt::Display for Beside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { kind, lock } = self;
        match hash_tag(lock) {
            Some(_) => write!(f, "tenure:{kind}::{lock}"),
            None if !lock.contains('}') => write!(f, "tenure:{kind}:{{{lock}}}"),
            None => write!(f, "tenure:{kind}:{{{}}}:{lock}", number_in(slot(lock))),
        }
    }
}

/// The lock that a key of this kind belongs to.
pub(crate) fn lock_of<'a>(kind: &str, key: &'a str) -> Option<&'a str> {
    let rest = key.strip_prefix("tenure:")?.strip_prefix(kind)?.strip_prefix(':')?;
    if let Some(lock) = rest.strip_prefix(':') {
        return Some(lock);
    }
    let (inside, behind) = rest.strip_prefix('{')?.split_once('}')?;
    if behind.is_empty() { Some(inside) } else { behind.strip_prefix(':') }
}

/// The names of channels for one configuration.
#[derive(Debug)]
pub(crate) struct Channels {
    layout: Layout,
    cluster: bool,
    /// In a cluster, messages go only to the nodes that have the slot.
    sharded: AtomicBool,
}

impl Channels {
    pub(crate) fn new(config: &Config) -> Channels {
        let cluster = matches!(config.topology, Topology::Cluster(_));
        Channels { layout: config.layout, cluster, sharded: AtomicBool::new(false) }
    }

    /// The server turned out to know sharded channels, or not.
    pub(crate) fn set_sharded(&self, sharded: bool) {
        self.sharded.store(sharded, Ordering::Relaxed);
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded.load(Ordering::Relaxed)
    }

    pub(crate) fn publish_command(&self) -> &'static str {
        if self.is_sharded() { "SPUBLISH" } else { "PUBLISH" }
    }

    /// What the channels of all clients begin with, for messages about this lock.
    pub(crate) fn clients(&self, lock: &str) -> ClientPrefix {
        ClientPrefix(self.is_sharded().then(|| slot(lock)))
    }

    /// The channel on which a claim is notified.
    pub(crate) fn client(&self, lock: &str, owner: Owner) -> String {
        // The same text as before the colon of the owner id, from which scripts take it.
        let client = Uuid::from_bytes(owner.client()).hyphenated();
        format!("{}{client}", self.clients(lock))
    }

    /// The channel that says that a lock is free and no waiter is next. There is none if it would
    /// lie in another slot than the lock and the server publishes only within a slot.
    pub(crate) fn free<'a>(&self, lock: &'a str) -> Option<FreeChannel<'a>> {
        let channel = match self.layout {
            Layout::Plain => FreeChannel::Plain(Beside { kind: "f", lock }),
            Layout::Redisson => FreeChannel::Redisson(lock),
        };
        let is_elsewhere = || slot(&channel.to_string()) != slot(lock);
        if self.cluster && self.is_sharded() && is_elsewhere() {
            return None;
        }
        Some(channel)
    }
}

/// What the channels of clients begin with; in a cluster there may be one per client and slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPrefix(pub(crate) Option<u16>);

impl fmt::Display for ClientPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CLIENTS)?;
        match self.0 {
            Some(slot) => write!(f, "{{{}}}:", number_in(slot)),
            None => Ok(()),
        }
    }
}

/// The channel that says that a lock is free.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FreeChannel<'a> {
    Plain(Beside<'a>),
    /// The channel of this lock on which Redisson's waiters are woken. Its rule looks only for a
    /// `{`, so that the channel may lie in another slot than the lock; Redisson itself cannot use
    /// such names in a cluster.
    Redisson(&'a str),
}

impl fmt::Display for FreeChannel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreeChannel::Plain(channel) => channel.fmt(f),
            FreeChannel::Redisson(lock) if lock.contains('{') => {
                write!(f, "redisson_lock__channel:{lock}")
            }
            FreeChannel::Redisson(lock) => write!(f, "redisson_lock__channel:{{{lock}}}"),
        }
    }
}

/// The client that a channel belongs to.
pub(crate) fn client_of(channel: &str) -> Option<&str> {
    channel.strip_prefix(CLIENTS)?.rsplit(':').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(kind: &'static str, lock: &str) -> String {
        Beside { kind, lock }.to_string()
    }

    const HOSTILE: [&str; 18] = [
        "foo", "{foo}", "a{b", "a}b", "{}x", "x{}y", "{", "}", "{}", "}{", "a{}{b}", "{a}b}c",
        "a{b}c{d}", ":", "::foo", "{foo", "foo}", "日本{}",
    ];

    #[test]
    fn every_key_of_a_lock_lies_in_its_slot() {
        for lock in HOSTILE {
            for kind in ["s", "q", "w", "x", "r", "h"] {
                assert_eq!(slot(&beside(kind, lock)), slot(lock), "{lock}");
            }
            let tombstone = Keys::of(lock).tombstone(Owner::random()).to_string();
            assert_eq!(slot(&tombstone), slot(lock), "{lock}");
            let clients = ClientPrefix(Some(slot(lock))).to_string();
            assert_eq!(slot(&clients), slot(lock), "{lock}");
        }
    }

    #[test]
    fn no_two_locks_share_a_key_and_each_is_found_again() {
        let keys: std::collections::HashSet<_> = HOSTILE.iter().map(|l| beside("s", l)).collect();
        assert_eq!(keys.len(), HOSTILE.len());
        for lock in HOSTILE {
            assert_eq!(lock_of("s", &beside("s", lock)), Some(lock));
        }
        assert_eq!(lock_of("s", "tenure:q:{foo}"), None);
    }

    #[test]
    fn redisson_finds_its_channel() {
        let channel = |lock| FreeChannel::Redisson(lock).to_string();
        assert_eq!(channel("foo"), "redisson_lock__channel:{foo}");
        assert_eq!(channel("a{b}"), "redisson_lock__channel:a{b}");
    }

    #[test]
    fn a_channel_names_its_client() {
        for slot in [None, Some(7)] {
            let channel = format!("{}some-client", ClientPrefix(slot));
            assert_eq!(client_of(&channel), Some("some-client"));
        }
        assert_eq!(client_of("redisson_lock__channel:{foo}"), None);
    }
}
