//! What backends and engine share: nothing in here knows of a particular server.
#![cfg_attr(
    not(all(
        feature = "consul",
        feature = "etcd",
        feature = "memory",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "redlock",
        feature = "sqlite",
        feature = "zookeeper"
    )),
    allow(dead_code, reason = "which of it is used depends on the backends that are built")
)]

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod credentials;
pub(crate) mod driver;
pub(crate) mod held_watches;
pub(crate) mod percent;
pub(crate) mod quiet_waker;
pub(crate) mod reconnect;
pub(crate) mod short_wait;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod socket;
pub(crate) mod sync;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis"
))]
pub(crate) mod tls;
pub(crate) mod url;
pub(crate) mod wakeups;
