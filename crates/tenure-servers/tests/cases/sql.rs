//! PostgreSQL, MariaDB and MySQL: session locks, and rows that outlive the server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::wire::postgres::Postgres;
use tenure_servers::{Cluster, Durability, Options, Topology, wait_until};

use crate::suite::{Done, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let options = Options::default;
    let durable = || options().durability(Durability::Durable);
    vec![
        trial(Topology::Postgres, "fast survives kill", options(), postgres),
        trial(Topology::Postgres, "durable survives kill", durable(), postgres),
        trial(Topology::Postgres, "a paused server holds its sessions", options(), paused),
        trial(Topology::Postgres, "a shifted clock is its clock", options().clock(), shifted),
        trial(Topology::Mariadb, "fast survives kill", options(), mysql),
        trial(Topology::Mariadb, "durable survives kill", durable(), mysql),
        trial(Topology::Mariadb, "a shifted clock is its clock", options().clock(), shifted_mysql),
        trial(Topology::Mysql, "fast survives kill", options(), mysql),
        trial(Topology::Mysql, "durable survives kill", durable(), mysql),
        trial(Topology::Mysql, "a shifted clock is its clock", options().clock(), shifted_mysql),
        trial(Topology::Mysql, "a login without the password is refused", options(), locked),
    ]
}

fn postgres(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let mut first = Postgres::connect(node.port())?;
    let mut second = Postgres::connect(node.port())?;
    assert_eq!(first.query("select pg_try_advisory_lock(42)")?, ["t"]);
    assert_eq!(second.query("select pg_try_advisory_lock(42)")?, ["f"]);
    first.query("create table locks (id int primary key, token bigint)")?;
    first.query("insert into locks values (1, 7)")?;
    assert!(second.query("insert into locks values (1, 8)").is_err(), "two rows with one key");

    for end in [tenure_servers::Node::kill, tenure_servers::Node::stop] {
        end(node)?;
        assert!(first.query("select 1").is_err(), "a session outlived its server");
        node.restart()?;
        let mut third = Postgres::connect(node.port())?;
        assert_eq!(third.query("select token from locks where id = 1")?, ["7"]);
        assert_eq!(third.query("select pg_try_advisory_lock(42)")?, ["t"]);
    }
    Ok(())
}

fn paused(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let mut first = Postgres::connect(node.port())?;
    assert_eq!(first.query("select pg_try_advisory_lock(42)")?, ["t"]);
    node.pause()?;
    // The session's own process is paused too, not only the one that accepts.
    assert!(first.query("select 1").is_err(), "a paused server responded");
    node.resume()?;
    let mut second = Postgres::connect(node.port())?;
    assert_eq!(second.query("select pg_try_advisory_lock(42)")?, ["f"]);
    Ok(())
}

fn shifted(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let mut session = Postgres::connect(node.port())?;
    node.shift_clock(-7_200_000)?;
    // A session that was there before sees it too.
    two_hours_ago(&session.query("select extract(epoch from clock_timestamp())::bigint")?)
}

fn shifted_mysql(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let mut session = Mysql::admin(node)?;
    node.shift_clock(-7_200_000)?;
    two_hours_ago(&session.query("select unix_timestamp(sysdate())")?)
}

fn two_hours_ago(response: &[String]) -> Done {
    let server: u64 = response[0].parse()?;
    let real = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    assert!((7195..=7300).contains(&(real - server)), "{server} is not 2 h before {real}");
    Ok(())
}

fn mysql(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let mut first = Mysql::admin(node)?;
    let mut second = Mysql::admin(node)?;
    assert_eq!(first.query("select get_lock('a', 0)")?, ["1"]);
    assert_eq!(second.query("select get_lock('a', 0)")?, ["0"]);
    drop(first);
    wait_until(Duration::from_secs(10), || match second.query("select get_lock('a', 0)") {
        Ok(got) if got == ["1"] => Ok(()),
        other => Err(format!("the lock of a session that ended: {other:?}")),
    })?;
    second.query("create table locks (id int primary key, token bigint) engine=innodb")?;
    second.query("insert into locks values (1, 7)")?;
    assert!(second.query("insert into locks values (1, 8)").is_err(), "two rows with one key");

    for end in [tenure_servers::Node::kill, tenure_servers::Node::stop] {
        end(node)?;
        node.restart()?;
        let mut third = Mysql::admin(node)?;
        assert_eq!(third.query("select token from locks where id = 1")?, ["7"]);
    }
    Ok(())
}

/// Over TCP, to which every user of the machine can connect. Logins with the password are tested
/// elsewhere.
fn locked(cluster: &Cluster) -> Done {
    assert!(Mysql::connect(cluster.node().port()).is_err(), "accepted without a password");
    let url = cluster.url();
    let password = url.strip_prefix("mysql://root:").and_then(|rest| rest.split('@').next());
    assert!(password.is_some_and(|password| password.len() == 32), "no password in the URL");
    Ok(())
}
