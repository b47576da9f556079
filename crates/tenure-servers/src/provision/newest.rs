//! The option `TENURE_SERVERS_NEWEST`: the newest servers, which are those of Debian sid. Their
//! bundles have separate folders, and a program of the host is never used for them. The names of
//! sid's libraries change with time; then the names in this file have to follow.

use std::env;

use super::bundle::Bundle;
use crate::error::{Error, Result};

/// The environment variable.
pub(super) const VARIABLE: &str = "TENURE_SERVERS_NEWEST";
/// The major version of PostgreSQL in sid, which is in the names of its folders.
pub(super) const POSTGRES_MAJOR: &str = "18";
const COMMON: &str = "libssl3t64 zlib1g libsystemd0 libcap2 libzstd1 libc6 libgcc-s1 libstdc++6";
// Without libraries that only extensions need, and without LLVM: the server runs with jit=off.
const POSTGRES: &str = "postgresql-18 postgresql-client-18 libpq5 libxml2-16 libgssapi-krb5-2 \
    libldap2 libicu78 liblz4-1 libnuma1 liburing2 libuuid1 libreadline8t64 libpam0g libaudit1 \
    libcap-ng0 libkrb5-3 libk5crypto3 libcom-err2 libkrb5support0 libkeyutils1 libsasl2-2 \
    libtinfo6 libcrypt1 libselinux1 libpcre2-8-0 liblzma5";

/// The value of `TENURE_SERVERS_NEWEST`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Newest {
    /// The usual servers.
    No,
    /// The newest ones.
    Yes,
    /// The newest ones, and Valkey wherever Redis would run.
    Valkey,
}

impl Newest {
    /// The value in the environment. An unknown value counts as [`No`](Self::No) here; [`check`]
    /// refuses it before a program is used.
    pub(crate) fn from_env() -> Self {
        Self::parse(&env::var(VARIABLE).unwrap_or_default()).unwrap_or(Self::No)
    }

    fn parse(value: &str) -> Option<Self> {
        match value {
            "" | "0" => Some(Self::No),
            "1" => Some(Self::Yes),
            "valkey" => Some(Self::Valkey),
            _ => None,
        }
    }

    /// Whether a newer bundle is used. Consul is not in sid, and the usual MySQL comes from there;
    /// Java is no server, and the usual one runs the newer ZooKeeper.
    pub(super) fn concerns(self, bundle: Bundle) -> bool {
        self != Self::No && packages(bundle).is_some()
    }
}

/// Refuses an unknown value, before a server runs that was not intended.
pub(super) fn check(server: &str) -> Result<()> {
    let value = env::var(VARIABLE).unwrap_or_default();
    match Newest::parse(&value) {
        Some(_) => Ok(()),
        None => Err(Error::failed(
            format!("get {server}"),
            format!("{VARIABLE} is `{value}` (known: 0, 1, valkey)"),
        )),
    }
}

/// The packages of sid, the server's own first; `None` for a bundle that has no newer version.
pub(super) fn packages(bundle: Bundle) -> Option<&'static [&'static str]> {
    Some(match bundle {
        Bundle::Etcd => &["etcd-server etcd-client libc6"],
        Bundle::Mariadb => {
            &["mariadb-server-core libaio1t64 libnuma1 liburing2 libpcre2-8-0 libcrypt1", COMMON]
        }
        Bundle::Postgres => &[POSTGRES, COMMON],
        Bundle::Redis | Bundle::Redis8 => {
            &["redis-tools redis-server libatomic1 liblzf1 libjemalloc2", COMMON]
        }
        Bundle::Valkey => &["valkey-tools valkey-server libatomic1 liblzf1 libjemalloc2", COMMON],
        Bundle::Zookeeper => {
            &["libzookeeper-java libslf4j-java libdropwizard-metrics-java libsnappy-java"]
        }
        Bundle::Consul | Bundle::Jre | Bundle::Mysql => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_is_refused() {
        for (value, meant) in [("", Newest::No), ("1", Newest::Yes), ("valkey", Newest::Valkey)] {
            assert_eq!(Newest::parse(value), Some(meant));
        }
        assert_eq!(Newest::parse("redis"), None);
    }

    #[test]
    fn bundles_without_a_newer_version_stay_the_same() {
        for bundle in [Bundle::Consul, Bundle::Jre, Bundle::Mysql] {
            assert!(!Newest::Yes.concerns(bundle), "{bundle:?}");
        }
        assert!(Newest::Yes.concerns(Bundle::Redis) && !Newest::No.concerns(Bundle::Redis));
    }
}
