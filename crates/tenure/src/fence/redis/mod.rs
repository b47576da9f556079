//! Fences in Redis and Valkey, for what is kept there: one script checks the token and writes.
//!
//! The fence of the key `stock/42` is the key `{stock/42}:fence` (see [`key`]), which a cluster
//! keeps on the same node. It is forgotten **a week** after the last admission, so that fences do
//! not pile up: a holder that was paused for longer, and whose resource no client touched since, is
//! let in. The week is of the server's wall clock, which may jump. Redis must not evict it: run
//! with `maxmemory-policy noeviction`.
//!
//! **What Redis forgets, the fence forgets.** A failover or a crash that loses the last moments
//! loses a first contact *alone*: what its holder has read is as right as before, and a stale
//! holder is admitted again. So the first contact is [`admit_durable`], which waits for replicas or
//! for the disk. The write needs no waiting: lost with its value, it does no harm. After an error
//! of the connection begin again with the first contact and the read.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenure::{fence::{self, redis::Copies}, FencingToken};
//!
//! # async fn example(mut db: redis::aio::MultiplexedConnection, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! let copies = Copies::replicas(1).within(Duration::from_millis(200));
//! fence::redis::admit_durable(&mut db, "stock/42", token, copies).await?; // before any read
//! let n: i64 = redis::cmd("GET").arg("stock/42").query_async(&mut db).await?;
//! fence::redis::set(&mut db, "stock/42", token, n - 1).await?; // and again with the write
//! # Ok(()) }
//! ```
//!
//! The read is at the master: a replica may not have what the holder before has written. A reader
//! of a shared lock shows its token with [`admit_shared_durable`], and then reads.
//!
//! # In your own script
//!
//! Put [`CHECK`] before it. It defines `tenure_admit(fence, token)` and, for a reader,
//! `tenure_admit_shared(fence, token)`, which return nothing, or an error that the script must
//! return at once; [`refused`] reads it.
//!
//! ```no_run
//! use tenure::{fence, FencingToken};
//!
//! # async fn example(mut db: redis::aio::MultiplexedConnection, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! let sell = redis::Script::new(&format!(
//!     "{}
//!     local refused = tenure_admit(KEYS[2], ARGV[1])
//!     if refused then return refused end
//!     if tonumber(redis.call('GET', KEYS[1]) or 0) < 1 then return 0 end
//!     redis.call('DECR', KEYS[1])
//!     return 1",
//!     fence::redis::CHECK
//! ));
//! let mut call = sell.key("stock/42");
//! call.key(fence::redis::key("stock/42")).arg(token.get());
//! let sold: bool =
//!     call.invoke_async(&mut db).await.map_err(|error| fence::redis::refused(error, token))?;
//! # Ok(()) }
//! ```

mod copies;

use std::sync::LazyLock;

use ::redis::aio::ConnectionLike;
use ::redis::{FromRedisValue, RedisError, Script, ToRedisArgs, Value, pipe};

pub use copies::Copies;

use super::refused::{Refused, Stale};
use crate::token::FencingToken;

/// The script of an admission alone.
static ADMIT: LazyLock<String> = LazyLock::new(|| text("tenure_admit", DONE));
static ADMIT_SHARED: LazyLock<String> = LazyLock::new(|| text("tenure_admit_shared", DONE));
const DONE: &str = "return redis.status_reply('OK')";

/// Lua that defines `tenure_admit(fence, token)` and `tenure_admit_shared(fence, token)`, to stand
/// before your own script.
pub const CHECK: &str = include_str!("../check.lua");

/// The key of the fence of this resource, on the same node of a cluster as the key of that name.
///
/// A name with a `}` in it that does not close a hash tag has no such neighbour; a cluster refuses
/// it.
///
/// # Examples
///
/// ```
/// use tenure::fence;
///
/// assert_eq!(fence::redis::key("stock/42"), "{stock/42}:fence");
/// assert_eq!(fence::redis::key("{shop}:stock/42"), "{shop}:stock/42::fence");
/// ```
pub fn key(resource: &str) -> String {
    let tag = resource.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    match tag {
        // Two colons, else `{a}` and `a` would share a fence.
        Some((tag, _)) if !tag.is_empty() => format!("{resource}::fence"),
        _ => format!("{{{resource}}}:fence"),
    }
}

/// The first contact: admits this token for this resource, and waits until so many copies of it are
/// made that a failover or a crash does not lose it.
///
/// The connection waits with it; others that share it (a clone of a multiplexed one) wait too. It
/// is to one master, also that of a part of a cluster. A client that reconnects by itself is safe:
/// admission and waiting go together.
///
/// # Errors
///
/// As for [`admit`]; [`Refused::Store`] also if the copies were not made in time, or Redis does not
/// know the command. The token was seen then, by the master at least: read nothing, and begin
/// again.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been seen; to show it again is safe.
pub async fn admit_durable(
    connection: &mut impl ConnectionLike,
    resource: &str,
    token: FencingToken,
    copies: Copies,
) -> Result<(), Refused<RedisError>> {
    admit_and_copy(connection, &ADMIT, resource, token, copies).await
}

/// The first contact of a reader: as [`admit_durable`], but other readers are admitted whatever
/// their order. So no stale writer can change what is read afterwards.
///
/// # Errors
///
/// As for [`admit_shared`]; [`Refused::Store`] also if the copies were not made in time.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been seen; to show it again is safe.
///
/// # Examples
///
/// ```no_run
/// use tenure::{fence::{self, redis::Copies}, FencingToken};
///
/// # async fn example(mut db: redis::aio::MultiplexedConnection, token: FencingToken)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// fence::redis::admit_shared_durable(&mut db, "stock/42", token, Copies::replicas(1)).await?;
/// let n: i64 = redis::cmd("GET").arg("stock/42").query_async(&mut db).await?;
/// # Ok(()) }
/// ```
pub async fn admit_shared_durable(
    connection: &mut impl ConnectionLike,
    resource: &str,
    token: FencingToken,
    copies: Copies,
) -> Result<(), Refused<RedisError>> {
    admit_and_copy(connection, &ADMIT_SHARED, resource, token, copies).await
}

async fn admit_and_copy(
    connection: &mut impl ConnectionLike,
    script: &str,
    resource: &str,
    token: FencingToken,
    copies: Copies,
) -> Result<(), Refused<RedisError>> {
    // The text of the script, not its hash, which may be unknown after a failover. And in one
    // batch: on another connection, Redis would wait for what was written on *that* one, for
    // nothing.
    let mut batch = pipe();
    batch.cmd("EVAL").arg(script).arg(1).arg(key(resource)).arg(token.get());
    batch.add_command(copies.command());
    let responses: Vec<Value> =
        batch.query_async(connection).await.map_err(|error| refused(error, token))?;
    copies.check(responses.last()).map_err(Refused::Store)
}

/// Admits this token for this resource, and from now on none below it.
///
/// **Only what Redis does not lose is fenced.** It is enough with the write in the same script, or
/// where Redis responds only with what is on its disk (`appendonly yes`, `appendfsync always`) and
/// has no failover; elsewhere the first contact is [`admit_durable`].
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, of a writer or of a reader;
/// [`Refused::Garbage`] if the fence's key holds something else, [`Refused::Store`] with what Redis
/// says.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been seen; to show it again is safe.
pub async fn admit(
    connection: &mut impl ConnectionLike,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<RedisError>> {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(&ADMIT));
    run(connection, &SCRIPT, resource, token, None::<i64>).await
}

/// Admits this token of a reader for this resource, and from now on no lower one of a writer.
///
/// **Only what Redis does not lose is fenced**: where it can lose an admission, use
/// [`admit_shared_durable`].
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was here before; else as for [`admit`].
///
/// # Cancel safety
///
/// **Not undone.** The token may have been seen; to show it again is safe.
pub async fn admit_shared(
    connection: &mut impl ConnectionLike,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<RedisError>> {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(&ADMIT_SHARED));
    run(connection, &SCRIPT, resource, token, None::<i64>).await
}

/// Sets this key, if its fence admits the token.
///
/// # Errors
///
/// As for [`admit`]; nothing is set then, unless Redis did not respond.
///
/// # Cancel safety
///
/// **Not undone.** It may have been set.
pub async fn set(
    connection: &mut impl ConnectionLike,
    key: &str,
    token: FencingToken,
    value: impl ToRedisArgs,
) -> Result<(), Refused<RedisError>> {
    static SCRIPT: LazyLock<Script> =
        LazyLock::new(|| fenced("return redis.call('SET', KEYS[2], ARGV[2])"));
    run(connection, &SCRIPT, key, token, value).await
}

/// Deletes this key, if its fence admits the token; says whether it was there. The fence stays.
///
/// # Errors
///
/// As for [`admit`]; nothing is deleted then, unless Redis did not respond.
///
/// # Cancel safety
///
/// **Not undone.** It may have been deleted.
pub async fn delete(
    connection: &mut impl ConnectionLike,
    key: &str,
    token: FencingToken,
) -> Result<bool, Refused<RedisError>> {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| fenced("return redis.call('DEL', KEYS[2])"));
    run(connection, &SCRIPT, key, token, None::<i64>).await
}

/// Adds to the number at this key, if its fence admits the token; returns the sum.
///
/// # Errors
///
/// As for [`admit`]; nothing is added then, unless Redis did not respond. So do not repeat it after
/// [`Refused::Store`] without a check: it may have been added.
///
/// # Cancel safety
///
/// **Not undone.** It may have been added.
pub async fn increment(
    connection: &mut impl ConnectionLike,
    key: &str,
    token: FencingToken,
    by: i64,
) -> Result<i64, Refused<RedisError>> {
    static SCRIPT: LazyLock<Script> =
        LazyLock::new(|| fenced("return redis.call('INCRBY', KEYS[2], ARGV[2])"));
    run(connection, &SCRIPT, key, token, by).await
}

/// What an error of a script with [`CHECK`] in it says about its token. Of a
/// batch of commands the first error counts.
pub fn refused(error: RedisError, token: FencingToken) -> Refused<RedisError> {
    let errors = error.clone().into_server_errors();
    let first = errors.and_then(|errors| errors.first().map(|(_, error)| error.clone().into()));
    let error: RedisError = first.unwrap_or(error);
    let detail = error.detail().unwrap_or_default();
    let stale = |check: fn(FencingToken, FencingToken) -> Result<(), Stale>| match detail
        .parse()
        .map(|seen| check(token, seen))
    {
        Ok(Err(stale)) => Refused::Stale(stale),
        _ => Refused::Garbage(detail.to_owned()),
    };
    match error.code() {
        Some("FENCESTALE") => stale(Stale::check),
        Some("FENCESTALESHARED") => stale(Stale::check_reader),
        Some("FENCEGARBAGE") => Refused::Garbage(detail.to_owned()),
        _ => Refused::Store(error),
    }
}

/// A script that does this if the fence admits the token.
fn fenced(then: &str) -> Script {
    Script::new(&text("tenure_admit", then))
}

fn text(admit: &str, then: &str) -> String {
    format!(
        "{CHECK}local refused = {admit}(KEYS[1], ARGV[1])\n\
         if refused then return refused end\n{then}"
    )
}

async fn run<T: FromRedisValue>(
    connection: &mut impl ConnectionLike,
    script: &Script,
    resource: &str,
    token: FencingToken,
    value: impl ToRedisArgs,
) -> Result<T, Refused<RedisError>> {
    let mut call = script.key(key(resource));
    call.key(resource).arg(token.get()).arg(value);
    call.invoke_async(connection).await.map_err(|error| refused(error, token))
}
