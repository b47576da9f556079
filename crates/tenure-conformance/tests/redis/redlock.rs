//! Several masters that know nothing of each other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::{Attempt, Config, ErrorKind};
use tenure_conformance::context::{soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Durability, Options};

use crate::{LONG, SECOND, acquire, claim, connect, execute, number, scripts, wait_for};

/// Enough for a busy machine; dead nodes refuse at once.
const DURABLE: &str = "nodes=durable&response=500ms";

server_cases! {
    a_lock_survives_two_dead_nodes_of_five Redis5;
    three_dead_nodes_of_five_are_an_error_until_they_return Redis5;
    a_node_that_forgot_does_not_make_a_second_holder Redis5 volatile;
    without_the_rule_a_node_that_forgot_makes_a_second_holder Redis5 volatile;
    a_clock_that_jumps_on_two_nodes_makes_no_second_holder Redis5 |options| options.clock();
    a_token_grows_when_a_node_with_a_clock_ahead_comes_and_goes Redis5 |options| options.clock();
    a_slow_node_does_not_slow_the_others Redis5;
    a_lost_round_is_released_on_the_nodes_that_granted_it Redis5;
    a_node_that_lost_the_lock_does_not_make_waiters_poll Redis5;
    an_outage_of_all_nodes_leaves_no_holder Redis5;
    a_writer_waits_for_a_reader_that_a_minority_lost Redis5;
    a_downgrade_needs_a_majority_and_is_repeated Redis5;
    a_number_that_another_reader_has_is_not_given_again Redis5;
    the_token_of_a_node_that_granted_late_is_not_shown Redis5 |options| options.clock();
}

fn volatile(options: Options) -> Options {
    options.durability(Durability::Memory)
}

async fn a_lock_survives_two_dead_nodes_of_five(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, DURABLE).await?, connect(cluster, DURABLE).await?);
    let guard = acquire(&one, "k", SECOND * 4).await?;
    cluster.nodes()[0].kill()?;
    cluster.nodes()[3].kill()?;
    let lost = tokio::time::timeout(SECOND * 5, guard.lost()).await;
    ensure!(lost.is_err(), "not renewed: {lost:?}");
    ensure!(matches!(two.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
    let token = guard.token();
    guard.release().await?;
    let guard = soon("acquire", two.lock("k").acquire()).await??;
    ensure!(guard.token() > token);
    guard.release().await?;
    Ok(())
}

async fn three_dead_nodes_of_five_are_an_error_until_they_return(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, DURABLE).await?;
    let guard = acquire(&client, "k", SECOND * 20).await?;
    let token = guard.token();
    for node in &cluster.nodes()[..3] {
        node.kill()?;
    }
    let error = client.lock("other").ttl(SECOND * 8).try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    for node in &cluster.nodes()[..3] {
        node.restart()?;
    }
    ensure!(guard.check().is_ok());
    soon("release", guard.release()).await??;
    for key in ["k", "other"] {
        let guard = soon("acquire", client.lock(key).acquire()).await??;
        ensure!(key == "other" || guard.token() > token);
        guard.release().await?;
    }
    Ok(())
}

/// One holds on three nodes; one of those restarts empty, and the two that were away come back:
/// they are a majority that knows nothing. Is there a second holder while the first has its lease?
///
/// The first uses the backend itself: a client would learn of the restart and recheck at once.
async fn forgetting_makes_a_second_holder(cluster: &Cluster, options: &str) -> Result<bool> {
    let config: Config = cluster.url_with(options).parse()?;
    let (one, two) = (config.open().await?, config.open().await?);
    let lease = SECOND * 15;
    let (mut first, mut second) = (claim("k")?, claim("k")?);
    (first.ttl, second.ttl) = (lease, lease);
    for node in &cluster.nodes()[3..] {
        execute(node, &["SET", "k", "a-foreign-client", "PX", "60000"])?;
    }
    // Nodes that have just been started do not count yet, and not all of them were started in the
    // same second.
    let granted = async || {
        let start = Instant::now();
        match one.try_acquire(&first).await {
            Ok(attempt) => Ok(attempt.granted().ok().map(|_| start)),
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    let start = until(LONG, "nodes that count", granted).await?;
    for node in &cluster.nodes()[3..] {
        number(node, &["DEL", "k"])?;
    }
    cluster.nodes()[2].kill()?;
    cluster.nodes()[2].restart()?;
    let attempt = two.try_acquire(&second).await;
    ensure!(start.elapsed() < lease, "the case took too long");
    match attempt {
        Ok(attempt) => Ok(matches!(attempt, Attempt::Granted(_))),
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn a_node_that_forgot_does_not_make_a_second_holder(cluster: &Cluster) -> Result<()> {
    let options = "longest=15s&response=500ms";
    let client = connect(cluster, options).await?;
    let error = client.lock("k").ttl(SECOND * 5).try_acquire().await.unwrap_err();
    ensure!(error.to_string().contains("0 of 5 nodes count"), "{error}");
    ensure!(!forgetting_makes_a_second_holder(cluster, options).await?, "two holders");
    Ok(())
}

/// Shows that the case above can fail.
async fn without_the_rule_a_node_that_forgot_makes_a_second_holder(
    cluster: &Cluster,
) -> Result<()> {
    ensure!(forgetting_makes_a_second_holder(cluster, DURABLE).await?, "one holder");
    Ok(())
}

async fn a_clock_that_jumps_on_two_nodes_makes_no_second_holder(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, DURABLE).await?, connect(cluster, DURABLE).await?);
    let guard = acquire(&one, "k", SECOND * 10).await?;
    for node in &cluster.nodes()[..2] {
        node.shift_clock(3_600_000)?;
        // Expired there, as the server sees it.
        ensure!(number(node, &["EXISTS", "k"])? == 0);
    }
    ensure!(matches!(two.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
    let lost = tokio::time::timeout(SECOND * 5, guard.lost()).await;
    ensure!(lost.is_err(), "not renewed by the other three: {lost:?}");
    ensure!(matches!(two.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
    guard.release().await?;
    Ok(())
}

/// A node whose clock is ahead gives high tokens; when it is away, the others must not give lower.
async fn a_token_grows_when_a_node_with_a_clock_ahead_comes_and_goes(
    cluster: &Cluster,
) -> Result<()> {
    let client = connect(cluster, DURABLE).await?;
    cluster.nodes()[0].shift_clock(1_800_000)?;
    let mut last = None;
    for away in [0, 1, 0, 2, 0] {
        cluster.nodes()[away].pause()?;
        let guard = soon("acquire", client.lock("k").ttl(SECOND * 4).acquire()).await??;
        ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await?;
        cluster.nodes()[away].resume()?;
    }
    Ok(())
}

async fn a_slow_node_does_not_slow_the_others(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, DURABLE).await?;
    cluster.nodes()[4].pause()?;
    let mut times = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        let guard = soon("acquire", client.lock("k").acquire()).await??;
        times.push(start.elapsed());
        guard.release().await?;
    }
    // The node's limit, twice: once for the request, once for the cancellation or the raised token.
    // Without it the client would give up after five seconds. A busy machine makes any one of them
    // slow.
    ensure!(times.iter().any(|time| *time < SECOND * 4), "{times:?}");
    cluster.nodes()[4].resume()?;
    Ok(())
}

/// A foreign client holds three nodes: the round is lost, and the two that were won are free again.
async fn a_lost_round_is_released_on_the_nodes_that_granted_it(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, DURABLE).await?;
    for node in &cluster.nodes()[..3] {
        execute(node, &["SET", "k", "a-foreign-client", "NX", "PX", "60000"])?;
    }
    let Attempt::Busy(_) = client.lock("k").try_acquire().await? else {
        anyhow::bail!("won against a majority");
    };
    client.flush().await?;
    for node in &cluster.nodes()[3..] {
        ensure!(number(node, &["EXISTS", "k"])? == 0, "left on {}", node.name());
    }
    for node in &cluster.nodes()[..3] {
        number(node, &["DEL", "k"])?;
    }
    let guard = client.lock("k").acquire_within(Duration::from_secs(5)).await?;
    guard.granted().context("it is free")?.release().await?;
    Ok(())
}

/// Five wait behind one holder. Two nodes lose the lock, which is no majority.
async fn a_node_that_lost_the_lock_does_not_make_waiters_poll(cluster: &Cluster) -> Result<()> {
    let one = connect(cluster, DURABLE).await?;
    let guard = acquire(&one, "k", LONG).await?;
    let clients = [connect(cluster, DURABLE).await?, connect(cluster, DURABLE).await?];
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..5 {
        waiters.spawn(clients[number % 2].lock("k").ttl(LONG).acquire());
    }
    until_waiters(&one.lock("k"), 5).await?;
    let count = || cluster.nodes().iter().map(scripts).sum::<Result<u64>>();
    let per_second = async || {
        let before = count()?;
        tokio::time::sleep(SECOND * 5).await;
        anyhow::Ok((count()? - before) / 5 / 5)
    };
    for node in &cluster.nodes()[..2] {
        number(node, &["DEL", "k"])?;
    }
    // They may recheck a few times until they have seen that nothing changes.
    tokio::time::sleep(SECOND * 3).await;
    let rate = per_second().await?;
    println!("{rate} scripts per second and node for five waiters");
    ensure!(rate <= 15, "{rate} scripts per second and node for five waiters");
    guard.release().await?;
    let start = Instant::now();
    while let Some(granted) = soon("a waiter's grant", waiters.join_next()).await? {
        granted??.release().await?;
    }
    println!("five handoffs took {:?}", start.elapsed());
    Ok(())
}

/// All nodes hang for longer than the ttl, with requests before them whose callers gave up. After
/// two without a response, the connections are replaced: what cancels a round does not follow it.
async fn an_outage_of_all_nodes_leaves_no_holder(cluster: &Cluster) -> Result<()> {
    let (client, other) = (connect(cluster, DURABLE).await?, connect(cluster, DURABLE).await?);
    let ttl = SECOND * 6;
    let keys = ["a", "b", "c"];
    for key in keys {
        acquire(&client, key, ttl).await?.release().await?;
    }
    for node in cluster.nodes() {
        node.pause()?;
    }
    let acquiring = keys.map(|key| client.lock(key).ttl(ttl).acquire_within(SECOND * 7));
    for attempt in futures_util::future::join_all(acquiring).await {
        let error = attempt.unwrap_err();
        ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    }
    for node in cluster.nodes() {
        node.resume()?;
    }
    soon("the releases", client.flush()).await??;
    for (client, key) in [(&client, "a"), (&other, "b"), (&other, "c"), (&client, "c")] {
        // A second for a node that is still busy with what it missed; a ghost would stay for six.
        let attempt = client.lock(key).ttl(ttl).acquire_within(SECOND).await?;
        attempt.granted().with_context(|| key)?.release().await?;
    }
    Ok(())
}

/// It carries the request out when the holder has its grant already, from the other nodes, and its
/// clock is ahead: its own token is higher, and was not raised to that of the grant.
async fn the_token_of_a_node_that_granted_late_is_not_shown(cluster: &Cluster) -> Result<()> {
    let (holder, operator) = (connect(cluster, DURABLE).await?, connect(cluster, DURABLE).await?);
    let late = &cluster.nodes()[2];
    late.shift_clock(1_800_000)?;
    acquire(&holder, "k", LONG).await?.release().await?;
    late.pause()?;
    let guard = acquire(&holder, "k", LONG).await?;
    late.resume()?;
    let carried_out = || async { Ok((number(late, &["EXISTS", "k"])? == 1).then_some(())) };
    until(LONG, "the late request", carried_out).await?;
    let lock = operator.lock("k");
    let shown = soon("status", lock.status()).await??.context("it is held")?.holder().token;
    ensure!(shown == Some(guard.token()), "{shown:?} is shown, the holder has {}", guard.token());
    ensure!(soon("evict", lock.evict(guard.token())).await??, "the grant was not found");
    soon("the loss", guard.lost()).await?;
    for node in cluster.nodes() {
        ensure!(number(node, &["EXISTS", "k"])? == 0, "left on {}", node.name());
    }
    Ok(())
}

async fn a_writer_waits_for_a_reader_that_a_minority_lost(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, DURABLE).await?, connect(cluster, DURABLE).await?);
    let first = one.lock("k").shared().ttl(LONG).try_acquire().await?.granted()?;
    let second = two.lock("k").shared().ttl(LONG).try_acquire().await?.granted()?;
    ensure!(first.token() != second.token());
    for node in &cluster.nodes()[..2] {
        number(node, &["DEL", "k"])?;
    }
    ensure!(matches!(two.lock("k").try_acquire().await?, Attempt::Busy(_)), "beside readers");
    let shown = one.lock("k").status().await?.context("it is held")?;
    let tokens: Vec<_> = shown.holders.iter().filter_map(|holder| holder.token).collect();
    ensure!(tokens == [first.token(), second.token()], "{shown:?}");
    let writer = wait_for(&two, "k", LONG);
    ensure!(one.lock("k").evict(first.token()).await?, "there was no such grant");
    soon("the loss", first.lost()).await?;
    second.check()?;
    ensure!(!writer.is_finished(), "beside a reader");
    second.release().await?;
    let writer = soon("the writer's grant", writer).await???;
    ensure!(writer.token() > tokens[1]);
    writer.release().await?;
    Ok(())
}

/// With three nodes away it is repeated until they are back; with two away it is confirmed.
async fn a_downgrade_needs_a_majority_and_is_repeated(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, DURABLE).await?, connect(cluster, DURABLE).await?);
    for away in [2, 3] {
        let mut guard = acquire(&one, "k", LONG).await?;
        for node in &cluster.nodes()[..away] {
            node.pause()?;
        }
        let token = guard.token();
        let mut downgrade = tokio::spawn(async move {
            guard.downgrade().await?;
            Ok::<_, tenure::Error>(guard)
        });
        if away == 3 {
            let early = tokio::time::timeout(SECOND, &mut downgrade).await;
            ensure!(early.is_err(), "confirmed by a minority");
        } else {
            let done = async || Ok(downgrade.is_finished().then_some(()));
            until(LONG, "the downgrade", done).await?;
        }
        for node in &cluster.nodes()[..away] {
            node.resume()?;
        }
        let guard = soon("the downgrade", downgrade).await???;
        ensure!(guard.token() == token);
        let reader = soon("a reader", two.lock("k").shared().ttl(LONG).acquire()).await??;
        ensure!(matches!(two.lock("k").try_acquire().await?, Attempt::Busy(_)), "beside readers");
        guard.check()?;
        guard.release().await?;
        reader.release().await?;
        soon("the releases", async { tokio::try_join!(one.flush(), two.flush()) }).await??;
    }
    Ok(())
}

/// Different nodes may give the same number to readers that hold together. Here all nodes say that
/// another reader has each number that will be given.
async fn a_number_that_another_reader_has_is_not_given_again(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, DURABLE).await?;
    let other = client.lock("k").shared().ttl(LONG).try_acquire().await?.granted()?;
    // Tokens ahead of the clocks, so that the next ones are known.
    let known = 5_000_000_000_000_000_u64;
    let taken = known + 1;
    let script = "for _, owner in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do \
         local text = string.gsub(redis.call('HGET', KEYS[1], owner), '^%d+ %d+', ARGV[1]) \
         redis.call('HSET', KEYS[1], owner, text) end return 1";
    for node in cluster.nodes() {
        execute(node, &["HSET", "tenure:s:{k}", "token", &known.to_string()])?;
        let numbers = format!("{taken} {taken}");
        execute(node, &["EVAL", script, "2", "tenure:h:{k}", "tenure:r:{k}", &numbers])?;
    }
    let reader = client.lock("k").shared().ttl(LONG).acquire();
    let reader = soon("the second reader's grant", reader).await??;
    ensure!(reader.token().get() > taken, "{} is used twice", reader.token());
    reader.release().await?;
    drop(other);
    Ok(())
}
