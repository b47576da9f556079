//! The topologies that can be started, and their names.

use std::fmt;
use std::str::FromStr;

use crate::provision::{Bundle, Newest};

/// A server, or servers that belong together.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Topology {
    /// One Consul agent in development mode: in memory.
    Consul,
    /// Three Consul servers.
    Consul3,
    /// One etcd.
    Etcd,
    /// Three etcd members.
    Etcd3,
    /// One MariaDB.
    Mariadb,
    /// One MySQL.
    Mysql,
    /// One PostgreSQL.
    Postgres,
    /// One Redis.
    Redis,
    /// Five Redis masters that do not know each other.
    Redis5,
    /// Three Redis masters that share the slots.
    RedisCluster,
    /// A Redis master, two replicas, and three sentinels that watch them.
    RedisSentinel,
    /// One ZooKeeper.
    Zookeeper,
    /// An ensemble of three ZooKeepers.
    Zookeeper3,
}

impl Topology {
    /// Every topology.
    pub const ALL: [Self; 13] = [
        Self::Consul,
        Self::Consul3,
        Self::Etcd,
        Self::Etcd3,
        Self::Mariadb,
        Self::Mysql,
        Self::Postgres,
        Self::Redis,
        Self::Redis5,
        Self::RedisCluster,
        Self::RedisSentinel,
        Self::Zookeeper,
        Self::Zookeeper3,
    ];

    /// The name on the command line and in `TENURE_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Consul => "consul",
            Self::Consul3 => "consul3",
            Self::Etcd => "etcd",
            Self::Etcd3 => "etcd3",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Redis5 => "redis5",
            Self::RedisCluster => "redis-cluster",
            Self::RedisSentinel => "redis-sentinel",
            Self::Zookeeper => "zookeeper",
            Self::Zookeeper3 => "zookeeper3",
        }
    }

    /// The name of the server that it consists of.
    pub fn server(self) -> &'static str {
        match self {
            Self::Consul | Self::Consul3 => "consul",
            Self::Etcd | Self::Etcd3 => "etcd",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
            Self::Redis | Self::Redis5 | Self::RedisCluster | Self::RedisSentinel => "redis",
            Self::Zookeeper | Self::Zookeeper3 => "zookeeper",
        }
    }

    /// The bundles that are fetched for it if no suitable server is installed.
    pub fn bundles(self) -> &'static [Bundle] {
        match self.server() {
            "consul" => &[Bundle::Consul],
            "etcd" => &[Bundle::Etcd],
            "mariadb" => &[Bundle::Mariadb],
            "mysql" => &[Bundle::Mysql],
            "postgres" => &[Bundle::Postgres],
            "redis" if Newest::from_env() == Newest::Valkey => &[Bundle::Valkey],
            "redis" => &[Bundle::Redis],
            _ => &[Bundle::Zookeeper, Bundle::Jre],
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|topology| topology.name() == text).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|topology| topology.name()).collect();
            format!("unknown topology `{text}` (known: {})", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Topology;

    #[test]
    fn a_topology_is_found_by_its_name_and_by_its_index() {
        for (index, topology) in Topology::ALL.into_iter().enumerate() {
            assert_eq!(topology.name().parse(), Ok(topology));
            assert_eq!(topology as usize, index);
        }
        assert!("redis6".parse::<Topology>().unwrap_err().contains("known: consul, consul3"));
    }
}
