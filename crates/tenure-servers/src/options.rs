//! The options with which a server is started.

use std::path::{Path, PathBuf};

use crate::provision::{Bundle, Newest};

/// The options with which a server is started. The default is [`Durability::Fast`] and Redis 7.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) durability: Durability,
    pub(crate) flavor: Flavor,
    pub(crate) clock: bool,
    pub(crate) tls: Option<PathBuf>,
}

impl Options {
    /// Sets what survives `kill -9`.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets which Redis is started.
    #[must_use]
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    /// Makes [`Node::shift_clock`](crate::Node::shift_clock) work. Not for etcd and Consul, because
    /// Go programs do not get the time from libc. Needs a C compiler.
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Also accepts TLS, on [`Node::tls_port`](crate::Node::tls_port), with the files `ca.pem`,
    /// `server.pem` and `server.key` of this folder. For one etcd, one Consul, PostgreSQL, MariaDB
    /// and MySQL. etcd and Consul then require a certificate of that authority from their clients.
    #[must_use]
    pub fn tls(mut self, folder: &Path) -> Self {
        self.tls = Some(folder.to_owned());
        self
    }

    /// The path of one of those files, with TLS.
    pub(crate) fn tls_file(&self, name: &str) -> Option<String> {
        self.tls.as_ref().map(|folder| folder.join(name).display().to_string())
    }
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Durability {
    /// The server's own default. Redis: snapshots only, so that `kill -9` loses locks.
    /// The others: as [`Durable`](Self::Durable).
    Default,
    /// Also a power cut, if the disk writes what it confirms.
    Durable,
    /// `kill -9`, not a power cut: written, not synced.
    #[default]
    Fast,
    /// Redis: nothing. The others: as [`Fast`](Self::Fast).
    Memory,
}

impl Durability {
    pub(crate) fn skips_sync(self) -> bool {
        matches!(self, Self::Fast | Self::Memory)
    }
}

/// A server with the protocol of Redis.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Flavor {
    /// Redis 7.
    #[default]
    Redis7,
    /// Redis 8.
    Redis8,
    /// Valkey.
    Valkey,
}

impl Flavor {
    /// The bundle that is fetched for it. `TENURE_SERVERS_NEWEST=valkey` replaces Redis 7 by
    /// Valkey.
    pub(crate) fn bundle(self) -> Bundle {
        match self {
            Self::Redis7 if Newest::from_env() == Newest::Valkey => Bundle::Valkey,
            Self::Redis7 => Bundle::Redis,
            Self::Redis8 => Bundle::Redis8,
            Self::Valkey => Bundle::Valkey,
        }
    }
}
