//! Shared locks, downgrades and permits: what only ZooKeeper can show.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Mode};
use tenure::{Attempt, ErrorKind, FencingToken, Key, Lock};
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use zookeeper_client::Client;

use crate::{EPHEMERAL, acquire_free, children, claim, foreign_client, open, url};

server_cases! {
    nodes_say_the_mode_of_their_claims Zookeeper;
    lost_responses_leave_one_node_in_every_mode Zookeeper;
    lost_response_to_a_downgrade_is_one_downgrade Zookeeper;
    overwritten_mark_of_a_downgrade_lets_no_second_writer_in Zookeeper;
    reader_passes_a_holder_that_was_downgraded_before_the_watch Zookeeper;
    permits_are_found_by_the_next_waiter_after_each_grant Zookeeper;
    claim_behind_one_that_raised_its_limit_follows_it Zookeeper;
    claim_of_the_other_kind_leaves_no_node Zookeeper;
    claim_whose_sequence_number_overflowed_is_refused Zookeeper;
    end_of_one_readers_session_spares_the_others Zookeeper;
    an_eviction_finds_only_holders Zookeeper;
}

pub(crate) fn with_mode(key: &str, mode: Mode) -> Result<Claim> {
    let mut claim = claim(key)?;
    (claim.mode, claim.waits) = (mode, true);
    Ok(claim)
}

pub(crate) async fn granted(backend: &Arc<dyn Backend>, claim: &Claim) -> Result<FencingToken> {
    let attempt = soon("acquire", backend.try_acquire(claim)).await??;
    Ok(attempt.granted().map_err(|busy| anyhow::anyhow!("{busy}"))?.token)
}

pub(crate) async fn waits(backend: &Arc<dyn Backend>, claim: &Claim) -> Result<()> {
    let attempt = soon("acquire", backend.try_acquire(claim)).await??;
    ensure!(matches!(attempt, Attempt::Busy(_)), "granted beside the others");
    Ok(())
}

/// Awaits hints, and acquires after each, until the claim is granted. Returns how often it had to.
pub(crate) async fn wait_for(backend: &Arc<dyn Backend>, claim: &Claim) -> Result<u32> {
    let mut rechecks = 0;
    loop {
        backend.until_free(claim).await;
        rechecks += 1;
        if let Attempt::Granted(_) = backend.try_acquire(claim).await? {
            return Ok(rechecks);
        }
    }
}

async fn nodes_say_the_mode_of_their_claims(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(cluster)).await?;
    let reader = acquire_free(&client.lock("k").shared()).await?;
    let permits = soon("permits", client.semaphore("s", 5).permits(2).acquire()).await??;
    let mut writer = acquire_free(&client.lock("d").note("v1")).await?;
    soon("downgrade", writer.downgrade()).await??;
    let mut outside = foreign_client(cluster)?;
    for (key, end) in [
        ("k", "-shared-lock-0000000000"),
        ("s", "-permits-2-of-5-lock-0000000000"),
        ("d", "-lock-0000000000"),
    ] {
        let names = children(&mut outside, &format!("/locks/{key}"))?;
        let [name] = &names[..] else { anyhow::bail!("{names:?}") };
        ensure!(name.starts_with("_c_") && name[39..] == *end, "{name}");
        let (data, _) = outside.read(&format!("/locks/{key}/{name}"))?.unwrap();
        ensure!(data.ends_with("\tshared") == (key == "d"), "{key}: {data:?}");
    }
    let holding = client.lock("d").status().await?.context("it is held")?;
    ensure!(holding.holder().mode == Mode::Shared && holding.holder().note == "v1", "{holding:?}");
    for guard in [reader, writer] {
        guard.release().await?;
    }
    permits.release().await?;
    Ok(())
}

/// The response to a create is lost: the repeated request finds the node of the first one.
async fn lost_responses_leave_one_node_in_every_mode(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let mut outside = foreign_client(cluster)?;
    let backend = open(&format!("zk://{}/lost?session=5s", proxy.address())).await?;
    for (number, mode) in [Mode::Shared, Mode::permits(2, 3)?].into_iter().enumerate() {
        for round in 0..6 {
            let key = format!("k{number}-{round}");
            let folder = format!("/lost/{key}");
            // Another one holds beside it: the key has its container already.
            let beside = with_mode(&key, if number == 0 { mode } else { Mode::permits(1, 3)? })?;
            granted(&backend, &beside).await?;
            let mut mine = with_mode(&key, mode)?;
            mine.waits = round % 2 == 0;
            proxy.drop_response(1);
            let grant = loop {
                match backend.try_acquire(&mine).await {
                    Ok(attempt) => break attempt.granted()?,
                    Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error}"),
                }
                mine.unconfirmed = true;
            };
            let nodes = children(&mut outside, &folder)?;
            ensure!(nodes.len() == 2, "round {round}: {nodes:?}");
            ensure!(backend.try_acquire(&mine).await?.granted()?.token == grant.token);
            ensure!(backend.release(&mine).await?, "it was held");
            ensure!(backend.release(&beside).await?, "it was held");
            ensure!(children(&mut outside, &folder)?.is_empty());
        }
    }
    Ok(())
}

async fn lost_response_to_a_downgrade_is_one_downgrade(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let near = open(&url(cluster)).await?;
    let far = open(&format!("zk://{}/locks?session=5s", proxy.address())).await?;
    for round in 0..4 {
        let key = format!("k{round}");
        let writer = claim(&key)?;
        let token = granted(&far, &writer).await?;
        let reader = with_mode(&key, Mode::Shared)?;
        waits(&near, &reader).await?;
        let mut downgrade = writer.clone();
        (downgrade.mode, downgrade.token) = (Mode::Shared, Some(token));
        proxy.drop_response(1);
        // As the engine does: repeated until there is a response.
        let kept = loop {
            match far.try_acquire(&downgrade).await {
                Ok(attempt) => break attempt.granted()?.token,
                Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error}"),
            }
        };
        ensure!(kept == token);
        soon("the reader's grant", wait_for(&near, &reader)).await??;
        ensure!(far.release(&writer).await? && near.release(&reader).await?, "both held");
        // A request that comes after the release changes nothing.
        let late = far.try_acquire(&downgrade).await.map(drop).unwrap_err();
        ensure!(late.kind() == ErrorKind::Lost, "{late}");
        ensure!(children(&mut foreign_client(cluster)?, &format!("/locks/{key}"))?.is_empty());
    }
    Ok(())
}

/// Curator requests a revocation by overwriting the data of the holder's node.
async fn overwritten_mark_of_a_downgrade_lets_no_second_writer_in(cluster: &Cluster) -> Result<()> {
    let outside = Client::connect(&cluster.hosts()).await?;
    let backend = open(&url(cluster)).await?;
    let writer = claim("k")?;
    let token = granted(&backend, &writer).await?;
    let mut downgrade = writer.clone();
    (downgrade.mode, downgrade.token) = (Mode::Shared, Some(token));
    granted(&backend, &downgrade).await?;
    let early = with_mode("k", Mode::Shared)?;
    let before = granted(&backend, &early).await?;
    for name in outside.list_children("/locks/k").await? {
        if !name.contains("shared-") {
            outside.set_data(&format!("/locks/k/{name}"), b"__REVOKE__", None).await?;
        }
    }
    // A repeated request of a reader that holds is not a new one.
    ensure!(granted(&backend, &early).await? == before);
    let (late, next) = (with_mode("k", Mode::Shared)?, with_mode("k", Mode::Exclusive)?);
    waits(&backend, &late).await?;
    waits(&backend, &next).await?;
    ensure!(backend.release(&writer).await?);
    soon("the late reader's grant", wait_for(&backend, &late)).await??;
    waits(&backend, &next).await?;
    ensure!(backend.release(&early).await? && backend.release(&late).await?);
    soon("the writer's grant", wait_for(&backend, &next)).await??;
    ensure!(backend.release(&next).await?);
    Ok(())
}

async fn reader_passes_a_holder_that_was_downgraded_before_the_watch(
    cluster: &Cluster,
) -> Result<()> {
    let (one, two) = (open(&url(cluster)).await?, open(&url(cluster)).await?);
    let (writer, reader) = (claim("k")?, with_mode("k", Mode::Shared)?);
    let token = granted(&one, &writer).await?;
    waits(&two, &reader).await?;
    let mut downgrade = writer.clone();
    (downgrade.mode, downgrade.token) = (Mode::Shared, Some(token));
    granted(&one, &downgrade).await?;
    soon("the hint", two.until_free(&reader)).await?;
    ensure!(granted(&two, &reader).await? > token);
    ensure!(one.release(&writer).await? && two.release(&reader).await?);
    Ok(())
}

/// One release lets three in: each of them wakes the next one.
async fn permits_are_found_by_the_next_waiter_after_each_grant(cluster: &Cluster) -> Result<()> {
    let (holder, waiters) = (open(&url(cluster)).await?, open(&url(cluster)).await?);
    for _ in 0..20 {
        let all = with_mode("k", Mode::permits(3, 3)?)?;
        granted(&holder, &all).await?;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let mut claim = with_mode("k", Mode::permits(1, 3)?)?;
            // Without a wake-up the engine would look after a third of that.
            claim.ttl = Duration::from_secs(3600);
            waits(&waiters, &claim).await?;
            let waiters = waiters.clone();
            tasks.spawn(async move { wait_for(&waiters, &claim).await.map(|_| claim) });
        }
        ensure!(holder.release(&all).await?);
        let mut held = Vec::new();
        while let Some(claim) = soon("a grant", tasks.join_next()).await? {
            held.push(claim??);
        }
        for claim in held {
            ensure!(waiters.release(&claim).await?, "it was held");
        }
    }
    Ok(())
}

/// The limit in the name of a node is that of its first request. A claim that was granted by a
/// higher one is marked, so that the next one does not take it for a waiter.
async fn claim_behind_one_that_raised_its_limit_follows_it(cluster: &Cluster) -> Result<()> {
    let backend = open(&url(cluster)).await?;
    let first = with_mode("k", Mode::permits(1, 1)?)?;
    granted(&backend, &first).await?;
    let mut raised = with_mode("k", Mode::permits(1, 1)?)?;
    waits(&backend, &raised).await?;
    let next = with_mode("k", Mode::permits(1, 3)?)?;
    waits(&backend, &next).await?;
    raised.mode = Mode::permits(1, 3)?;
    let waiting = tokio::spawn({
        let (backend, next) = (backend.clone(), next.clone());
        async move { wait_for(&backend, &next).await }
    });
    granted(&backend, &raised).await?;
    let rechecks = soon("the next grant", waiting).await???;
    ensure!(rechecks == 1, "{rechecks} rechecks");
    let holding = backend.list(tenure::backend::Scope::Key(&next.key)).await?.remove(0);
    ensure!(holding.holders.len() == 3 && holding.waiters.is_empty(), "{holding:?}");
    for claim in [&first, &raised, &next] {
        ensure!(backend.release(claim).await?, "it was held");
    }
    Ok(())
}

async fn claim_of_the_other_kind_leaves_no_node(cluster: &Cluster) -> Result<()> {
    let backend = open(&url(cluster)).await?;
    let mut outside = foreign_client(cluster)?;
    let permits = Mode::permits(1, 3)?;
    for (holds, refused) in [
        (Mode::Exclusive, permits),
        (Mode::Shared, permits),
        (permits, Mode::Exclusive),
        (permits, Mode::Shared),
    ] {
        let (holder, other) = (with_mode("k", holds)?, with_mode("k", refused)?);
        granted(&backend, &holder).await?;
        let error = soon("refusal", backend.try_acquire(&other)).await?.map(drop).unwrap_err();
        ensure!(error.kind() == ErrorKind::Invalid, "{error}");
        ensure!(children(&mut outside, "/locks/k")?.len() == 1, "{holds} beside {refused}");
        ensure!(!backend.release(&other).await? && backend.release(&holder).await?);
    }
    Ok(())
}

/// Negative sequence numbers sort before those of older nodes.
async fn claim_whose_sequence_number_overflowed_is_refused(cluster: &Cluster) -> Result<()> {
    let backend = open(&url(cluster)).await?;
    let mut outside = foreign_client(cluster)?;
    let (holder, mut mine) = (claim("k")?, claim("k")?);
    granted(&backend, &mine).await?;
    let name = children(&mut outside, "/locks/k")?.remove(0);
    ensure!(backend.release(&mine).await?);
    granted(&backend, &holder).await?;
    // As the server would name the node of this claim, whose response was lost.
    let overflowed = format!("/locks/k/{}-2147483648", &name[..name.len() - 10]);
    outside.create(&overflowed, "", EPHEMERAL)?.unwrap();
    mine.unconfirmed = true;
    let error = soon("refusal", backend.try_acquire(&mine)).await?.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Internal, "{error}");
    ensure!(error.to_string().contains("sequence"), "{error}");
    ensure!(children(&mut outside, "/locks/k")?.len() == 1, "its node was left");
    // One of a foreign client is before all others, as for Curator.
    ensure!(backend.release(&holder).await?);
    let theirs = "/locks/k/_c_0f0e0d0c-0b0a-4908-8706-050403020100-lock--2147483648";
    outside.create(theirs, "", EPHEMERAL)?.unwrap();
    let reader = with_mode("k", Mode::Shared)?;
    waits(&backend, &reader).await?;
    outside.delete(theirs)?.unwrap();
    soon("the reader's grant", wait_for(&backend, &reader)).await??;
    ensure!(backend.release(&reader).await?);
    Ok(())
}

async fn end_of_one_readers_session_spares_the_others(cluster: &Cluster) -> Result<()> {
    let (one, two) = (tenure::connect(&url(cluster)).await?, tenure::connect(&url(cluster)).await?);
    let ends = acquire_free(&one.lock("k").shared()).await?;
    let mut outside = foreign_client(cluster)?;
    let name = children(&mut outside, "/locks/k")?.remove(0);
    let id = outside.owner(&format!("/locks/k/{name}"))?.unwrap();
    let stays = acquire_free(&two.lock("k").shared()).await?;
    let writer = tokio::spawn(two.lock("k").acquire());
    until_waiters(&two.lock("k"), 1).await?;
    crate::end_session(cluster, id).await?;
    soon("the loss", ends.lost()).await?;
    let lock: Lock = two.lock("k");
    let holding = lock.status().await?.context("it is held")?;
    ensure!(holding.holders.len() == 1 && !writer.is_finished(), "{holding:?}");
    stays.check()?;
    let before = stays.token();
    stays.release().await?;
    let writer = soon("the writer's grant", writer).await???;
    ensure!(writer.token() > before);
    writer.release().await?;
    Ok(())
}

async fn an_eviction_finds_only_holders(cluster: &Cluster) -> Result<()> {
    let backend = open(&url(cluster)).await?;
    let outside = Client::connect(&cluster.hosts()).await?;
    let (holder, reader) = (claim("k")?, with_mode("k", Mode::Shared)?);
    let token = granted(&backend, &holder).await?;
    waits(&backend, &reader).await?;
    let names = outside.list_children("/locks/k").await?;
    let waiting = names.iter().find(|name| name.contains("shared-")).context("it waits")?;
    let stat = outside.check_stat(&format!("/locks/k/{waiting}")).await?.context("it waits")?;
    let of_waiter = FencingToken::new(u64::try_from(stat.czxid)? * 1024).context("a token")?;
    ensure!(!backend.evict(&reader.key, of_waiter).await?, "a waiter was evicted");
    ensure!(backend.evict(&holder.key, token).await?, "the holder was not found");
    soon("the reader's grant", wait_for(&backend, &reader)).await??;
    ensure!(backend.evict(&reader.key, of_waiter).await?, "the reader was not found");
    for key in ["k", "never"] {
        ensure!(!backend.evict(&Key::new(key)?, of_waiter).await?, "{key} is free");
    }
    Ok(())
}
