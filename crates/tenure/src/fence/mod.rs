//! Fences: what the protected resource needs to refuse a stale holder.
//!
//! No lock is safe against a paused process: it resumes, its lease is over, and it writes. Only the
//! resource can refuse that write, by the token. Every fence here has the operation `admit`: it
//! raises the highest token seen for a resource, or refuses a lower one.
//!
//! **A reader of a shared lock shows its token with `admit_shared`**, before its first read: then a
//! stale writer can no longer change what it reads. With `admit` it would refuse the other readers
//! that hold the lock with it: that is safe, but they could not go on. So a fence keeps two
//! numbers for each resource, and [`Seen`] is their rule.
//!
//! **Call it at the first contact, before the first read, and again with the write.** A fence that
//! sees only writes lets a stale write in before the new holder's first, and that one overwrites
//! it: measured, such a fence still lost up to 14 % of the updates of paused holders.
//!
//! **The first contact has to last.** In SQL it is committed before the read (`contact`), or the
//! read and the write are in the same transaction; in Redis it is on a replica or on the disk
//! (`admit_durable`). **And the admission is joined to the write**: by a transaction, a script, a
//! guard or a turn, so that no other holder comes in between.
//!
//! | resource | fence | cargo feature |
//! |---|---|---|
//! | a value of this process | [`Fenced`], [`Fences`] | none |
//! | a file | [`mod@file`] | none |
//! | SQL, any client | [`sql`] | none |
//! | SQLite by rusqlite | `fence::rusqlite` | `fence-rusqlite` |
//! | PostgreSQL, MySQL, MariaDB by sqlx 0.9 | `fence::sqlx` | `fence-sqlx`, or of one server `fence-sqlx-postgres`, `fence-sqlx-mysql` |
//! | PostgreSQL by tokio-postgres | `fence::tokio_postgres` | `fence-tokio-postgres` |
//! | MySQL, MariaDB by mysql_async | `fence::mysql_async` | `fence-mysql-async` |
//! | Redis | `fence::redis` | `fence-redis` |
//! | an HTTP service | `fence::http` | `fence-http` |
//!
//! What holds for all of them: an equal token is admitted, because a holder may come many times; a
//! lower one is refused, with both numbers in [`Stale`] (of readers, only if a writer was later);
//! the first token of a resource is admitted whatever it is; and a fence that lost its data admits
//! any token, as at first use. Tokens of different keys cannot be compared: give each resource the
//! lock that guards it, and one only. The page `docs/fencing.md` of the repository shows how to
//! fence a resource of another kind.

mod fenced;
pub mod file;
#[cfg(feature = "fence-http")]
pub mod http;
mod memory;
#[cfg(feature = "fence-mysql-async")]
pub mod mysql_async;
#[cfg(feature = "fence-redis")]
pub mod redis;
mod refused;
#[cfg(feature = "fence-rusqlite")]
pub mod rusqlite;
mod seen;
pub mod sql;
#[cfg(any(feature = "fence-sqlx-mysql", feature = "fence-sqlx-postgres"))]
pub mod sqlx;
#[cfg(feature = "fence-tokio-postgres")]
pub mod tokio_postgres;

pub use fenced::{Fenced, FencedGuard, FencedReadGuard};
pub use memory::{Fences, Full, Turn};
pub(crate) use refused::is_stale;
pub use refused::{Refused, Stale};
pub use seen::Seen;
