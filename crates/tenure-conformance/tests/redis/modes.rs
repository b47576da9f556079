//! Readers and permits at the server: what is stored, what a handoff to many costs, and faults.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Mode, Scope};
use tenure::{Attempt, Client, Config, ErrorKind, Guard};
use tenure_conformance::context::{SOON, renew, soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node};

use crate::faults::until_subscribed;
use crate::traffic::{calls, of, sent, until_quiet};
use crate::{LONG, SECOND, acquire, claim, connect, execute, number, texts};

server_cases! {
    readers_are_a_marker_and_two_keys_beside_it Redis;
    the_last_reader_leaves_only_the_state Redis;
    a_handoff_to_many_readers_is_one_command Redis;
    a_very_long_run_of_readers_is_granted_in_parts Redis;
    permits_whose_marker_was_deleted_do_not_count Redis;
    a_shared_request_that_arrives_after_its_claim_was_cancelled_is_refused Redis;
    whatever_changes_is_handed_off_by_the_same_script Redis;
    the_first_waiter_requests_again_when_the_first_lease_ends Redis;
    any_token_of_its_range_evicts_a_grant Redis;
    a_downgraded_lock_is_renewed Redis;
    setting_the_clock_loses_no_reader Redis |options| options.clock();
    a_full_server_downgrades_renews_and_releases Redis;
    readers_survive_a_failover RedisSentinel;
}

pub(crate) async fn read(client: &Client, key: &str) -> Result<Guard> {
    let attempt = client.lock(key).shared().ttl(LONG).try_acquire().await?;
    Ok(attempt.granted()?)
}

fn keys(node: &Node) -> Result<BTreeSet<String>> {
    Ok(texts(node, &["KEYS", "*"])?.into_iter().collect())
}

async fn readers_are_a_marker_and_two_keys_beside_it(cluster: &Cluster) -> Result<()> {
    let node = cluster.node();
    for (options, what) in [("", ["HKEYS", "a"]), ("layout=plain", ["GET", "a"])] {
        let client = connect(cluster, options).await?;
        let (one, two) = (read(&client, "a").await?, read(&client, "a").await?);
        ensure!(texts(node, &what)? == ["~shared"]);
        ensure!(number(node, &["ZCARD", "tenure:r:{a}"])? == 2);
        ensure!(texts(node, &["HGET", "tenure:h:{a}", "#"])? == ["2"]);
        for key in ["a", "tenure:r:{a}", "tenure:h:{a}"] {
            let left = number(node, &["PTTL", key])?;
            ensure!((25_000..=30_001).contains(&left), "{key}: {left}");
        }
        // The lock lives as long as the longest lease.
        let shortest = client.lock("a").shared().ttl(SECOND * 3).try_acquire().await?.granted()?;
        one.release().await?;
        two.release().await?;
        ensure!(number(node, &["PTTL", "a"])? <= 3_001);
        shortest.release().await?;
        ensure!(number(node, &["EXISTS", "a", "tenure:r:{a}", "tenure:h:{a}"])? == 0);
    }
    Ok(())
}

async fn the_last_reader_leaves_only_the_state(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    for name in ["a", "{c}d", "e}f"] {
        let (one, two) = (read(&client, name).await?, read(&client, name).await?);
        let writer = tokio::spawn(client.lock(name).ttl(LONG).acquire());
        until_waiters(&client.lock(name), 1).await?;
        one.release().await?;
        two.release().await?;
        soon("the writer's grant", writer).await???.release().await?;
        let permit = client.semaphore(name, 2).try_acquire().await?.granted()?;
        permit.release().await?;
    }
    let left = keys(cluster.node())?;
    ensure!(left.len() == 3 && left.iter().all(|key| key.starts_with("tenure:s:")), "{left:?}");
    Ok(())
}

/// Starts so many readers, which wait behind the guard.
async fn queue_readers(
    cluster: &Cluster,
    client: &Client,
    count: usize,
) -> Result<tokio::task::JoinSet<tenure::Result<Guard>>> {
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..count {
        waiting.spawn(client.lock("k").shared().ttl(LONG).acquire());
    }
    until_waiters(&client.lock("k"), count).await?;
    until_subscribed(cluster).await?;
    until_quiet(cluster.node()).await?;
    Ok(waiting)
}

/// Awaits all of them, and checks that their tokens are in order and differ.
async fn granted(
    mut waiting: tokio::task::JoinSet<tenure::Result<Guard>>,
    above: u64,
) -> Result<Vec<Guard>> {
    let mut guards = Vec::new();
    while let Some(granted) = soon("a reader's grant", waiting.join_next()).await? {
        guards.push(granted??);
    }
    let tokens: BTreeSet<u64> = guards.iter().map(|guard| guard.token().get()).collect();
    ensure!(tokens.len() == guards.len(), "tokens are used twice");
    ensure!(tokens.first().is_some_and(|first| *first > above), "{tokens:?} after {above}");
    Ok(guards)
}

async fn a_handoff_to_many_readers_is_one_command(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    acquire(&client, "k", LONG).await?.release().await?;
    for readers in [1, 10, 100] {
        let mut cost = Default::default();
        for _ in 0..10 {
            let guard = acquire(&client, "k", LONG).await?;
            let last = guard.token().get() + 1023;
            let waiting = queue_readers(cluster, &client, readers).await?;
            execute(node, &["CONFIG", "RESETSTAT"])?;
            guard.release().await?;
            cost = calls(node)?;
            for reader in granted(waiting, last).await? {
                reader.release().await?;
            }
            // Waiters also poll every few seconds, which on a slow machine may be now.
            if sent(&cost) == 1 {
                break;
            }
        }
        ensure!(sent(&cost) == 1 && of(&cost, "evalsha") == 1, "{readers}: {cost:?}");
        ensure!(of(&cost, "publish") == readers as u64, "{readers}: {cost:?}");
    }
    Ok(())
}

/// More than one script grants. Those that are left are told to request.
async fn a_very_long_run_of_readers_is_granted_in_parts(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let guard = acquire(&client, "k", LONG).await?;
    let last = guard.token().get() + 1023;
    let waiting = queue_readers(cluster, &client, 600).await?;
    execute(cluster.node(), &["CONFIG", "RESETSTAT"])?;
    guard.release().await?;
    let guards = granted(waiting, last).await?;
    let cost = calls(cluster.node())?;
    println!("600 readers were granted by {} scripts", of(&cost, "evalsha"));
    let holding = client.lock("k").status().await?.context("it is held")?;
    ensure!(holding.holders.len() == 600);
    let oldest = guards.iter().map(Guard::token).min();
    ensure!(holding.holder().token == oldest);
    let Attempt::Busy(busy) = client.lock("k").try_acquire().await? else {
        anyhow::bail!("a writer beside readers");
    };
    ensure!(busy.holders == 600 && busy.holder.and_then(|holder| holder.token) == oldest);
    drop(guards);
    soon("the releases", client.flush()).await??;
    acquire(&client, "k", LONG).await?.release().await?;
    Ok(())
}

pub(crate) async fn backend(cluster: &Cluster, options: &str) -> Result<Arc<dyn Backend>> {
    Ok(cluster.url_with(options).parse::<Config>()?.open().await?)
}

pub(crate) fn shared(key: &str) -> Result<Claim> {
    let mut claim = claim(key)?;
    claim.mode = Mode::Shared;
    Ok(claim)
}

/// As everywhere, a lock that foreign hands delete is lost; what lies beside it must not count.
async fn permits_whose_marker_was_deleted_do_not_count(cluster: &Cluster) -> Result<()> {
    let (backend, node) = (backend(cluster, "").await?, cluster.node());
    let mut lost = claim("k")?;
    lost.mode = Mode::permits(2, 3)?;
    lost.token = Some(backend.try_acquire(&lost).await?.granted()?.token);
    execute(node, &["DEL", "k"])?;
    let mut all = claim("k")?;
    all.mode = Mode::permits(3, 3)?;
    let grant = backend.try_acquire(&all).await?.granted()?;
    ensure!(Some(grant.token) > lost.token);
    let renewed = renew(&*backend, &[lost.clone()]).await.remove(0);
    ensure!(renewed.as_ref().is_err_and(|e| e.kind() == ErrorKind::Lost), "{renewed:?}");
    let holding = backend.list(Scope::Key(&all.key)).await?;
    ensure!(holding[0].holders.len() == 1, "{holding:?}");
    ensure!(!backend.release(&lost).await?);
    ensure!(backend.release(&all).await?);
    Ok(())
}

async fn a_shared_request_that_arrives_after_its_claim_was_cancelled_is_refused(
    cluster: &Cluster,
) -> Result<()> {
    let (backend, node) = (backend(cluster, "").await?, cluster.node());
    let held = shared("k")?;
    for holds in [false, true] {
        if holds {
            backend.try_acquire(&held).await?.granted()?;
        }
        let mut late = shared("k")?;
        late.unconfirmed = true;
        ensure!(!backend.release(&late).await?);
        ensure!(backend.try_acquire(&late).await.is_err(), "a cancelled claim was granted");
        ensure!(number(node, &["ZCARD", "tenure:r:{k}"])? == i64::from(holds));
    }
    // Also one that held: its late request must not hold once more.
    let mut late = shared("k")?;
    backend.try_acquire(&late).await?.granted()?;
    late.unconfirmed = true;
    ensure!(backend.release(&late).await?);
    ensure!(backend.try_acquire(&late).await.is_err(), "a cancelled claim was granted");
    ensure!(backend.release(&held).await?);
    ensure!(number(node, &["EXISTS", "k"])? == 0);
    Ok(())
}

/// No waiter here sends a second request: the script that a change runs in has to let it in.
async fn whatever_changes_is_handed_off_by_the_same_script(cluster: &Cluster) -> Result<()> {
    let backend = backend(cluster, "").await?;
    let holders = async |key: &str| {
        let holdings = backend.list(Scope::Key(&claim(key)?.key)).await?;
        Ok::<_, anyhow::Error>(holdings.first().map_or(0, |holding| holding.holders.len()))
    };
    let wait = async |claim: &mut Claim| {
        claim.waits = true;
        let attempt = backend.try_acquire(claim).await?;
        ensure!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
        anyhow::Ok(())
    };
    // A waiting writer leaves, behind which a reader waits.
    let (first, mut writer, mut reader) = (shared("a")?, claim("a")?, shared("a")?);
    backend.try_acquire(&first).await?.granted()?;
    wait(&mut writer).await?;
    wait(&mut reader).await?;
    ensure!(!backend.release(&writer).await?);
    ensure!(holders("a").await? == 2, "a writer that left");
    // A downgrade, behind which two readers wait.
    let mut downgraded = claim("b")?;
    let grant = backend.try_acquire(&downgraded).await?.granted()?;
    let (mut one, mut two) = (shared("b")?, shared("b")?);
    wait(&mut one).await?;
    wait(&mut two).await?;
    (downgraded.mode, downgraded.token) = (Mode::Shared, Some(grant.token));
    backend.try_acquire(&downgraded).await?.granted()?;
    ensure!(holders("b").await? == 3, "a downgrade");
    // An eviction of one of two readers lets no waiter in, and of the other one the writer.
    let mut writer = claim("a")?;
    wait(&mut writer).await?;
    for left in [1, 1] {
        let holding = backend.list(Scope::Key(&writer.key)).await?.remove(0);
        let token = holding.holder().token.context("it is known")?;
        ensure!(backend.evict(&writer.key, token).await?);
        ensure!(holders("a").await? == left, "an eviction");
    }
    ensure!(backend.release(&writer).await?, "the writer was not let in");
    Ok(())
}

/// A part may be enough for it. Without this it would request after a third of its entry's lease.
async fn the_first_waiter_requests_again_when_the_first_lease_ends(
    cluster: &Cluster,
) -> Result<()> {
    let backend = backend(cluster, "").await?;
    let permits = |take: u32, ttl| -> Result<Claim> {
        let mut claim = claim("k")?;
        (claim.mode, claim.ttl, claim.waits) = (Mode::permits(take, 3)?, ttl, true);
        Ok(claim)
    };
    backend.try_acquire(&permits(1, LONG)?).await?.granted()?;
    backend.try_acquire(&permits(1, SECOND * 2)?).await?.granted()?;
    let next = permits(2, LONG)?;
    let Attempt::Busy(busy) = backend.try_acquire(&next).await? else {
        anyhow::bail!("more permits than there are");
    };
    ensure!(busy.ahead == Some(0) && busy.holders == 2, "{busy:?}");
    let pause = busy.retry_after.context("it is known")?;
    ensure!(pause <= SECOND * 2 + SECOND / 1000, "{pause:?}");
    tokio::time::sleep(pause).await;
    backend.try_acquire(&next).await?.granted()?;
    Ok(())
}

async fn any_token_of_its_range_evicts_a_grant(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let lock = client.lock("k").ttl(LONG);
    let at = |guard: &Guard, more: u64| tenure::FencingToken::new(guard.token().get() + more);
    for downgraded in [false, true] {
        let mut guard = acquire(&client, "k", LONG).await?;
        if downgraded {
            guard.downgrade().await?;
            let reader = read(&client, "k").await?;
            ensure!(reader.token() > at(&guard, 1023).context("a token")?);
            reader.release().await?;
        }
        ensure!(!lock.evict(at(&guard, 1024).context("a token")?).await?, "beyond its range");
        ensure!(lock.evict(at(&guard, 1023).context("a token")?).await?, "in its range");
        soon("the loss", guard.lost()).await?;
        acquire(&client, "k", LONG).await?.release().await?;
    }
    Ok(())
}

/// Its claim still says that it is exclusive.
async fn a_downgraded_lock_is_renewed(cluster: &Cluster) -> Result<()> {
    for options in ["", "layout=plain"] {
        let client = connect(cluster, options).await?;
        let ttl = SECOND * 2;
        let key = format!("k{options}").replace('=', "-");
        let (other, fixed) = (acquire(&client, "other", ttl).await?, format!("{key}/fixed"));
        let mut guard = acquire(&client, &key, ttl).await?;
        let lock = client.lock(fixed.as_str()).ttl(LONG).without_renewal();
        let mut fixed = lock.try_acquire().await?.granted()?;
        guard.downgrade().await?;
        fixed.downgrade().await?;
        let lost = tokio::time::timeout(ttl * 2, guard.lost()).await;
        ensure!(lost.is_err(), "not renewed: {lost:?}");
        for guard in [guard, fixed, other] {
            guard.check()?;
            guard.release().await?;
        }
    }
    Ok(())
}

/// An hour back, and forward again: the reader is renewed each time, tokens grow, and a writer is
/// let in when the reader leaves.
async fn setting_the_clock_loses_no_reader(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let ttl = SECOND * 4;
    let reader = client.lock("k").shared().ttl(ttl).try_acquire().await?.granted()?;
    let mut last = reader.token();
    node.shift_clock(-3_600_000)?;
    // Renewed by now, which also ends the lease when it should.
    let corrected = async || Ok((number(node, &["PTTL", "k"])? <= 4_001).then_some(()));
    until(SOON, "the lease is corrected", corrected).await?;
    for _ in 0..3 {
        let other = read(&client, "k").await?;
        ensure!(other.token() > last, "{} after {last}", other.token());
        last = other.token();
        other.release().await?;
    }
    let writer = tokio::spawn(client.lock("k").ttl(LONG).acquire());
    until_waiters(&client.lock("k"), 1).await?;
    reader.check()?;
    ensure!(!writer.is_finished(), "a writer beside a reader");
    reader.release().await?;
    let writer = soon("the writer's grant", writer).await???;
    ensure!(writer.token() > last, "{} after {last}", writer.token());
    writer.release().await?;
    Ok(())
}

async fn a_full_server_downgrades_renews_and_releases(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let mut guard = acquire(&client, "k", SECOND * 2).await?;
    let reader = tokio::spawn(client.lock("k").shared().ttl(LONG).acquire());
    until_waiters(&client.lock("k"), 1).await?;
    execute(node, &["CONFIG", "SET", "maxmemory", "1"])?;
    guard.downgrade().await?;
    let reader = soon("the reader's grant", reader).await???;
    let error = read(&client, "other").await.err().context("a full server granted")?;
    ensure!(error.to_string().contains("memory"), "{error}");
    ensure!(number(node, &["EXISTS", "other", "tenure:s:{other}"])? == 0);
    let lost = tokio::time::timeout(SECOND * 3, guard.lost()).await;
    ensure!(lost.is_err(), "not renewed: {lost:?}");
    guard.release().await?;
    reader.release().await?;
    ensure!(number(node, &["EXISTS", "k"])? == 0);
    execute(node, &["CONFIG", "SET", "maxmemory", "0"])?;
    Ok(())
}

async fn readers_survive_a_failover(cluster: &Cluster) -> Result<()> {
    // Both of them have it, so that it does not matter which one is promoted.
    let (one, two) = (connect(cluster, "replicas=2").await?, connect(cluster, "").await?);
    let ttl = SECOND * 20;
    let mut writer = acquire(&one, "k", ttl).await?;
    writer.downgrade().await?;
    let reader = one.lock("k").shared().ttl(ttl).try_acquire().await?.granted()?;
    let next = tokio::spawn(two.lock("k").ttl(ttl).acquire());
    until_waiters(&one.lock("k"), 1).await?;
    let old = cluster.leader()?.context("a master")?.name().to_owned();
    cluster.failover()?;
    ensure!(cluster.leader()?.context("a master")?.name() != old);
    writer.check()?;
    reader.check()?;
    let token = reader.token();
    soon("release", writer.release()).await??;
    ensure!(!next.is_finished(), "a writer beside a reader");
    soon("release", reader.release()).await??;
    let next = soon("the writer's grant", next).await???;
    ensure!(next.token() > token);
    next.release().await?;
    Ok(())
}
