//! The servers of a run, and each client's route to them: through proxies of its own, which can be
//! cut.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tenure_servers::wire::http::{self, json_field};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::postgres::Postgres;
use tenure_servers::wire::{redis, zookeeper};
use tenure_servers::{Cluster, Direction, Node, Options, Proxy, Topology};

use crate::schemes::{Implementation, LockSpec};

/// The servers of one lock, and a folder for the files of its runs.
#[derive(Debug)]
pub struct ServerSetup {
    lock: &'static LockSpec,
    topology: Option<Topology>,
    cluster: Option<Cluster>,
    folder: TempDir,
}

impl ServerSetup {
    /// Starts servers of this topology for a lock.
    ///
    /// # Errors
    ///
    /// If they cannot be had here.
    pub fn start(
        lock: &'static LockSpec,
        topology: Option<Topology>,
        options: &Options,
    ) -> Result<ServerSetup> {
        let folder = tempfile::Builder::new().prefix("tenure-lab-").tempdir()?;
        tenure_servers::remove_at_exit(folder.path());
        let cluster = topology.map(|kind| tenure_servers::start(kind, options)).transpose()?;
        Ok(ServerSetup { lock, topology, cluster, folder })
    }

    /// The servers.
    ///
    /// # Errors
    ///
    /// For a lock in a file, which has none.
    pub fn cluster(&self) -> Result<&Cluster> {
        self.cluster.as_ref().context("this lock has no server")
    }

    /// Whether the servers have this topology.
    pub fn has_topology(&self, topology: Option<Topology>) -> bool {
        self.topology == topology
    }

    /// Uses the same servers for another lock.
    pub fn set_lock(&mut self, lock: &'static LockSpec) {
        self.lock = lock;
    }

    /// Name and version of the server, such as `Redis 7.0.15 with Sentinel`; empty without a
    /// server.
    pub fn description(&self) -> String {
        let Some(cluster) = &self.cluster else { return String::new() };
        let version = version(cluster).unwrap_or_default();
        describe(cluster.topology(), &version)
    }

    /// The folder for the files of a run.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The URL of the servers, without a proxy.
    pub(crate) fn direct_url(&self) -> String {
        self.url(&|address| address.to_owned())
    }

    /// A route to the servers for one client, through proxies of its own.
    pub(crate) fn route(&self) -> Result<Route> {
        self.route_through(Node::proxy)
    }

    /// A route to the servers whose packets come from these ports.
    pub(crate) fn route_from_ports(&self, source: Range<u16>) -> Result<Route> {
        self.route_through(|node| node.proxy_from(source.clone()))
    }

    /// A route without proxies, to one address instead of those of the servers.
    pub(crate) fn route_to(&self, address: &str) -> Route {
        Route { url: self.url(&|_| address.to_owned()), proxies: Vec::new() }
    }

    fn route_through(
        &self,
        proxy: impl Fn(&Node) -> tenure_servers::Result<Proxy>,
    ) -> Result<Route> {
        // Sentinels and a cluster name the real addresses, so that clients would bypass a proxy.
        let direct =
            matches!(self.topology, Some(Topology::RedisSentinel | Topology::RedisCluster));
        let Some(cluster) = self.cluster.as_ref().filter(|_| !direct) else {
            return Ok(Route { url: self.direct_url(), proxies: Vec::new() });
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
        Ok(Route { url, proxies: proxies.into_iter().map(|(_, proxy)| proxy).collect() })
    }

    /// What a client connects to: a URL of tenure's, or a list of addresses for a hand-written
    /// scheme. `address` maps the address of each server.
    fn url(&self, address: &dyn Fn(&str) -> String) -> String {
        match self.lock.implementation {
            Implementation::Tenure(options) => self.tenure_url(options, address),
            Implementation::HandWritten(..) => self.address_list(address),
        }
    }

    fn tenure_url(&self, options: &str, address: &dyn Fn(&str) -> String) -> String {
        let plain = match &self.cluster {
            Some(cluster) => cluster.url(),
            None => format!("sqlite://{}/locks.db", self.folder.path().display()),
        };
        let url = self.addresses().fold(plain, |url, node| url.replace(&node, &address(&node)));
        let separator = if url.contains('?') { '&' } else { '?' };
        format!("{url}{separator}{options}")
    }

    fn address_list(&self, address: &dyn Fn(&str) -> String) -> String {
        if let (Some(Topology::RedisSentinel), Some(cluster)) = (self.topology, &self.cluster) {
            return cluster.url();
        }
        let password = self.cluster.as_ref().and_then(|cluster| cluster.node().password());
        let login = password.map_or(String::new(), |password| format!(":{password}@"));
        let addresses = self.addresses().map(|node| format!("{login}{}", address(&node)));
        addresses.collect::<Vec<_>>().join(",")
    }

    fn addresses(&self) -> impl Iterator<Item = String> {
        self.cluster.iter().flat_map(Cluster::members).map(|node| node.address())
    }
}

/// One client's route to the servers: its URL, and the proxies on the way.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) url: String,
    proxies: Vec<Proxy>,
}

impl Route {
    /// Applies a fault, or its end, to every proxy of this client.
    pub(crate) fn each_proxy(&self, act: impl Fn(&Proxy)) -> Result<()> {
        if self.proxies.is_empty() {
            bail!("there is no network between this lock and its store");
        }
        self.proxies.iter().for_each(act);
        Ok(())
    }

    /// Number of requests that this client has sent.
    pub(crate) fn requests(&self) -> u64 {
        self.proxies.iter().map(Proxy::requests).sum()
    }

    /// Holds up requests and responses.
    pub(crate) fn cut(&self) -> Result<()> {
        self.each_proxy(Proxy::cut)
    }

    /// Holds up responses; requests arrive.
    pub(crate) fn cut_responses(&self) -> Result<()> {
        self.each_proxy(|proxy| proxy.cut_one_way(Direction::ToClient))
    }

    /// Lets requests and responses pass again, also those that were held up.
    pub(crate) fn heal(&self) -> Result<()> {
        self.each_proxy(Proxy::heal)
    }
}

/// Name and version of the server, and how many there are.
fn describe(topology: Topology, version: &str) -> String {
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
            let info = redis::execute(port, &["INFO", "server"]).ok()?;
            let line = info.text()?.lines().find_map(|line| line.strip_prefix("redis_version:"));
            line?.to_owned()
        }
        _ => {
            let text = zookeeper::four_letters(port, "srvr").ok()?;
            text.split_once("version: ")?.1.split('-').next()?.to_owned()
        }
    };
    // Without the suffix of the package.
    text.split([' ', '-']).next().map(str::to_owned)
}
