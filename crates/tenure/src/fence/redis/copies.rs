//! How many copies of a write Redis has to have before it counts.

use std::time::Duration;

use ::redis::{Cmd, ErrorKind, RedisError, Value, cmd, from_redis_value};

/// Below the half second after which the client gives a response up by itself.
const USUAL: Duration = Duration::from_millis(400);

/// How many copies of an admission are to be made, and how long that may take: 400 ms, if not
/// said otherwise.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tenure::fence::redis::Copies;
///
/// // Of a master with two replicas, one of which is promoted: both have to have it.
/// let copies = Copies::replicas(2).within(Duration::from_millis(200));
/// // A lone server, with `appendonly yes`.
/// let copies = Copies::disk();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    disk: bool,
    replicas: u32,
    within: Duration,
}

impl Copies {
    /// So many replicas have it in memory (`WAIT`). A failover to one of *those* keeps it: to be
    /// sure, it has to be all that may be promoted.
    pub const fn replicas(number: u32) -> Copies {
        Copies { disk: false, replicas: number, within: USUAL }
    }

    /// The master has it on its disk (`WAITAOF`: Redis 7.2, Valkey, with `appendonly yes`). With
    /// `appendfsync everysec` that takes up to a second, with `no` for ever.
    pub const fn disk() -> Copies {
        Copies { disk: true, replicas: 0, within: USUAL }
    }

    /// The master, and so many replicas, have it on their disks (`WAITAOF`).
    pub const fn disks(replicas: u32) -> Copies {
        Copies { disk: true, replicas, within: USUAL }
    }

    /// How long that may take, at least a millisecond. The client's own limit for a response has to
    /// be longer.
    #[must_use]
    pub const fn within(mut self, limit: Duration) -> Copies {
        self.within = limit;
        self
    }

    pub(super) fn command(self) -> Cmd {
        let limit = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = if self.disk { cmd("WAITAOF") } else { cmd("WAIT") };
        if self.disk {
            command.arg(1);
        }
        command.arg(self.replicas).arg(limit);
        command
    }

    /// Checks that the response to that command says that there are as many.
    pub(super) fn check(self, response: Option<&Value>) -> Result<(), RedisError> {
        let response = response.cloned().unwrap_or(Value::Nil);
        let (disks, replicas): (u32, u32) =
            if self.disk { from_redis_value(response)? } else { (0, from_redis_value(response)?) };
        if replicas >= self.replicas && disks >= u32::from(self.disk) {
            return Ok(());
        }
        let made = format!("{replicas} of {} replicas, {disks} disks here", self.replicas);
        Err((ErrorKind::Io, "the copies were not made in time", made).into())
    }
}
