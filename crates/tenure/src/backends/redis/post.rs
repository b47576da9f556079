//! Where the server's messages go: to the claim they name, or to whoever listens on their channel.
//!
//! A letter may come before the task that awaits the answer ahead of it runs; so it is kept until
//! it is read, and read only together with the place that the answer named.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};

use super::names::client_of;
use super::wire::{Subscription, Tap, Wire};
use crate::backend::Owner;
use crate::token::FencingToken;

/// The mailboxes of all claims of one backend, and the bells of channels.
#[derive(Default)]
pub(super) struct Post(Mutex<Boxes>);

#[derive(Default)]
struct Boxes {
    claims: HashMap<Owner, Mailbox>,
    channels: HashMap<String, watch::Sender<u64>>,
}

#[derive(Default)]
struct Mailbox {
    /// How many wait at it: the waiting claim itself, or who watches a held one.
    users: u32,
    waiting: Option<Waiting>,
    letter: Option<Letter>,
    evicted: bool,
    bell: Arc<Notify>,
    ear: Option<Ear>,
}

/// What the last busy answer said about a claim's place.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) place: u64,
    /// The connection that hears of it, if it did so before the question was asked. One that was
    /// replaced must not live on only because claims wait.
    pub(super) heard_by: Option<Weak<Wire>>,
    /// It is the first behind a holder that does not know of our queue.
    pub(super) behind_stranger: bool,
}

/// Listens on the channel of a lock that a stranger holds.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) subscription: Subscription,
    pub(super) messages: watch::Receiver<u64>,
    /// The count of messages when the lock was looked at.
    pub(super) seen: u64,
}

/// A message to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// The lock was handed over to this place.
    Granted { place: u64, token: FencingToken },
    /// It is worth looking, after this long.
    Look { place: u64, wait: Duration },
}

impl Post {
    /// Opens a mailbox for a claim that is about to wait.
    pub(super) fn open(&self, owner: Owner) {
        let mut boxes = self.boxes();
        let mailbox = boxes.claims.entry(owner).or_default();
        if mailbox.waiting.is_none() {
            mailbox.users += 1;
            let waiting = Waiting { place: 0, heard_by: None, behind_stranger: false };
            mailbox.waiting = Some(waiting);
        }
    }

    /// Whether the claim has a place, which another request would refresh.
    pub(super) fn has_place(&self, owner: Owner) -> bool {
        let boxes = self.boxes();
        let waiting = boxes.claims.get(&owner).and_then(|mailbox| mailbox.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.place > 0)
    }

    /// The server named the claim's place.
    pub(super) fn placed(&self, owner: Owner, waiting: Waiting) {
        if let Some(mailbox) = self.boxes().claims.get_mut(&owner) {
            mailbox.waiting = Some(waiting);
        }
    }

    /// The claim waits no longer.
    pub(super) fn close(&self, owner: Owner) {
        let mut boxes = self.boxes();
        let Some(mailbox) = boxes.claims.get_mut(&owner) else { return };
        mailbox.ear = None;
        if mailbox.waiting.take().is_some() {
            mailbox.users -= 1;
        }
        boxes.sweep(owner);
    }

    /// What is known of the claim's place, and the bell that rings when there is news.
    pub(super) fn waiting(&self, owner: Owner) -> Option<(Waiting, Arc<Notify>)> {
        let boxes = self.boxes();
        let mailbox = boxes.claims.get(&owner)?;
        Some((mailbox.waiting.clone()?, mailbox.bell.clone()))
    }

    /// Takes the letter to this place out; one to another place is thrown away.
    pub(super) fn letter(&self, owner: Owner, to: u64) -> Option<Letter> {
        let letter = self.boxes().claims.get_mut(&owner)?.letter.take()?;
        match letter {
            Letter::Granted { place, .. } | Letter::Look { place, .. } if place == to => {
                Some(letter)
            }
            Letter::Granted { .. } | Letter::Look { .. } => None,
        }
    }

    /// Lets a waiting claim listen, or stop listening.
    pub(super) fn set_ear(&self, owner: Owner, ear: Option<Ear>) {
        if let Some(mailbox) = self.boxes().claims.get_mut(&owner) {
            mailbox.ear = ear;
        }
    }

    /// What a claim listens to, and how many messages it has seen: none if it is deaf.
    pub(super) fn ear(&self, owner: Owner) -> Option<(watch::Receiver<u64>, u64)> {
        let boxes = self.boxes();
        let ear = boxes.claims.get(&owner)?.ear.as_ref()?;
        ear.subscription.lives().then(|| (ear.messages.clone(), ear.seen))
    }

    /// A claim is about to look: earlier messages are no news.
    pub(super) fn looked(&self, owner: Owner) {
        if let Some(ear) = self.boxes().claims.get_mut(&owner).and_then(|b| b.ear.as_mut()) {
            ear.seen = *ear.messages.borrow();
        }
    }

    /// Watches a held claim for as long as the value lives.
    pub(super) fn watch(self: &Arc<Self>, owner: Owner) -> Watcher {
        let mut boxes = self.boxes();
        let mailbox = boxes.claims.entry(owner).or_default();
        mailbox.users += 1;
        Watcher { post: self.clone(), owner, bell: mailbox.bell.clone() }
    }

    /// Whether somebody was told that the claim was evicted.
    pub(super) fn was_evicted(&self, owner: Owner) -> bool {
        self.boxes().claims.get(&owner).is_some_and(|mailbox| mailbox.evicted)
    }

    /// Counts the messages on a channel.
    pub(super) fn listen(&self, channel: &str) -> watch::Receiver<u64> {
        let mut boxes = self.boxes();
        boxes.channels.retain(|_, bell| bell.receiver_count() > 0);
        boxes.channels.entry(channel.to_owned()).or_default().subscribe()
    }

    /// Called by a connection with everything that the server sends unasked.
    pub(super) fn deliver(&self, push: &PushInfo, tap: &Tap) {
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let [channel, text, ..] = &push.data[..]
                    && let (Some(channel), Some(text)) = (words(channel), words(text))
                {
                    self.hand_out(channel, text);
                }
            }
            PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                // A slot that moves takes its channels along: whoever waited has to look.
                let channel = push.data.first().and_then(words);
                if channel.is_some_and(|channel| tap.lost(channel)) {
                    self.ring_all();
                }
            }
            PushKind::Disconnection => {
                tap.close();
                self.ring_all();
            }
            _ => {}
        }
    }

    /// Makes everybody look: what they waited for may have been missed.
    pub(super) fn ring_all(&self) {
        let boxes = self.boxes();
        boxes.claims.values().for_each(|mailbox| mailbox.bell.notify_one());
        boxes.channels.values().for_each(|bell| bell.send_modify(|count| *count += 1));
    }

    fn hand_out(&self, channel: &str, text: &str) {
        let mut boxes = self.boxes();
        let Some(client) = client_of(channel) else {
            if let Some(bell) = boxes.channels.get(channel) {
                bell.send_modify(|count| *count += 1);
            }
            return;
        };
        let Some((number, message)) = text.split_once(' ') else { return };
        let Ok(owner) = format!("{client}:{number}").parse::<Owner>() else { return };
        let Some(mailbox) = boxes.claims.get_mut(&owner) else { return };
        match Message::parse(message) {
            // A grant that was pushed and not read yet is void.
            Some(Message::Evicted { token }) => {
                mailbox.evicted = true;
                mailbox.letter.take_if(|letter| letter.is_grant_of(token));
            }
            Some(Message::Letter(letter)) => mailbox.letter = Some(letter),
            None => return,
        }
        mailbox.bell.notify_one();
    }

    fn boxes(&self) -> MutexGuard<'_, Boxes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Post({} claims)", self.boxes().claims.len())
    }
}

impl Boxes {
    fn sweep(&mut self, owner: Owner) {
        if self.claims.get(&owner).is_some_and(|mailbox| mailbox.users == 0) {
            self.claims.remove(&owner);
        }
    }
}

/// Keeps the mailbox of a held claim open.
pub(super) struct Watcher {
    post: Arc<Post>,
    owner: Owner,
    pub(super) bell: Arc<Notify>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut boxes = self.post.boxes();
        if let Some(mailbox) = boxes.claims.get_mut(&self.owner) {
            mailbox.users -= 1;
        }
        boxes.sweep(self.owner);
    }
}

impl Letter {
    fn is_grant_of(&self, evicted: FencingToken) -> bool {
        matches!(self, Letter::Granted { token, .. } if *token == evicted)
    }
}

enum Message {
    Evicted { token: FencingToken },
    Letter(Letter),
}

impl Message {
    /// `<word> <place> <token> <ms>`, as the scripts write it.
    fn parse(text: &str) -> Option<Message> {
        let mut parts = text.split(' ');
        let (word, place, token, ms) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let place = place.parse().ok()?;
        match word {
            "e" => Some(Message::Evicted { token: token.parse().ok()? }),
            "g" => Some(Message::Letter(Letter::Granted { place, token: token.parse().ok()? })),
            "l" => {
                let wait = Duration::from_millis(ms.parse().ok()?);
                Some(Message::Letter(Letter::Look { place, wait }))
            }
            _ => None,
        }
    }
}

fn words(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_to_an_earlier_place_is_not_believed() {
        let (post, owner) = (Post::default(), Owner::random());
        let (client, number) =
            owner.to_string().split_once(':').map(|(c, n)| (c.to_owned(), n.to_owned())).unwrap();
        let channel = format!("tenure:c:{client}");
        post.hand_out(&channel, &format!("{number} g 41 7 900"));
        assert!(post.waiting(owner).is_none(), "nobody waits");
        post.open(owner);
        post.hand_out(&channel, &format!("{number} g 41 7 900"));
        assert_eq!(post.letter(owner, 42), None);
        post.hand_out(&channel, &format!("{number} g 42 8 900"));
        let token = FencingToken::new(8).unwrap();
        assert_eq!(post.letter(owner, 42), Some(Letter::Granted { place: 42, token }));
        assert_eq!(post.letter(owner, 42), None, "a letter is read once");
        post.close(owner);
        assert_eq!(post.boxes().claims.len(), 0);
    }

    #[test]
    fn a_pushed_grant_that_was_evicted_is_not_believed() {
        let (post, owner) = (Post::default(), Owner::random());
        let text = owner.to_string();
        let (client, number) = text.split_once(':').unwrap();
        let channel = format!("tenure:c:{client}");
        post.open(owner);
        post.hand_out(&channel, &format!("{number} g 42 8 900"));
        post.hand_out(&channel, &format!("{number} e 0 7 0"));
        let token = FencingToken::new(8).unwrap();
        assert_eq!(post.letter(owner, 42), Some(Letter::Granted { place: 42, token }));
        post.hand_out(&channel, &format!("{number} g 42 8 900"));
        post.hand_out(&channel, &format!("{number} e 0 8 0"));
        assert_eq!(post.letter(owner, 42), None);
        assert!(post.was_evicted(owner));
    }
}
