//! The servers of a run, and each client's own way to them: through a proxy that can be cut.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tenure_servers::wire::http::{self, json_field};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::postgres::Postgres;
use tenure_servers::wire::{redis, zookeeper};
use tenure_servers::{Cluster, Direction, Node, Options, Proxy, Topology};

use crate::schemes::{Lock, Make};

/// The servers of one lock.
#[derive(Debug)]
pub struct Rig {
    lock: &'static Lock,
    topology: Option<Topology>,
    cluster: Option<Cluster>,
    folder: TempDir,
}

impl Rig {
    /// Starts the servers that the lock needs, or others that do as well.
    ///
    /// # Errors
    ///
    /// If they cannot be had here.
    pub fn start(
        lock: &'static Lock,
        topology: Option<Topology>,
        options: &Options,
    ) -> Result<Rig> {
        let folder = tempfile::Builder::new().prefix("tenure-lab-").tempdir()?;
        tenure_servers::remove_at_exit(folder.path());
        let cluster = topology.map(|kind| tenure_servers::start(kind, options)).transpose()?;
        Ok(Rig { lock, topology, cluster, folder })
    }

    /// The servers; none for a lock in a file.
    ///
    /// # Errors
    ///
    /// For a lock in a file.
    pub fn cluster(&self) -> Result<&Cluster> {
        self.cluster.as_ref().context("this lock has no server")
    }

    /// Whether this one does for that lock too.
    pub fn fits(&self, topology: Option<Topology>) -> bool {
        self.topology == topology
    }

    /// Lends it to another lock on the same servers.
    pub fn lend(&mut self, lock: &'static Lock) {
        self.lock = lock;
    }

    /// The server's name and version, for people.
    pub fn server(&self) -> String {
        let Some(cluster) = &self.cluster else { return String::new() };
        let version = version(cluster).unwrap_or_default();
        named(cluster.topology(), &version)
    }

    /// A folder for what belongs to the run.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The way to the servers without a proxy.
    pub(crate) fn direct(&self) -> String {
        self.url(&|address| address.to_owned())
    }

    /// A way to the servers for one client alone.
    pub(crate) fn link(&self) -> Result<Link> {
        self.link_by(Node::proxy)
    }

    /// A way to the servers by another address, which stands for all of theirs.
    pub(crate) fn link_at(&self, address: &str) -> Link {
        Link { url: self.url(&|_| address.to_owned()), proxies: Vec::new() }
    }

    /// The same, from these ports.
    pub(crate) fn link_from(&self, source: Range<u16>) -> Result<Link> {
        self.link_by(|node| node.proxy_from(source.clone()))
    }

    fn link_by(&self, proxy: impl Fn(&Node) -> tenure_servers::Result<Proxy>) -> Result<Link> {
        // Whoever asks sentinels, or a cluster, goes where they say.
        let direct =
            matches!(self.topology, Some(Topology::RedisSentinel | Topology::RedisCluster));
        let Some(cluster) = self.cluster.as_ref().filter(|_| !direct) else {
            return Ok(Link { url: self.direct(), proxies: Vec::new() });
        };
        let mut proxies = Vec::new();
        for node in cluster.members() {
            proxies.push((node.address(), proxy(node)?));
        }
        let address = |real: &str| {
            let found = proxies.iter().find(|(address, _)| address == real);
            found.map_or(real.to_owned(), |(_, proxy)| proxy.address())
        };
        let url = self.url(&address);
        Ok(Link { url, proxies: proxies.into_iter().map(|(_, proxy)| proxy).collect() })
    }

    /// What a client is told: a URL of tenure's, or addresses for a scheme by hand.
    fn url(&self, address: &dyn Fn(&str) -> String) -> String {
        let nodes: Vec<_> =
            self.cluster.iter().flat_map(Cluster::members).map(|node| node.address()).collect();
        let options = match self.lock.make {
            Make::Classical(..) => {
                if let (Some(Topology::RedisSentinel), Some(cluster)) =
                    (self.topology, &self.cluster)
                {
                    return cluster.url();
                }
                let login = self.cluster.as_ref().and_then(|cluster| cluster.node().password());
                let login = login.map_or(String::new(), |password| format!(":{password}@"));
                let addresses = nodes.iter().map(|node| format!("{login}{}", address(node)));
                return addresses.collect::<Vec<_>>().join(",");
            }
            Make::Own(options) => options,
        };
        let plain = match &self.cluster {
            Some(cluster) => cluster.url(),
            None => format!("sqlite://{}/locks.db", self.folder.path().display()),
        };
        let url = nodes.iter().fold(plain, |url, node| url.replace(node, &address(node)));
        let joint = if url.contains('?') { '&' } else { '?' };
        format!("{url}{joint}{options}")
    }
}

/// One client's way to the servers.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) url: String,
    proxies: Vec<Proxy>,
}

impl Link {
    /// Does something to every connection of this client.
    pub(crate) fn each(&self, act: impl Fn(&Proxy)) -> Result<()> {
        if self.proxies.is_empty() {
            bail!("there is no network between this lock and its store");
        }
        self.proxies.iter().for_each(act);
        Ok(())
    }

    /// A figure of all connections of this client.
    pub(crate) fn sum(&self, figure: impl Fn(&Proxy) -> u64) -> u64 {
        self.proxies.iter().map(figure).sum()
    }

    pub(crate) fn cut(&self) -> Result<()> {
        self.each(Proxy::cut)
    }

    pub(crate) fn cut_answers(&self) -> Result<()> {
        self.each(|proxy| proxy.cut_one_way(Direction::ToClient))
    }

    pub(crate) fn heal(&self) -> Result<()> {
        self.each(Proxy::heal)
    }
}

/// What people call it.
fn named(topology: Topology, version: &str) -> String {
    let server = match topology.server() {
        "consul" => "Consul",
        "mariadb" => "MariaDB",
        "postgres" => "PostgreSQL",
        "redis" => "Redis",
        "zookeeper" => "ZooKeeper",
        other => other,
    };
    let server = format!("{server} {version}").trim_end().to_owned();
    match topology {
        Topology::Redis5 => format!("five {server} masters"),
        Topology::RedisCluster => format!("{server} Cluster"),
        Topology::RedisSentinel => format!("{server} with Sentinel"),
        Topology::Consul3 | Topology::Etcd3 | Topology::Zookeeper3 => {
            format!("{server}, three servers")
        }
        _ => server,
    }
}

fn version(cluster: &Cluster) -> Option<String> {
    let port = cluster.node().port();
    let text = match cluster.topology().server() {
        "consul" => json_field(&http::get(port, "/v1/agent/self").ok()?, "Version")?,
        "etcd" => json_field(&http::get(port, "/version").ok()?, "etcdserver")?,
        "mariadb" => Mysql::connect(port).ok()?.query("select version()").ok()?.pop()?,
        "postgres" => Postgres::connect(port).ok()?.query("show server_version").ok()?.pop()?,
        "redis" => {
            let info = redis::ask(port, &["INFO", "server"]).ok()?;
            let line = info.text()?.lines().find_map(|line| line.strip_prefix("redis_version:"));
            line?.to_owned()
        }
        _ => {
            let text = zookeeper::four_letters(port, "srvr").ok()?;
            text.split_once("version: ")?.1.split('-').next()?.to_owned()
        }
    };
    // Without what the packager added.
    text.split([' ', '-']).next().map(str::to_owned)
}
