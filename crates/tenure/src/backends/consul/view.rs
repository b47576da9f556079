//! One look at everything that stands in Consul for one lock.

use super::api::Entry;
use super::names::{Card, LOCK_FLAG, Role, role};
use super::table::{Front, Record};
use crate::backend::{Note, Owner};
use crate::claim::{Busy, Holder};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// A lock, its queue and its waiters, as they were at one moment.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) lock: Option<Entry>,
    pub(super) queue: Option<Entry>,
    /// The waiters, first come first.
    pub(super) places: Vec<(Owner, Entry)>,
}

/// What a lock's own key says.
#[derive(Debug)]
pub(super) enum State<'a> {
    /// It can be taken. Programs that use Consul's own library leave the key when they release:
    /// then it has this index.
    Free(Option<u64>),
    Held(&'a Entry),
}

impl View {
    /// Of these entries, what belongs to that lock.
    pub(super) fn new(key: &Key, entries: impl IntoIterator<Item = Entry>) -> View {
        let mut view = View::default();
        for entry in entries {
            match role(&entry.key) {
                Some(Role::Lock(of)) if of == *key => view.lock = Some(entry),
                Some(Role::Queue(of)) if of == *key => view.queue = Some(entry),
                Some(Role::Place(of, owner)) if of == *key => view.places.push((owner, entry)),
                _ => {}
            }
        }
        view.places.sort_by_key(|(_, entry)| entry.created);
        view
    }

    /// How many wait before the place that was made then.
    pub(super) fn ahead(&self, created: u64) -> u32 {
        let ahead = self.places.iter().take_while(|(_, entry)| entry.created < created).count();
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    /// What the waiter whose place was made then has to watch.
    pub(super) fn front(&self, created: u64) -> Front {
        let ahead = self.places.iter().take_while(|(_, entry)| entry.created < created);
        match ahead.last() {
            Some((owner, entry)) => {
                Front::Behind { place: entry.key.clone(), owner: *owner, index: entry.modified }
            }
            None => Front::Head { index: self.lock.as_ref().map_or(0, |entry| entry.modified) },
        }
    }
}

/// Whether a lock's key is held.
///
/// # Errors
///
/// `Invalid` if the key is no lock at all.
pub(super) fn state<'a>(key: &Key, lock: Option<&'a Entry>) -> Result<State<'a>> {
    match lock {
        None => Ok(State::Free(None)),
        Some(entry) if entry.session.is_some() => Ok(State::Held(entry)),
        Some(entry) if entry.flags == LOCK_FLAG => Ok(State::Free(Some(entry.modified))),
        Some(entry) => {
            let message = format!(
                "`{key}`: the key `{}` in Consul is used for something else than a lock; choose \
                 another name, or delete it",
                entry.key.escape_debug()
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

/// Whether this claim holds the lock.
pub(super) fn is_held_by(entry: &Entry, owner: Owner, record: &Record) -> bool {
    let ours = entry.session.as_deref() == Some(record.session.id.as_str());
    // Claims of one client share a session, so the value has to say which of them it is.
    ours && Card::decode(&entry.value).is_some_and(|card| card.owner == owner)
}

/// The token of whoever wrote this entry.
pub(super) fn token(entry: &Entry) -> Option<FencingToken> {
    FencingToken::new(entry.modified)
}

/// Who holds it, as far as the key tells.
pub(super) fn holder(entry: &Entry) -> Holder {
    let token = token(entry);
    match Card::decode(&entry.value) {
        Some(card) => Holder { token, ttl_left: Some(card.ttl), ..Holder::new(&card.note) },
        None => Holder { token, ..Holder::new(&Note::new("", "", 0, entry.value.as_str())) },
    }
}

/// Busy because of this holder. If it has died, Consul may take twice its ttl to notice, and keeps
/// the key for its lock-delay after that.
pub(super) fn busy(key: &Key, entry: &Entry, ahead: Option<u32>) -> Busy {
    let mut busy = Busy::new(key.clone());
    let card = Card::decode(&entry.value);
    busy.retry_after = card.map(|card| card.ttl * 2 + card.lock_delay);
    busy.holder = Some(Box::new(holder(entry)));
    busy.ahead = ahead;
    busy
}
