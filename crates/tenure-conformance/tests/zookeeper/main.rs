//! Cases that need a real ZooKeeper: sessions that end, lost responses, killed leaders, and foreign
//! clients on the same nodes. Each case has servers of its own, so that it can stop and kill them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod curator;
mod faults;
mod handoffs;
mod kazoo;
mod modes;
mod servers;
mod tokens;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::{Attempt, Config, Guard, Key, Lock, LostReason};
use tenure_conformance::context::{SOON, soon, until, until_waiters, within};
use tenure_conformance::load::{Harm, Load};
use tenure_conformance::trials::Done;
use tenure_conformance::{server_cases, trials};
use tenure_servers::Cluster;
use tenure_servers::wire::zookeeper::{Session, four_letters};

/// Flags of a create request: an ephemeral node.
const EPHEMERAL: i32 = 1;
/// Flags of a create request: an ephemeral and sequential node.
const EPHEMERAL_SEQUENTIAL: i32 = 3;
/// The error code for a node that does not exist.
const NO_NODE: i32 = -101;
/// How many pings of sessions may come while requests are counted.
const PINGS: u64 = 8;

fn main() {
    let modules = [
        CASES,
        curator::CASES,
        faults::CASES,
        handoffs::CASES,
        kazoo::CASES,
        modes::CASES,
        servers::CASES,
        tokens::CASES,
    ];
    trials::main(2, &modules)
}

server_cases! {
    session_ended_from_outside_is_reported_as_the_reason Zookeeper;
    predecessor_deleted_before_the_watch_is_noticed Zookeeper;
    acquire_after_a_lost_response_leaves_one_node Zookeeper;
    nodes_have_the_names_of_curator Zookeeper;
    foreign_client_with_the_same_layout_shares_the_queue Zookeeper;
    node_created_by_hand_excludes_tenure Zookeeper;
    handoff_costs_the_same_with_many_waiters Zookeeper;
    cut_off_holder_notices_the_loss_before_the_next_grant Zookeeper;
    follower_without_a_leader_does_not_extend_a_lease Zookeeper3;
    exclusion_survives_a_killed_leader_under_load Zookeeper3;
}

fn url(cluster: &Cluster) -> String {
    format!("{}/locks?session=3s", cluster.url())
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(url.parse::<Config>()?.open().await?)
}

fn claim(key: &str) -> Result<Claim> {
    Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(20)))
}

/// Acquires a lock that is free. A server that was just started may be slow to respond.
async fn acquire_free(lock: &Lock) -> Result<Guard> {
    Ok(soon("a free lock", lock.acquire()).await??)
}

/// A session of a foreign client.
fn foreign_client(cluster: &Cluster) -> Result<Session> {
    Ok(Session::open(cluster.node().port(), Duration::from_secs(20))?)
}

fn children(session: &mut Session, path: &str) -> Result<Vec<String>> {
    match session.children(path)? {
        Ok(mut names) => {
            names.sort();
            Ok(names)
        }
        Err(NO_NODE) => Ok(Vec::new()),
        Err(code) => anyhow::bail!("children of {path}: error {code}"),
    }
}

/// Ends a session as another client can that knows its id.
async fn end_session(cluster: &Cluster, id: i64) -> Result<()> {
    let ending = async {
        // The client may reconnect before the session is closed: then repeat it.
        while !Session::end(cluster.node().port(), id)
            .is_err_and(|error| error.to_string().contains("the session is over"))
        {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of the session", ending).await
}

async fn session_ended_from_outside_is_reported_as_the_reason(cluster: &Cluster) -> Result<Done> {
    let client = tenure::connect(&url(cluster)).await?;
    let other = tenure::connect(&url(cluster)).await?;
    let guard = acquire_free(&client.lock("k")).await?;
    let waiter = tokio::spawn(other.lock("k").acquire());
    until_waiters(&client.lock("k"), 1).await?;

    let mut outside = foreign_client(cluster)?;
    let holder = children(&mut outside, "/locks/k")?;
    let holder = holder.iter().min_by_key(|name| name.rsplit('-').next().map(str::to_owned));
    let node = format!("/locks/k/{}", holder.context("the holder has a node")?);
    let id = outside.owner(&node)?.unwrap();
    end_session(cluster, id).await?;

    let lost = soon("the loss", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    let next = soon("the next grant", waiter).await???;
    ensure!(next.token() > guard.token());
    ensure!(guard.release().await.is_err(), "the release of a lost lock succeeded");
    next.release().await?;
    // The next acquire opens another session.
    soon("a new session", client.lock("k").acquire()).await??.release().await?;
    Ok(Done::Well)
}

async fn predecessor_deleted_before_the_watch_is_noticed(cluster: &Cluster) -> Result<Done> {
    for layout in ["", "&layout=ephemeral"] {
        let url = format!("{}{layout}", url(cluster));
        let (one, two) = (open(&url).await?, open(&url).await?);
        let (holder, mut waiter) = (claim("vanishes")?, claim("vanishes")?);
        waiter.waits = true;
        one.try_acquire(&holder).await?.granted()?;
        ensure!(matches!(two.try_acquire(&waiter).await?, Attempt::Busy(_)));
        ensure!(one.release(&holder).await?);
        soon("the hint", two.until_free(&waiter)).await?;
        two.try_acquire(&waiter).await?.granted()?;
        ensure!(two.release(&waiter).await?);
        // The container of one layout would block the other.
        foreign_client(cluster)?.delete("/locks/vanishes")?.ok();
    }
    Ok(Done::Well)
}

/// The response to a create is lost: the repeated request finds the node of the first one.
async fn acquire_after_a_lost_response_leaves_one_node(cluster: &Cluster) -> Result<Done> {
    let proxy = cluster.node().proxy()?;
    let mut outside = foreign_client(cluster)?;
    for layout in ["", "&layout=ephemeral"] {
        let url = format!("zk://{}/lost{}?session=5s{layout}", proxy.address(), layout.len());
        let backend = open(&url).await?;
        for round in 0..8 {
            let key = format!("k{round}");
            let mut mine = claim(&key)?;
            // The key has its container already, so that the next response is that of the create.
            let first = claim(&key)?;
            backend.try_acquire(&first).await?.granted()?;
            backend.release(&first).await?;
            proxy.drop_response(1);
            let grant = loop {
                match backend.try_acquire(&mine).await {
                    Ok(attempt) => break attempt.granted()?,
                    Err(error) => {
                        ensure!(error.kind() == tenure::ErrorKind::Unavailable, "{error}")
                    }
                }
                mine.unconfirmed = true;
            };
            let folder = format!("/lost{}/{key}", layout.len());
            let beside = if layout.is_empty() { folder.clone() } else { format!("{folder}%") };
            let nodes = children(&mut outside, &beside)?;
            ensure!(nodes.len() == 1, "round {round}: {nodes:?}");
            ensure!(backend.try_acquire(&mine).await?.granted()?.token == grant.token);
            ensure!(backend.release(&mine).await?, "it was held");
            ensure!(children(&mut outside, &beside)?.is_empty());
        }
    }
    Ok(Done::Well)
}

async fn nodes_have_the_names_of_curator(cluster: &Cluster) -> Result<Done> {
    let client = tenure::connect(&url(cluster)).await?;
    let guard = acquire_free(&client.lock("orders/42").note("v1")).await?;
    let mut outside = foreign_client(cluster)?;
    let names = children(&mut outside, "/locks/orders%2F42")?;
    let [name] = &names[..] else { anyhow::bail!("{names:?}") };
    let (protection, sequence) = name.split_at(40);
    ensure!(protection.starts_with("_c_") && protection.ends_with('-'), "{name}");
    ensure!(protection[3..39].matches('-').count() == 4, "{name}: not a dashed uuid");
    ensure!(sequence == "lock-0000000000", "{name}");
    let node = format!("/locks/orders%2F42/{name}");
    ensure!(outside.owner(&node)?.unwrap() != 0, "it is not ephemeral");
    guard.release().await?;
    Ok(Done::Well)
}

/// Nodes as Curator, Go's zk and kazoo with Curator's names create them, in one queue with those of
/// tenure.
async fn foreign_client_with_the_same_layout_shares_the_queue(cluster: &Cluster) -> Result<Done> {
    let client = tenure::connect(&url(cluster)).await?;
    let lock = client.lock("k");
    let guard = acquire_free(&lock).await?;
    let mut curator = foreign_client(cluster)?;
    let name = "/locks/k/_c_0f0e0d0c-0b0a-4908-8706-050403020100-lock-";
    let theirs = curator.create(name, "10.0.0.7", EPHEMERAL_SEQUENTIAL)?.unwrap();
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&lock, 2).await?;
    let holding = lock.status().await?.context("it is held")?;
    ensure!(holding.waiters[0].host == "10.0.0.7", "{holding:?}");
    let first = guard.token();
    guard.release().await?;
    // The foreign client is first now: its address is shown, and the waiter goes on waiting.
    until_waiters(&lock, 1).await?;
    let holder = lock.status().await?.context("the foreign client holds")?.holders.remove(0);
    ensure!(holder.host == "10.0.0.7" && holder.token > Some(first), "{holder:?}");
    ensure!(!waiter.is_finished(), "two holders");
    curator.delete(&theirs)?.unwrap();
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(Some(guard.token()) > holder.token);
    guard.release().await?;
    Ok(Done::Well)
}

async fn node_created_by_hand_excludes_tenure(cluster: &Cluster) -> Result<Done> {
    let client = tenure::connect(&format!("{}&layout=ephemeral", url(cluster))).await?;
    acquire_free(&client.lock("k")).await?.release().await?;
    let mut hand = foreign_client(cluster)?;
    hand.create("/locks/k", "by hand", EPHEMERAL)?.unwrap();
    let waiter = tokio::spawn(client.lock("k").acquire());
    until_waiters(&client.lock("k"), 1).await?;
    ensure!(!waiter.is_finished(), "two holders");
    hand.close()?;
    let guard = soon("the waiter's grant", waiter).await???;
    let mut hand = foreign_client(cluster)?;
    ensure!(hand.create("/locks/k", "by hand", EPHEMERAL)?.is_err(), "two holders");
    guard.release().await?;
    Ok(Done::Well)
}

/// For each waiter a proof and a list, which are sent together, and a release: three requests in
/// two round trips, whatever the length of the queue.
async fn handoff_costs_the_same_with_many_waiters(cluster: &Cluster) -> Result<Done> {
    let url = format!("{}/locks?session=20s", cluster.url());
    let (holder, waiters) = (open(&url).await?, open(&url).await?);
    for count in [1, 10, 100] {
        let key = format!("queue-{count}");
        let first = claim(&key)?;
        holder.try_acquire(&first).await?.granted()?;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..count {
            let mut claim = claim(&key)?;
            claim.waits = true;
            ensure!(matches!(waiters.try_acquire(&claim).await?, Attempt::Busy(_)));
            let waiters = waiters.clone();
            tasks.spawn(async move {
                waiters.until_free(&claim).await;
                waiters.try_acquire(&claim).await?.granted()?;
                waiters.release(&claim).await
            });
        }
        let watched = async || Ok((counter(cluster, "zk_watch_count")? >= count).then_some(()));
        until(SOON, "the watches", watched).await?;
        let before = counter(cluster, "zk_packets_received")?;
        holder.release(&first).await?;
        while let Some(done) = soon("a handoff", tasks.join_next()).await? {
            ensure!(done??, "a waiter did not hold");
        }
        let requests = counter(cluster, "zk_packets_received")? - before;
        // One more for the first release, which no waiter sent.
        println!("{count} waiters: {requests} requests");
        ensure!(requests <= 3 * count + 1 + PINGS, "{requests} requests for {count} waiters");
    }
    Ok(Done::Well)
}

fn counter(cluster: &Cluster, name: &str) -> Result<u64> {
    let text = four_letters(cluster.node().port(), "mntr")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.context("a counter")?.trim().parse()?)
}

async fn cut_off_holder_notices_the_loss_before_the_next_grant(cluster: &Cluster) -> Result<Done> {
    let proxy = cluster.node().proxy()?;
    let near = tenure::connect(&url(cluster)).await?;
    let far = tenure::connect(&format!("zk://{}/locks?session=3s", proxy.address())).await?;
    let guard = acquire_free(&far.lock("k")).await?;
    let waiter = tokio::spawn(near.lock("k").acquire());
    until_waiters(&near.lock("k"), 1).await?;
    proxy.cut();
    let lost = soon("the loss", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Expired, "{lost}");
    ensure!(!waiter.is_finished(), "the lock was granted before its holder noticed the loss");
    soon("the next grant", waiter).await???.release().await?;
    proxy.heal();
    soon("an acquire after the network healed", far.lock("k").acquire()).await??.release().await?;
    Ok(Done::Well)
}

/// The follower still responds to reads, and keeps the connection alive. The majority may have
/// ended the session.
async fn follower_without_a_leader_does_not_extend_a_lease(cluster: &Cluster) -> Result<Done> {
    let leader = cluster.wait_leader(|_| true)?;
    let follower = cluster.nodes().iter().find(|node| node.name() != leader.name());
    let follower = follower.context("three nodes")?;
    let client = tenure::connect(&format!("{}/locks?session=3s", follower.url())).await?;
    let guard = acquire_free(&client.lock("k")).await?;
    let others = || cluster.nodes().iter().filter(|node| node.name() != follower.name());
    others().try_for_each(tenure_servers::Node::pause)?;
    // The follower itself notices after five seconds.
    let lost = within(Duration::from_secs(4), "the end of the lease", guard.lost()).await;
    others().try_for_each(tenure_servers::Node::resume)?;
    let lost = lost?;
    ensure!(lost.reason() == LostReason::Expired, "{lost}");
    Ok(Done::Well)
}

async fn exclusion_survives_a_killed_leader_under_load(cluster: &Cluster) -> Result<Done> {
    let mut locks = Vec::new();
    for _ in 0..8 {
        locks.push(tenure::connect(&url(cluster)).await?.lock("k"));
    }
    let load = Load::start(locks, Harm::Locks);
    load.go_on(100).await?;
    let leader = cluster.wait_leader(|_| true)?;
    let killed = Instant::now();
    leader.kill()?;
    load.go_on(100).await?;
    println!("100 grants {:?} after the leader was killed", killed.elapsed());
    leader.restart()?;
    load.go_on(100).await?;
    load.finish().await?;
    Ok(Done::Well)
}
