//! Shared locks, downgrades and permits: what is stored for them, sessions that end, foreign
//! clients, and what stays behind.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use tenure::backend::Mode;
use tenure::backends::Consul;
use tenure::{Attempt, Client, FencingToken, LostReason, Severity};
use tenure_conformance::context::{acquire_free, expect_busy, soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::http::json_field;

use super::{SECOND, connect, field, keys, put, stored, url};

server_cases! {
    token_of_a_downgraded_lock_finds_its_grant Consul;
    marker_of_a_reader_whose_session_ended_stops_no_writer Consul;
    waiting_writer_is_no_holder_and_the_end_of_its_session_lets_readers_in Consul;
    reader_waits_for_the_lock_delay_of_a_writer Consul;
    write_of_a_foreign_client_does_not_end_a_shared_lock Consul;
    foreign_holder_beside_readers_is_a_fault_for_the_doctor Consul;
    many_tries_at_once_fill_a_semaphore_exactly Consul;
    mixed_use_leaves_no_key_behind Consul;
    release_goes_on_without_its_markers Consul;
}

async fn token_of_a_downgraded_lock_finds_its_grant(cluster: &Cluster) -> Result<()> {
    let consul = Arc::new(Consul::open(&url(&cluster.hosts(), "")).await?);
    let lock = Client::new(consul.clone()).lock("k");
    let mut guard = acquire_free(&lock).await?;
    let token = guard.token();
    soon("downgrade", guard.downgrade()).await??;
    let name = consul.condition(guard.key(), token).await?.context("it is held")?.key;
    let index: u64 = field(cluster.node(), &name, "ModifyIndex")?.parse()?;
    ensure!(name.starts_with("k/.held/") && index > token.get() / 1024, "{name} at {index}");
    // Also for a client that did not grant it.
    let other = Consul::open(&url(&cluster.hosts(), "")).await?;
    let condition = other.condition(guard.key(), token).await?.context("it is held")?;
    ensure!(condition.index == index && condition.key == name, "{condition:?}");
    let check = format!(
        r#"[{{"KV":{{"Verb":"check-session","Key":"{name}","Session":"{}"}}}},
            {{"KV":{{"Verb":"check-index","Key":"{name}","Index":{index}}}}}]"#,
        condition.session
    );
    put(cluster.node(), "/v1/txn", &check)?;
    let reader = acquire_free(&lock.clone().shared()).await?;
    let seen = lock.status().await?.context("it is held")?;
    let tokens: Vec<_> = seen.holders.iter().map(|holder| holder.token).collect();
    ensure!(tokens == [Some(token), Some(reader.token())], "the oldest first: {seen:?}");
    ensure!(seen.holders.iter().all(|holder| holder.mode == Mode::Shared), "{seen:?}");
    let last = FencingToken::new(token.get() + 1023).context("a token")?;
    ensure!(lock.evict(last).await?, "the grant of {last} was there");
    soon("the loss", guard.lost()).await?;
    ensure!(put(cluster.node(), "/v1/txn", &check).is_err(), "admitted after the eviction");
    ensure!(consul.condition(guard.key(), token).await?.is_none());
    reader.check()?;
    reader.release().await?;
    let writer = acquire_free(&lock).await?;
    ensure!(writer.token().get() > index * 1024, "above the downgrade too");
    writer.release().await?;
    Ok(())
}

/// The session of a reader ends, and its key with it; its marker stays.
async fn marker_of_a_reader_whose_session_ended_stops_no_writer(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster).await?, connect(cluster).await?);
    let reader = acquire_free(&one.lock("k").shared()).await?;
    destroy_session(cluster, &held_key(cluster, "k")?)?;
    let lost = soon("the loss", reader.lost()).await?;
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    ensure!(stored(cluster.node(), "k/.holders")?.is_some(), "the case tests nothing");
    let mut writer = acquire_free(&two.lock("k")).await?;
    ensure!(stored(cluster.node(), "k/.holders")?.is_none(), "the marker is still there");
    // A reader that comes in by a downgrade is seen again.
    writer.downgrade().await?;
    expect_busy(&one.lock("k")).await?;
    writer.release().await?;
    drop(reader);
    one.flush().await?;
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

fn held_key(cluster: &Cluster, key: &str) -> Result<String> {
    let all = keys(cluster.node())?;
    let start = format!("{key}/.held/");
    let found = all.split('"').find(|name| name.starts_with(&start));
    Ok(found.with_context(|| format!("a holder of {key} in {all}"))?.to_owned())
}

fn destroy_session(cluster: &Cluster, key: &str) -> Result<()> {
    let session = field(cluster.node(), key, "Session")?;
    put(cluster.node(), &format!("/v1/session/destroy/{session}"), "").map(drop)
}

async fn waiting_writer_is_no_holder_and_the_end_of_its_session_lets_readers_in(
    cluster: &Cluster,
) -> Result<()> {
    let (one, two, three) =
        (connect(cluster).await?, connect(cluster).await?, connect(cluster).await?);
    // Names the session of the second client.
    let _mark = acquire_free(&two.lock("mark")).await?;
    let first = acquire_free(&one.lock("k").shared()).await?;
    let writer = tokio::spawn(two.lock("k").acquire());
    until_waiters(&one.lock("k"), 1).await?;
    let late = tokio::spawn(three.lock("k").shared().acquire());
    until_waiters(&one.lock("k"), 2).await?;
    ensure!(stored(cluster.node(), "k/.lock")?.is_none(), "a waiter holds the lock");
    let seen = one.lock("k").status().await?.context("it is held")?;
    ensure!(seen.holders.len() == 1 && seen.holder().mode == Mode::Shared, "{seen:?}");
    ensure!(seen.waiters[0].mode == Mode::Exclusive, "{seen:?}");
    // The writer does not see the end of its session before its next request, after ten seconds.
    destroy_session(cluster, "mark/.lock")?;
    let late = tokio::time::timeout(SECOND * 3, late).await.context("the reader")???;
    first.check()?;
    first.release().await?;
    late.release().await?;
    soon("the writer's grant", writer).await???.release().await?;
    Ok(())
}

async fn reader_waits_for_the_lock_delay_of_a_writer(cluster: &Cluster) -> Result<()> {
    let slow = tenure::connect(&url(&cluster.hosts(), "lock_delay=3s")).await?;
    let client = connect(cluster).await?;
    let writer = acquire_free(&slow.lock("k")).await?;
    let start = std::time::Instant::now();
    destroy_session(cluster, "k/.lock")?;
    let Attempt::Busy(busy) = client.lock("k").shared().try_acquire().await? else {
        bail!("acquired during the lock-delay");
    };
    ensure!(busy.to_string().contains("lock-delay"), "{busy}");
    let reader = soon("the end of the lock-delay", client.lock("k").shared().acquire()).await??;
    ensure!(start.elapsed() > SECOND * 2, "after {:?}", start.elapsed());
    ensure!(reader.token() > writer.token());
    ensure!(stored(cluster.node(), "k/.lock")?.is_none(), "a reader left the lock's key");
    reader.release().await?;
    Ok(())
}

/// A plain write leaves the key with its session: the grant stays, and nothing fits beside a value
/// that cannot be read.
async fn write_of_a_foreign_client_does_not_end_a_shared_lock(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let lock = client.lock("k").shared().ttl(SECOND);
    let reader = acquire_free(&lock).await?;
    put(cluster.node(), &format!("/v1/kv/{}", held_key(cluster, "k")?), "scribble")?;
    let lost = tokio::time::timeout(SECOND * 2, reader.lost()).await;
    ensure!(lost.is_err(), "{lost:?}");
    expect_busy(&client.lock("k")).await?;
    reader.release().await?;
    acquire_free(&client.lock("k")).await?.release().await?;
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

/// Consul's own library does not know of readers: the page says so, and the doctor finds it.
async fn foreign_holder_beside_readers_is_a_fault_for_the_doctor(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let reader = acquire_free(&client.lock("k").shared()).await?;
    let found = |findings: Vec<tenure::Finding>| {
        findings.into_iter().find(|finding| finding.subject == "readers")
    };
    ensure!(found(client.doctor().await?).is_none());
    let session = put(cluster.node(), "/v1/session/create", r#"{"TTL":"60s"}"#)?;
    let session = json_field(&session, "ID").context("an id")?;
    let path = format!("/v1/kv/k/.lock?acquire={session}&flags=3304740253564472344");
    ensure!(put(cluster.node(), &path, "a peer")?.trim() == "true");
    let finding = found(client.doctor().await?).context("it was not found")?;
    ensure!(finding.severity == Severity::Fault && finding.detail.contains("`k`"), "{finding}");
    let seen = client.lock("k").status().await?.context("it is held")?;
    ensure!(seen.holders.len() == 2, "{seen:?}");
    // The other way round they exclude one another.
    expect_busy(&client.lock("k").shared()).await?;
    reader.release().await?;
    expect_busy(&client.lock("k").shared()).await?;
    put(cluster.node(), &path.replace("acquire", "release"), "a peer")?;
    acquire_free(&client.lock("k").shared()).await?.release().await?;
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

/// Claims that count at the same time: none is granted too many, and none is refused while there
/// are some.
async fn many_tries_at_once_fill_a_semaphore_exactly(cluster: &Cluster) -> Result<()> {
    for round in 0..5 {
        let mut tries = Vec::new();
        for _ in 0..12 {
            let client = connect(cluster).await?;
            let semaphore = client.semaphore(format!("k{round}"), 8);
            tries.push(tokio::spawn(async move { semaphore.try_acquire().await }));
        }
        let mut permits = Vec::new();
        for attempt in tries {
            if let Attempt::Granted(permit) = soon("try", attempt).await??? {
                permits.push(permit);
            }
        }
        ensure!(permits.len() == 8, "{} permits of 8 are out", permits.len());
        for permit in permits {
            permit.release().await?;
        }
    }
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

async fn mixed_use_leaves_no_key_behind(cluster: &Cluster) -> Result<()> {
    let mut tasks = Vec::new();
    for number in 0..6_u32 {
        let client = connect(cluster).await?;
        tasks.push(tokio::spawn(async move {
            let lock = client.lock("lock");
            for round in 0..8_u32 {
                match (number + round) % 4 {
                    0 => {
                        let mut guard = lock.acquire().await?;
                        guard.downgrade().await?;
                        guard.release().await?;
                    }
                    1 => lock.acquire().await?.release().await?,
                    2 => lock.clone().shared().acquire().await?.release().await?,
                    _ => {
                        let take = round % 3 + 1;
                        let permits = client.semaphore("permits", 4).permits(take);
                        permits.acquire().await?.release().await?;
                    }
                }
            }
            client.flush().await?;
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        soon("all rounds", task).await???;
    }
    let left = keys(cluster.node())?;
    ensure!(left.trim() == "[]", "left: {left}");
    Ok(())
}

/// A read of a key that does not exist refuses a whole transaction.
async fn release_goes_on_without_its_markers(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster).await?, connect(cluster).await?);
    let writer = acquire_free(&one.lock("k")).await?;
    let reader = tokio::spawn(two.lock("k").shared().acquire());
    until_waiters(&one.lock("k"), 1).await?;
    writer.release().await?;
    let reader = soon("the reader's grant", reader).await???;
    for marker in ["k/.holders", "k/.queue"] {
        ensure!(stored(cluster.node(), marker)?.is_some(), "{marker} is not there");
        let path = format!("/v1/kv/{marker}");
        tenure_servers::wire::http::request(cluster.node().port(), "DELETE", &path, "")?;
    }
    soon("release", reader.release()).await??;
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}
