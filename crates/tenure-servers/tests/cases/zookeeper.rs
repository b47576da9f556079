//! ZooKeeper: ephemeral sequential nodes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use tenure_servers::wire::zookeeper::Session;
use tenure_servers::{Cluster, Durability, Options, Topology};

use crate::suite::{Done, trial};

const PERSISTENT: i32 = 0;
/// Ephemeral and sequential.
const QUEUED: i32 = 3;
const NONE: i32 = -101;
const EXISTS: i32 = -110;

pub(crate) fn trials() -> Vec<Trial> {
    let options = Options::default;
    let durable = options().durability(Durability::Durable);
    vec![
        trial(Topology::Zookeeper, "fast survives kill", options(), single),
        trial(Topology::Zookeeper, "durable survives kill", durable, single),
        trial(Topology::Zookeeper, "a shifted clock dates nodes", options().clock(), shifted),
        trial(Topology::Zookeeper3, "a lock survives its leader", options(), three),
    ]
}

fn single(cluster: &Cluster) -> Done {
    let node = cluster.node();
    let mut session = Session::open(node.port(), Duration::from_secs(30))?;
    assert_eq!(session.create("/locks", "x", PERSISTENT)?, Ok("/locks".into()));
    let first = session.create("/locks/l-", "me", QUEUED)?;
    assert_eq!(first, Ok("/locks/l-0000000000".into()));
    let mut other = Session::open(node.port(), Duration::from_secs(30))?;
    assert_eq!(other.create("/locks/l-", "you", QUEUED)?, Ok("/locks/l-0000000001".into()));
    assert_eq!(other.create("/locks", "x", PERSISTENT)?, Err(EXISTS));
    session.close()?;
    assert_eq!(other.read("/locks/l-0000000000")?.map(|(data, _)| data), Err(NONE));

    node.kill()?;
    node.restart()?;
    cluster.wait_ready()?;
    let mut session = Session::open(node.port(), Duration::from_secs(5))?;
    assert_eq!(session.read("/locks")?.map(|(data, _)| data), Ok("x".into()));
    // The other client's session outlived the server, so its queue entry is kept.
    let kept = session.read("/locks/l-0000000001")?.map(|(data, _)| data);
    assert_eq!(kept, Ok("you".into()));
    Ok(())
}

fn shifted(cluster: &Cluster) -> Done {
    let node = cluster.node();
    node.shift_clock(3_600_000)?;
    let mut session = Session::open(node.port(), Duration::from_secs(5))?;
    session.create("/late", "", PERSISTENT)?.expect("it is new");
    let (_, created) = session.read("/late")?.expect("it was just made");
    let real = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    let ahead = created - real;
    assert!((3_500_000..=3_600_000).contains(&ahead), "the node is {ahead} ms ahead");
    Ok(())
}

fn three(cluster: &Cluster) -> Done {
    let old = cluster.wait_leader(|_| true)?;
    let mut session = Session::open(old.port(), Duration::from_secs(60))?;
    session.create("/locks", "x", PERSISTENT)?.expect("it is new");
    session.create("/locks/l-", "me", QUEUED)?.expect("its parent is there");

    old.kill()?;
    let new = cluster.wait_leader(|node| node.name() != old.name())?;
    cluster.wait_ready()?;
    let mut session = Session::open(new.port(), Duration::from_secs(60))?;
    let second = session.create("/locks/l-", "you", QUEUED)?;
    assert_eq!(second, Ok("/locks/l-0000000001".into()));

    old.restart()?;
    cluster.wait_ready()?;
    let mut session = Session::open(old.port(), Duration::from_secs(5))?;
    let first = session.read("/locks/l-0000000000")?.map(|(data, _)| data);
    assert_eq!(first, Ok("me".into()));

    let before = cluster.wait_leader(|_| true)?.name();
    assert_ne!(cluster.failover()?.name(), before);
    Ok(())
}
