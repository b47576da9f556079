//! How each server is started, how its readiness is checked, and which node leads. One file per
//! server; `mysqld` has what MySQL and MariaDB share.

mod consul;
mod etcd;
mod mariadb;
pub(crate) mod mysql;
pub(crate) mod mysqld;
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

/// Starts the processes of a topology and joins them to a cluster.
pub(crate) fn start(context: &StartContext<'_>) -> Result<Vec<Node>> {
    match context.topology {
        Topology::Consul => consul::dev(context),
        Topology::Consul3 => consul::three(context),
        Topology::Etcd => etcd::start(context, 1),
        Topology::Etcd3 => etcd::start(context, 3),
        Topology::Mariadb => mariadb::start(context),
        Topology::Mysql => mysql::start(context),
        Topology::Postgres => postgres::start(context),
        Topology::Redis => redis::start(context, 1),
        Topology::Redis5 => redis::start(context, 5),
        Topology::RedisCluster => redis::cluster(context),
        Topology::RedisSentinel => sentinel::start(context),
        Topology::Zookeeper => zookeeper::start(context, 1),
        Topology::Zookeeper3 => zookeeper::start(context, 3),
    }
}

/// Checks that every running node does real work. Returns the first one that does not, and why.
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

/// The node that accepts writes.
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

/// Makes the leader step down. Returns whether it had to be stopped for that.
pub(crate) fn step_down(cluster: &Cluster, leader: &Node) -> Result<bool> {
    let failed =
        |error: io::Error| Error::failed(format!("fail over {}", cluster.topology()), error);
    match cluster.topology() {
        Topology::Etcd3 => etcd::step_down(cluster, leader).map(|()| false).map_err(failed),
        Topology::RedisSentinel => sentinel::step_down(cluster).map(|()| false).map_err(failed),
        _ => leader.stop().map(|()| true),
    }
}

/// What the start of a topology needs: its options, its folder and its password.
pub(crate) struct StartContext<'a> {
    topology: Topology,
    options: &'a Options,
    dir: &'a Path,
    shim: Option<PathBuf>,
    secret: Secret,
}

impl<'a> StartContext<'a> {
    pub(crate) fn new(topology: Topology, options: &'a Options, dir: &'a Path) -> Result<Self> {
        let shim = match topology.server() {
            _ if !options.clock => None,
            "mariadb" | "mysql" | "postgres" | "redis" | "zookeeper" => Some(clock::shim()?),
            server => {
                let reason = "its clock cannot be shifted: it does not get the time from libc";
                return Err(Error::failed(format!("start {server}"), reason));
            }
        };
        let secret = Secret::new().map_err(|error| Error::failed("make a password", error))?;
        let context = Self { topology, options, dir, shim, secret };
        context.write(&dir.join("password"), context.secret.as_str())?;
        Ok(context)
    }

    /// The shared object that shifts the clock, if the server has to load it first.
    fn preload(&self) -> Option<&Path> {
        self.shim.as_deref()
    }

    /// The folder of a node. It is created if it does not exist.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.dir.join(name);
        fs::create_dir_all(&folder).map_err(|error| self.failed(error))?;
        Ok(folder)
    }

    /// Writes a file that only this user can read, because it may contain a password.
    fn write(&self, path: &Path, text: &str) -> Result<()> {
        let file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| self.failed(error))
    }

    /// The password that the nodes require, if they support one.
    fn login(&self) -> Option<Secret> {
        let requires = matches!(self.topology.server(), "mariadb" | "postgres" | "redis");
        requires.then(|| self.secret.clone())
    }

    fn failed(&self, error: impl std::fmt::Display) -> Error {
        Error::failed(format!("start {}", self.topology), error)
    }

    /// Starts a node. `argv` is its whole command line.
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
                // SIGTERM would wait until all clients have disconnected.
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

/// Reserves `N` ports.
fn ports<const N: usize>() -> Result<[Port; N]> {
    let ports: Vec<Port> = (0..N).map(|_| Port::reserve()).collect::<Result<_>>()?;
    ports.try_into().map_err(|_| Error::failed("find a free port", "a wrong number of them"))
}
