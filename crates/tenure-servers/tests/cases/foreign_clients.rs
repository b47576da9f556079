//! Clients of other users of the machine: they can connect to every port on loopback, and are
//! refused there.

use std::os::unix::fs::PermissionsExt;

use libtest_mimic::Trial;
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::postgres::Postgres;
use tenure_servers::wire::redis::{Redis, Value};
use tenure_servers::{Cluster, Node, Options, Topology};

use crate::suite::{Done, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let refuse = |topology, log_in: fn(&Node) -> Result<(), String>| {
        trial(topology, "a foreign client is refused", Options::default(), move |cluster| {
            refused(cluster, log_in)
        })
    };
    let redis =
        [Topology::Redis, Topology::Redis5, Topology::RedisCluster, Topology::RedisSentinel];
    let mut trials: Vec<Trial> = redis.map(|topology| refuse(topology, redis_log_in)).into();
    trials.push(refuse(Topology::Mariadb, mariadb_log_in));
    trials.push(refuse(Topology::Postgres, postgres_log_in));
    trials.push(trial(
        Topology::Postgres,
        "it has no capability of root",
        Options::default(),
        rights,
    ));
    trials.push(trial(Topology::Mariadb, "it writes no library", Options::default(), library));
    trials
}

/// A login without the password or with a wrong one is refused, and other users cannot read the
/// right one.
fn refused(cluster: &Cluster, log_in: fn(&Node) -> Result<(), String>) -> Done {
    let password = cluster.node().password().ok_or("it has no password")?;
    assert!(cluster.url().contains(&password), "the URL lacks the password");
    for node in cluster.nodes() {
        let refusal = log_in(node).expect_err("a foreign client was accepted");
        let expected = ["NOAUTH", "Access denied", "wants a password"];
        assert!(expected.iter().any(|word| refusal.contains(word)), "{refusal}");
        let pid = node.pid().ok_or("it does not run")?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        let line = String::from_utf8_lossy(&line);
        assert!(!line.contains(&password), "other users can read the password");
    }
    let file = cluster.dir().join("password");
    assert_eq!(std::fs::read_to_string(&file)?, password);
    assert_eq!(std::fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    Ok(())
}

fn redis_log_in(node: &Node) -> Result<(), String> {
    let mut client = Redis::anonymous(node.port()).map_err(|error| error.to_string())?;
    let guess = client.command(&["AUTH", "00000000000000000000000000000000"]);
    assert!(matches!(guess, Ok(Value::Error(_))), "{guess:?}");
    match client.command(&["ROLE"]) {
        Ok(Value::Error(refusal)) => Err(refusal),
        _ => Ok(()),
    }
}

fn mariadb_log_in(node: &Node) -> Result<(), String> {
    Mysql::anonymous(node.port()).map(drop).map_err(|error| error.to_string())
}

fn postgres_log_in(node: &Node) -> Result<(), String> {
    Postgres::anonymous(node.port()).map(drop).map_err(|error| error.to_string())
}

/// A client with the password that runs a program through the server gets no capability of root.
fn rights(cluster: &Cluster) -> Done {
    let mut admin = Postgres::connect(cluster.node().port())?;
    admin.query("create table seen (line text)")?;
    admin.query("copy seen from program 'grep ^Cap /proc/self/status' delimiter '|'")?;
    let own = std::fs::read_to_string("/proc/self/status")?;
    let root = own.lines().any(|line| line.starts_with("Uid:\t0\t"));
    let sets = admin.query("select line from seen where line like 'CapEff%'")?;
    assert!(!root || sets == ["CapEff:\t0000000000000000"], "{sets:?}");
    Ok(())
}

fn library(cluster: &Cluster) -> Done {
    let mut admin = Mysql::connect(cluster.node().port())?;
    let folder = admin.query("select @@plugin_dir")?.join("");
    let written = admin.query(&format!("select 'x' into dumpfile '{folder}x.so'"));
    assert!(written.is_err(), "a library was written into {folder}");
    Ok(())
}
