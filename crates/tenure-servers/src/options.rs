//! How a server is to be started.

use std::path::{Path, PathBuf};

use crate::get::{Bundle, Newest};

/// How a server is to be started. The default is [`Durability::Fast`] and Redis 7.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) durability: Durability,
    pub(crate) flavor: Flavor,
    pub(crate) clock: bool,
    pub(crate) tls: Option<PathBuf>,
}

impl Options {
    /// What survives `kill -9`.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Which Redis.
    #[must_use]
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    /// Makes [`Node::shift_clock`](crate::Node::shift_clock) work: not with etcd and Consul, since
    /// Go programs do not ask libc for the time. Needs a C compiler.
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Also speaks TLS, on [`Node::tls_port`](crate::Node::tls_port), with the files `ca.pem`,
    /// `server.pem` and `server.key` of this folder: one etcd, one Consul, PostgreSQL, MariaDB.
    /// etcd and Consul then want a certificate of that authority from their clients.
    #[must_use]
    pub fn tls(mut self, folder: &Path) -> Self {
        self.tls = Some(folder.to_owned());
        self
    }

    /// The place of one of those files.
    pub(crate) fn tls_file(&self, name: &str) -> Option<String> {
        self.tls.as_ref().map(|folder| folder.join(name).display().to_string())
    }
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Durability {
    /// What the server does by itself. Redis: snapshots only, so that `kill -9` loses locks.
    /// The others: as [`Durable`](Self::Durable).
    Default,
    /// Also a power cut, as far as the disk keeps its word.
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

/// Which server speaks the protocol of Redis.
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
    /// What it is fetched as. By option of the environment, Valkey runs in the place of Redis 7.
    pub(crate) fn bundle(self) -> Bundle {
        match self {
            Self::Redis7 if Newest::from_env() == Newest::Valkey => Bundle::Valkey,
            Self::Redis7 => Bundle::Redis,
            Self::Redis8 => Bundle::Redis8,
            Self::Valkey => Bundle::Valkey,
        }
    }
}
