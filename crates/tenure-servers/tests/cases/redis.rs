//! One Redis: durability, pauses, the clock, the proxy, Redis 8 and Valkey.

use std::time::Duration;

use libtest_mimic::{Completion, Trial};
use tenure_servers::wire::redis::{Redis, Value, execute};
use tenure_servers::{Durability, Flavor, Node, Options, Topology, shared, wait_until};

use crate::suite::{Done, missing, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let one = Topology::Redis;
    let options = Options::default;
    let mode = |durability| options().durability(durability);
    vec![
        trial(one, "memory loses data on kill", mode(Durability::Memory), |cluster| {
            keeps(cluster.node(), Node::kill, false)
        }),
        trial(one, "fast survives kill", mode(Durability::Fast), |cluster| {
            keeps(cluster.node(), Node::kill, true)
        }),
        trial(one, "default loses data on kill and not on stop", mode(Durability::Default), |c| {
            keeps(c.node(), Node::kill, false)?;
            keeps(c.node(), Node::stop, true)
        }),
        trial(one, "durable survives kill", mode(Durability::Durable), |cluster| {
            keeps(cluster.node(), Node::kill, true)
        }),
        trial(one, "redis 8 survives kill", options().flavor(Flavor::Redis8), |cluster| {
            keeps(cluster.node(), Node::kill, true)
        }),
        trial(one, "valkey survives kill", options().flavor(Flavor::Valkey), |cluster| {
            keeps(cluster.node(), Node::kill, true)
        }),
        trial(one, "a paused server responds after it", options(), |cluster| {
            paused(cluster.node())
        }),
        trial(one, "a shifted clock ends a lease", options().clock(), |cluster| {
            shifted(cluster.node())
        }),
        trial(one, "a server that does not start reports why", options(), |cluster| {
            broken(cluster.node())
        }),
        trial(one, "a link is cut and healed", options(), |cluster| cut(cluster.node())),
        Trial::ignorable_test("redis::shared by all callers", || match shared(Topology::Redis) {
            Ok(cluster) => {
                let again = shared(Topology::Redis)?;
                assert!(std::ptr::eq(cluster, again));
                lock(again.node().port(), "shared")?;
                Ok(Completion::Completed)
            }
            Err(error) => missing("redis", error),
        }),
    ]
}

/// Acquires a lock, ends the server this way, starts it again, and checks whether the lock was
/// kept.
fn keeps(node: &Node, end: fn(&Node) -> tenure_servers::Result<()>, kept: bool) -> Done {
    let pid = node.pid();
    let port = node.port();
    execute(port, &["DEL", "lock"])?;
    lock(port, "lock")?;
    end(node)?;
    assert!(!node.is_running());
    assert!(execute(port, &["PING"]).is_err(), "another process responds on the port");
    node.restart()?;
    assert_ne!(node.pid(), pid);
    assert_eq!(node.port(), port);
    let holder = execute(port, &["GET", "lock"])?;
    assert_eq!(holder == Value::Text("a".into()), kept, "{holder:?}");
    Ok(())
}

/// The first client gets the lock, the second does not, and only the first can release it.
fn lock(port: u16, key: &str) -> Done {
    let mut redis = Redis::connect(port)?;
    let mut acquire = |owner| redis.command(&["SET", key, owner, "NX", "PX", "600000"]);
    assert_eq!(acquire("a")?, Value::Text("OK".into()));
    assert_eq!(acquire("b")?, Value::Nil);
    let script = "if redis.call('get', KEYS[1]) == ARGV[1] then \
        return redis.call('del', KEYS[1]) else return 0 end";
    assert_eq!(redis.command(&["EVAL", script, "1", key, "b"])?, Value::Int(0));
    assert_eq!(redis.command(&["EVAL", script, "1", key, "a"])?, Value::Int(1));
    let acquired = redis.command(&["SET", key, "a", "NX", "PX", "600000"])?;
    assert_eq!(acquired, Value::Text("OK".into()));
    Ok(())
}

fn paused(node: &Node) -> Done {
    let mut redis = Redis::connect(node.port())?;
    node.pause()?;
    assert!(node.is_running());
    assert!(redis.command(&["PING"]).is_err(), "a paused server responded");
    node.resume()?;
    assert_eq!(execute(node.port(), &["PING"])?, Value::Text("PONG".into()));
    // A paused server can be killed and stopped.
    node.pause()?;
    node.kill()?;
    node.restart()?;
    node.pause()?;
    node.stop()?;
    assert!(node.pause().is_err(), "a server that does not run was paused");
    Ok(())
}

fn broken(node: &Node) -> Done {
    node.stop()?;
    let files = node.dir().join("appendonlydir");
    std::fs::write(files.join("appendonly.aof.manifest"), "nonsense\n")?;
    let error = node.restart().expect_err("it cannot read its data");
    assert!(!error.is_missing());
    let text = error.to_string();
    assert!(
        text.starts_with("could not start redis n1: it has ended; the end of its log:"),
        "{text}"
    );
    assert!(text.contains("AOF manifest file"), "{text}");
    Ok(())
}

fn shifted(node: &Node) -> Done {
    let port = node.port();
    execute(port, &["SET", "lock", "a", "PX", "10000"])?;
    node.shift_clock(60_000)?;
    // Redis reads the clock once per round of its event loop.
    wait_until(Duration::from_secs(10), || match execute(port, &["GET", "lock"]) {
        Ok(Value::Nil) => Ok(()),
        other => Err(format!("a lease of 10 s is still there after 60 s: {other:?}")),
    })?;
    node.shift_clock(0)?;
    execute(port, &["SET", "lock", "a", "PX", "10000"])?;
    node.shift_clock(-60_000)?;
    wait_until(Duration::from_secs(10), || match execute(port, &["PTTL", "lock"]) {
        Ok(Value::Int(left)) if left > 60_000 => Ok(()),
        other => Err(format!("the clock was set back by 60 s, but {other:?} ms are left")),
    })?;
    // The offset outlives a restart.
    node.restart()?;
    let Value::List(time) = execute(port, &["TIME"])? else { panic!("no time") };
    let server: u64 = time[0].text().unwrap_or_default().parse()?;
    let real = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    assert!((50..=70).contains(&(real - server)), "{server} is not a minute before {real}");
    Ok(())
}

fn cut(node: &Node) -> Done {
    let link = node.proxy()?;
    let mut through = Redis::connect(link.port())?;
    assert_eq!(through.command(&["SET", "a", "1"])?, Value::Text("OK".into()));
    link.cut();
    assert!(through.command(&["SET", "a", "2"]).is_err(), "a cut link let a response through");
    assert_eq!(execute(node.port(), &["GET", "a"])?, Value::Text("1".into()));
    link.heal();
    // Delayed bytes arrive, as after a real partition.
    wait_until(Duration::from_secs(10), || match execute(node.port(), &["GET", "a"]) {
        Ok(Value::Text(value)) if value == "2" => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    Ok(())
}
