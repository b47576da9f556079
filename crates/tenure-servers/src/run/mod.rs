//! How each server is started, what tells that it works, and who leads. One file per server.

mod consul;
mod etcd;
mod mariadb;
pub(crate) mod mysql;
pub(crate) mod postgres;
mod redis;
mod sentinel;
mod zookeeper;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::process::Signal;

use crate::clock::{self, Clock};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::node::{Node, Role};
use crate::options::Options;
use crate::ports::Port;
use crate::process::Launch;
use crate::secret::{self, Secret};
use crate::topology::Topology;

pub(crate) use sentinel::MASTER_NAME;

/// Starts the processes and brings them together.
pub(crate) fn start(site: &Site<'_>) -> Result<Vec<Node>> {
    match site.topology {
        Topology::Consul => consul::dev(site),
        Topology::Consul3 => consul::three(site),
        Topology::Etcd => etcd::start(site, 1),
        Topology::Etcd3 => etcd::start(site, 3),
        Topology::Mariadb => mariadb::start(site),
        Topology::Mysql => mysql::start(site),
        Topology::Postgres => postgres::start(site),
        Topology::Redis => redis::start(site, 1),
        Topology::Redis5 => redis::start(site, 5),
        Topology::RedisCluster => redis::cluster(site),
        Topology::RedisSentinel => sentinel::start(site),
        Topology::Zookeeper => zookeeper::start(site, 1),
        Topology::Zookeeper3 => zookeeper::start(site, 3),
    }
}

/// Whether every node that runs does real work now; else which one does not, and why.
pub(crate) fn ready(cluster: &Cluster) -> Result<(), (&Node, String)> {
    for node in cluster.nodes().iter().filter(|node| node.is_running()) {
        let ready = match cluster.topology() {
            Topology::Consul | Topology::Consul3 => consul::ready(cluster, node),
            Topology::Etcd | Topology::Etcd3 => etcd::ready(node),
            Topology::Mariadb => mariadb::ready(node),
            Topology::Mysql => mysql::ready(node),
            Topology::Postgres => postgres::ready(node),
            Topology::Redis | Topology::Redis5 => redis::ready(node),
            Topology::RedisCluster => redis::cluster_ready(node),
            Topology::RedisSentinel => sentinel::ready(cluster, node),
            Topology::Zookeeper | Topology::Zookeeper3 => zookeeper::ready(node),
        };
        ready.map_err(|error| (node, error.to_string()))?;
    }
    match cluster.nodes().iter().find(|node| node.is_running()) {
        Some(_) => Ok(()),
        None => Err((cluster.node(), "no node runs".into())),
    }
}

/// The node that takes writes.
pub(crate) fn leader(cluster: &Cluster) -> io::Result<Option<&Node>> {
    match cluster.topology() {
        Topology::Consul3 => consul::leader(cluster),
        Topology::Etcd3 => etcd::leader(cluster),
        Topology::Redis5 | Topology::RedisCluster => Ok(None),
        Topology::RedisSentinel => sentinel::leader(cluster),
        Topology::Zookeeper3 => zookeeper::leader(cluster),
        _ => Ok(Some(cluster.node()).filter(|node| node.is_running())),
    }
}

/// Makes the leader give way; says whether it had to be stopped for that.
pub(crate) fn step_down(cluster: &Cluster, leader: &Node) -> Result<bool> {
    let failed =
        |error: io::Error| Error::failed(format!("fail over {}", cluster.topology()), error);
    match cluster.topology() {
        Topology::Etcd3 => etcd::step_down(cluster, leader).map(|()| false).map_err(failed),
        Topology::RedisSentinel => sentinel::step_down(cluster).map(|()| false).map_err(failed),
        _ => leader.stop().map(|()| true),
    }
}

/// Where and how a topology is started.
pub(crate) struct Site<'a> {
    topology: Topology,
    options: &'a Options,
    dir: &'a Path,
    shim: Option<PathBuf>,
    secret: Secret,
}

impl<'a> Site<'a> {
    pub(crate) fn new(topology: Topology, options: &'a Options, dir: &'a Path) -> Result<Self> {
        let shim = match topology.server() {
            _ if !options.clock => None,
            "mariadb" | "mysql" | "postgres" | "redis" | "zookeeper" => Some(clock::shim()?),
            server => {
                let reason = "its clock cannot be shifted: it does not ask libc for the time";
                return Err(Error::failed(format!("start {server}"), reason));
            }
        };
        let secret = Secret::new().map_err(|error| Error::failed("make a password", error))?;
        let site = Self { topology, options, dir, shim, secret };
        site.write(&dir.join("password"), site.secret.as_str())?;
        Ok(site)
    }

    /// The shared object to load into the server first.
    fn preload(&self) -> Option<&Path> {
        self.shim.as_deref()
    }

    /// The data folder of a node, made if it is not there.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.dir.join(name);
        fs::create_dir_all(&folder).map_err(|error| self.failed(error))?;
        Ok(folder)
    }

    /// Writes a file that only this user can read: there may be a password in it.
    fn write(&self, path: &Path, text: &str) -> Result<()> {
        let file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| self.failed(error))
    }

    /// What its nodes ask everybody for, if they can.
    fn login(&self) -> Option<Secret> {
        let asks = matches!(self.topology.server(), "mariadb" | "postgres" | "redis");
        asks.then(|| self.secret.clone())
    }

    fn failed(&self, error: impl std::fmt::Display) -> Error {
        Error::failed(format!("start {}", self.topology), error)
    }

    /// Starts a node; `argv` is its whole command line.
    fn node(&self, name: &str, ports: Vec<Port>, argv: Vec<OsString>) -> Result<Node> {
        let folder = self.folder(name)?;
        let log = self.dir.join(format!("{name}.log"));
        let mut launch = Launch::new(argv, &folder, log);
        let clock = self.shim.as_ref().map(|_| {
            let path = self.dir.join(format!("{name}.clock"));
            launch.env.push(("TENURE_CLOCK_FILE".into(), path.clone().into()));
            Clock::create(&path)
        });
        let node = Node {
            name: name.to_owned(),
            server: self.topology.server(),
            role: Role::Member,
            ports,
            launch,
            stop: match self.topology {
                // SIGTERM would wait for the clients to leave.
                Topology::Postgres => Signal::INT,
                _ => Signal::TERM,
            },
            clock: clock.transpose().map_err(|error| self.failed(error))?,
            secret: self.login(),
            process: Mutex::new(None),
        };
        if let Some(secret) = &node.secret {
            secret::remember(node.port(), secret);
        }
        node.spawn()?;
        Ok(node)
    }
}

/// A command line from its parts.
fn argv(start: Vec<OsString>, rest: &[&str]) -> Vec<OsString> {
    start.into_iter().chain(rest.iter().map(OsString::from)).collect()
}

/// So many ports.
fn ports<const N: usize>() -> Result<[Port; N]> {
    let ports: Vec<Port> = (0..N).map(|_| Port::reserve()).collect::<Result<_>>()?;
    ports.try_into().map_err(|_| Error::failed("find a free port", "a wrong number of them"))
}
