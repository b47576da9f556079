//! The plain data that crosses the seam between core and backend, and the answers made of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::Result;
use crate::key::{Key, acts_on_a_terminal};
use crate::token::FencingToken;

/// A wish to hold a key: everything that a server has to know about it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tenure::backend::{Claim, Owner};
/// use tenure::Key;
///
/// let claim = Claim::new(Key::new("orders/42")?, Owner::random(), Duration::from_secs(30));
/// assert!(!claim.waits);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// What is claimed.
    pub key: Key,
    /// By whom. A repeated request carries the same owner, so that asking twice is asking once.
    pub owner: Owner,
    /// How it is to be held.
    pub mode: Mode,
    /// For how long the server should keep it without hearing from us.
    pub ttl: Duration,
    /// Whether a busy answer should leave us a place in the queue.
    pub waits: bool,
    /// Whether a request of this claim went unanswered: then a release must also refuse a request
    /// that arrives after it.
    pub doubtful: bool,
    /// What people may know of the holder.
    pub note: Note,
}

impl Claim {
    /// An exclusive claim that does not wait.
    pub fn new(key: Key, owner: Owner, ttl: Duration) -> Claim {
        let note = Note::default();
        Claim { key, owner, mode: Mode::Exclusive, ttl, waits: false, doubtful: false, note }
    }
}

/// How a key is held. Other modes may come; a backend refuses what it does not know.
///
/// # Examples
///
/// ```
/// use tenure::backend::Mode;
///
/// assert_eq!(Mode::default(), Mode::Exclusive);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one owner at a time.
    #[default]
    Exclusive,
}

/// Who makes a claim: the client, and the number of the claim within it. Never used twice.
///
/// Printed as `<uuid>:<number>`.
///
/// # Examples
///
/// ```
/// use tenure::backend::Owner;
///
/// let owner = Owner::random();
/// assert_eq!(owner.to_string().parse::<Owner>()?, owner);
/// assert_ne!(Owner::random(), owner);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    client: [u8; 16],
    number: u64,
}

impl Owner {
    /// The claim with this number of that client.
    pub fn new(client: [u8; 16], number: u64) -> Owner {
        Owner { client, number }
    }

    /// The first claim of a client that nobody else is.
    pub fn random() -> Owner {
        Owner { client: *Uuid::new_v4().as_bytes(), number: 1 }
    }

    /// The client that claims.
    pub fn client(&self) -> [u8; 16] {
        self.client
    }

    /// The number of the claim within its client.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", Uuid::from_bytes(self.client), self.number)
    }
}

impl std::str::FromStr for Owner {
    type Err = crate::Error;
    fn from_str(text: &str) -> Result<Owner> {
        let parse = || {
            let (client, number) = text.split_once(':')?;
            Some(Owner::new(*Uuid::parse_str(client).ok()?.as_bytes(), number.parse().ok()?))
        };
        parse().ok_or_else(|| {
            let message = format!("`{}` is not an owner id", text.escape_debug());
            crate::Error::new(crate::ErrorKind::Invalid, message)
        })
    }
}

/// What people may know of a holder: stored beside the claim where the server can.
///
/// # Examples
///
/// ```
/// use tenure::backend::Note;
///
/// let note = Note::new("web-3", "host\ta", 71, "deploy of v42");
/// assert_eq!(Note::decode(&note.encode()), note);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note(Arc<Parts>);

/// Behind one pointer, because most locks of a client share one note.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    name: Arc<str>,
    host: Arc<str>,
    pid: u32,
    text: Arc<str>,
}

impl Note {
    /// A note with these four parts.
    pub fn new(
        name: impl Into<Arc<str>>,
        host: impl Into<Arc<str>>,
        pid: u32,
        text: impl Into<Arc<str>>,
    ) -> Note {
        Note(Arc::new(Parts { name: name.into(), host: host.into(), pid, text: text.into() }))
    }

    /// The name of the holder: its program, unless it chose another.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The machine it runs on.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Free text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The same holder with other free text.
    pub(crate) fn with_text(&self, text: Arc<str>) -> Note {
        if *text == *self.0.text {
            return self.clone();
        }
        let parts = &self.0;
        let (name, host) = (parts.name.clone(), parts.host.clone());
        Note(Arc::new(Parts { name, host, pid: parts.pid, text }))
    }

    /// The note as one line of text, for servers that store one value. Fields are separated by
    /// tabs; a backslash escapes what would break that.
    pub fn encode(&self) -> String {
        let pid = self.pid().to_string();
        [self.name(), self.host(), &pid, self.text()].map(escape).join("\t")
    }

    /// What [`encode`](Note::encode) wrote. Text that it did not write becomes the free text.
    pub fn decode(line: &str) -> Note {
        let fields: Vec<_> = line.split('\t').collect();
        match fields[..] {
            [name, host, pid, text] => match pid.parse() {
                Ok(pid) => Note::new(unescape(name), unescape(host), pid, unescape(text)),
                Err(_) => Note::new("", "", 0, line),
            },
            _ => Note::new("", "", 0, line),
        }
    }
}

fn escape(field: &str) -> String {
    field.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

fn unescape(field: &str) -> String {
    let mut plain = String::with_capacity(field.len());
    let mut chars = field.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('t') => plain.push('\t'),
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            (c, false) => plain.push(c),
        }
    }
    plain
}

/// What a server gives: the token, and how long the lease lasts from the request on.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tenure::{backend::Grant, FencingToken};
///
/// let grant = Grant::new(FencingToken::new(7).unwrap(), Duration::from_secs(30));
/// assert_eq!(grant.token.get(), 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Grows with every grant of the key; the same when the same owner asks again.
    pub token: FencingToken,
    /// The lease, counted by the core from before the request was sent.
    pub ttl: Duration,
}

impl Grant {
    /// A grant with this token and lease.
    pub fn new(token: FencingToken, ttl: Duration) -> Grant {
        Grant { token, ttl }
    }
}

/// The answer to a bounded wait: the lock, or who is in the way.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::Attempt;
///
/// let locks = tenure::connect("memory:").await?;
/// match locks.lock("stock/42").try_acquire().await? {
///     Attempt::Granted(guard) => guard.release().await?,
///     Attempt::Busy(busy) => println!("{busy}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the lock may be busy: match on it, or call `granted()?`"]
pub enum Attempt<T> {
    /// It is ours.
    Granted(T),
    /// Somebody else has it.
    Busy(Busy),
}

impl<T> Attempt<T> {
    /// The lock, or busy as an error that names the holder.
    ///
    /// # Errors
    ///
    /// [`Busy`], which turns into an [`Error`](crate::Error) of kind
    /// [`Busy`](crate::ErrorKind::Busy).
    pub fn granted(self) -> Result<T, Busy> {
        match self {
            Attempt::Granted(granted) => Ok(granted),
            Attempt::Busy(busy) => Err(busy),
        }
    }

    /// The same answer about something made from the lock.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Attempt::Granted(granted) => Attempt::Granted(f(granted)),
            Attempt::Busy(busy) => Attempt::Busy(busy),
        }
    }
}

/// Somebody else has the lock: who, and what is known about how long it may take.
///
/// # Examples
///
/// ```
/// use tenure::{Busy, Key};
///
/// let busy = Busy::new(Key::new("stock/42")?);
/// assert_eq!(busy.to_string(), "`stock/42` is held by another");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Busy {
    /// What was asked for.
    pub key: Key,
    /// Who has it, where the server can tell.
    pub holder: Option<Box<Holder>>,
    /// How many waiters are before us, where there is a queue and we are in it.
    pub ahead: Option<u32>,
    /// When it makes sense to look again.
    pub retry_after: Option<Duration>,
    /// How long we have waited.
    pub waited: Duration,
}

impl Busy {
    /// The key is held; nothing else is known.
    pub fn new(key: Key) -> Busy {
        Busy { key, holder: None, ahead: None, retry_after: None, waited: Duration::ZERO }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is held by ", self.key)?;
        match &self.holder {
            Some(holder) => holder.fmt(f)?,
            None => f.write_str("another")?,
        }
        match self.ahead {
            Some(1) => f.write_str("; 1 waiter is ahead"),
            Some(n) if n > 1 => write!(f, "; {n} waiters are ahead"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Busy {}

/// Who has a lock. The texts are a stranger's: `Display` makes them harmless, the fields are raw.
///
/// # Examples
///
/// ```
/// use tenure::{backend::Note, Holder};
///
/// let holder = Holder::new(&Note::new("web-3", "host-a", 71, ""));
/// assert_eq!(holder.to_string(), "web-3 on host-a (pid 71)");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The name it chose, or its program.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its free text.
    pub note: String,
    /// Its token, if the server keeps it where we can read it.
    pub token: Option<FencingToken>,
    /// For how long it has held the lock, by the server's clock.
    pub held_for: Option<Duration>,
    /// For how long the server keeps the lock without hearing from it.
    pub ttl_left: Option<Duration>,
}

impl Holder {
    /// A holder of whom no more is known than its note.
    pub fn new(note: &Note) -> Holder {
        Holder {
            name: note.name().to_owned(),
            host: note.host().to_owned(),
            pid: note.pid(),
            note: note.text().to_owned(),
            token: None,
            held_for: None,
            ttl_left: None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str("another")?,
            name => Harmless(name).fmt(f)?,
        }
        if !self.host.is_empty() {
            write!(f, " on {}", Harmless(&self.host))?;
        }
        if self.pid != 0 {
            write!(f, " (pid {})", self.pid)?;
        }
        if let Some(held_for) = self.held_for {
            write!(f, " for {:.1} s", held_for.as_secs_f64())?;
        }
        if !self.note.is_empty() {
            write!(f, ": {}", Harmless(&self.note))?;
        }
        Ok(())
    }
}

/// Somebody who waits for a lock.
///
/// # Examples
///
/// ```
/// use tenure::{backend::Note, Waiter};
///
/// let waiter = Waiter::new(&Note::new("web-4", "host-b", 8, ""));
/// assert_eq!(waiter.name, "web-4");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The name it chose, or its program.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has waited, by the server's clock.
    pub waiting_for: Option<Duration>,
}

impl Waiter {
    /// A waiter of whom no more is known than its note.
    pub fn new(note: &Note) -> Waiter {
        let (name, host) = (note.name().to_owned(), note.host().to_owned());
        Waiter { name, host, pid: note.pid(), waiting_for: None }
    }
}

/// One held key, for people: its holder and its waiters in order.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:?owner=web-3").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// let holdings = locks.list("orders/").await?;
/// assert_eq!(holdings[0].holder.name, "web-3");
/// assert_eq!(holdings[0].holder.token, Some(guard.token()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holding {
    /// What is held.
    pub key: Key,
    /// By whom.
    pub holder: Holder,
    /// Who waits for it, first come first.
    pub waiters: Vec<Waiter>,
}

impl Holding {
    /// A key that nobody waits for.
    pub fn new(key: Key, holder: Holder) -> Holding {
        Holding { key, holder, waiters: Vec::new() }
    }
}

/// The lock was ours and no longer is.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::LostReason;
///
/// let locks = tenure::connect("memory:").await?;
/// let lock = locks.lock("orders/42");
/// let guard = lock.acquire().await?;
/// lock.evict(guard.token()).await?;
/// let lost = guard.lost().await;
/// assert_eq!(lost.reason(), LostReason::Evicted);
/// assert_eq!(lost.key().as_str(), "orders/42");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    key: Key,
    token: FencingToken,
    reason: LostReason,
}

impl Lost {
    pub(crate) fn new(key: Key, token: FencingToken, reason: LostReason) -> Lost {
        Lost { key, token, reason }
    }

    /// Why.
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// Which lock.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The token of the grant that ended.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (token {}) is lost: {}", self.key, self.token, self.reason.describe())
    }
}

impl std::error::Error for Lost {}

/// Why a lock is no longer ours.
///
/// # Examples
///
/// ```
/// use tenure::LostReason;
///
/// assert_ne!(LostReason::Expired, LostReason::Evicted);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Somebody force-released it.
    Evicted,
    /// The lease ended before it could be renewed.
    Expired,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// Its own guard released it.
    Released,
    /// The server ended the session that the lock hung on.
    SessionGone,
    /// Somebody else holds it now.
    TakenOver,
}

impl LostReason {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            LostReason::Evicted => "it was evicted",
            LostReason::Expired => "its lease ended before it could be renewed",
            LostReason::MaxHold => "it was held for as long as `max_hold` allows",
            LostReason::Released => "it was released",
            LostReason::SessionGone => "the server ended the session that it hung on",
            LostReason::TakenOver => "somebody else holds it now",
        }
    }
}

/// A stranger's text, with everything escaped that could act on a terminal.
struct Harmless<'a>(&'a str);

impl fmt::Display for Harmless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match acts_on_a_terminal(c) {
                true => write!(f, "{}", c.escape_unicode())?,
                false => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_survives_its_encoding_whatever_it_holds() {
        for text in ["", "plain", "tab\there", "back\\slash\\t", "line\nfeed", "\\", "é🦀"] {
            let note = Note::new(text, "h", 7, text);
            assert_eq!(Note::decode(&note.encode()), note, "{text:?}");
        }
    }

    #[test]
    fn a_foreign_note_becomes_the_free_text() {
        for line in ["", "hello", "a\tb", "a\tb\tno number\td"] {
            assert_eq!(Note::decode(line).text(), line);
        }
    }

    #[test]
    fn a_holder_cannot_write_to_the_terminal() {
        let holder = Holder::new(&Note::new("a\u{1b}[31m", "h\u{202e}", 1, "x\ny"));
        let shown = holder.to_string();
        assert!(!shown.contains(acts_on_a_terminal), "{shown:?}");
        assert!(shown.contains("\\u{1b}"), "{shown:?}");
    }
}
