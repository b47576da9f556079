//! What a handoff costs the server: no release may make all waiters send requests.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::backend::{Claim, Mode, Owner};
use tenure::{Attempt, Client, Config, Key, Permit, Semaphore};
use tenure_conformance::context::{acquire_free, soon, until_waiters, within};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node};
use tokio::task::JoinSet;

use super::name;
use super::traffic::{metric, revision};

server_cases! {
    a_handoff_between_writers_costs_two_requests Etcd;
    a_handoff_to_readers_costs_two_requests_each Etcd;
    a_handoff_of_permits_costs_two_requests Etcd;
    a_writer_behind_readers_looks_seldom Etcd;
    an_uncontended_reader_is_two_requests_and_two_proposals Etcd;
    a_refused_reader_or_permit_writes_nothing Etcd;
    a_departure_before_the_wait_is_not_missed Etcd;
    a_departure_that_others_were_told_before_is_not_missed Etcd;
    many_holders_are_listed_and_one_of_them_evicted Etcd;
}

/// How many wait.
const CROWDS: [usize; 3] = [1, 10, 50];
/// So long that no queue entry is refreshed meanwhile.
const TTL: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(30);

/// Requests that read or write keys.
fn requests(node: &Node) -> Result<f64> {
    let methods = ["Txn", "Range", "DeleteRange"];
    let counts = methods.iter().map(|method| {
        metric(node, &format!("grpc_server_msg_received_total{{grpc_method=\"{method}\""))
    });
    counts.sum()
}

/// The requests while `work` is done by and for so many waiters, for each.
async fn each(
    cluster: &Cluster,
    crowd: usize,
    work: impl Future<Output = Result<()>>,
) -> Result<f64> {
    let before = requests(cluster.node())?;
    within(LIMIT, "the handoffs", work).await??;
    Ok((requests(cluster.node())? - before) / crowd as f64)
}

/// The release of the one before, and the read that proves the claim. One waiter alone may have to
/// read once more, because its watch began after the next write.
fn ensure_few(what: &str, crowd: usize, each: f64, most: f64) -> Result<()> {
    let most = if crowd == 1 { most + 2.0 } else { most };
    ensure!(each <= most, "{what}: {each} requests for each of {crowd}");
    Ok(())
}

async fn clients(cluster: &Cluster) -> Result<[Client; 3]> {
    let open = || tenure::connect(&cluster.url());
    Ok([open().await?, open().await?, open().await?])
}

async fn a_handoff_between_writers_costs_two_requests(cluster: &Cluster) -> Result<()> {
    let clients = clients(cluster).await?;
    for crowd in CROWDS {
        let name = name();
        let lock = |at: usize| clients[at % 3].lock(&name).ttl(TTL);
        let first = acquire_free(&lock(0)).await?;
        let mut waiters = JoinSet::new();
        for at in 0..crowd {
            let lock = lock(at);
            waiters.spawn(async move { lock.acquire().await?.release().await });
        }
        until_waiters(&lock(0), crowd).await?;
        let each = each(cluster, crowd, async {
            first.release().await?;
            while waiters.join_next().await.transpose()?.transpose()?.is_some() {}
            Ok(())
        });
        ensure_few("writers", crowd, each.await?, 2.2)?;
    }
    Ok(())
}

/// All readers of a run watch the same writer: each gets one event, and proves its own claim.
async fn a_handoff_to_readers_costs_two_requests_each(cluster: &Cluster) -> Result<()> {
    let clients = clients(cluster).await?;
    for crowd in CROWDS {
        let name = name();
        let lock = |at: usize| clients[at % 3].lock(&name).ttl(TTL);
        let first = acquire_free(&lock(0)).await?;
        let mut waiters = JoinSet::new();
        for at in 0..crowd {
            let lock = lock(at).shared();
            waiters.spawn(async move { lock.acquire().await });
        }
        until_waiters(&lock(0), crowd).await?;
        let each = each(cluster, crowd, async {
            first.release().await?;
            let mut readers = Vec::new();
            while let Some(reader) = waiters.join_next().await.transpose()?.transpose()? {
                readers.push(reader);
            }
            // They hold together.
            ensure!(readers.len() == crowd);
            for reader in readers {
                reader.release().await?;
            }
            Ok(())
        });
        ensure_few("readers", crowd, each.await?, 2.2)?;
    }
    Ok(())
}

async fn permit(semaphore: &Semaphore) -> Result<Permit> {
    Ok(soon("a permit", semaphore.acquire()).await??)
}

async fn a_handoff_of_permits_costs_two_requests(cluster: &Cluster) -> Result<()> {
    let clients = clients(cluster).await?;
    for crowd in CROWDS {
        let name = name();
        let semaphore = |at: usize| clients[at % 3].semaphore(&name, 4).ttl(TTL);
        let mut first = Vec::new();
        for at in 0..4 {
            first.push(permit(&semaphore(at)).await?);
        }
        let mut waiters = JoinSet::new();
        for at in 0..crowd {
            let semaphore = semaphore(at);
            waiters.spawn(async move { semaphore.acquire().await?.release().await });
        }
        until_waiters(&clients[0].lock(&name), crowd).await?;
        let events = "grpc_server_msg_sent_total{grpc_method=\"Watch\"";
        let told = metric(cluster.node(), events)?;
        let each = each(cluster, crowd + 4, async {
            for permit in first {
                permit.release().await?;
            }
            while waiters.join_next().await.transpose()?.transpose()?.is_some() {}
            Ok(())
        });
        ensure_few("permits", crowd, each.await?, 2.2)?;
        // Each release is one event for each client, and not for each of its waiters. The rest are
        // the watches of the new holders.
        let told = (metric(cluster.node(), events)? - told) / (crowd + 4) as f64;
        ensure!(told <= 6.0, "{told} messages for each of {crowd}");
    }
    Ok(())
}

/// It watches one reader at a time: it looks again only when the youngest that is left has left.
async fn a_writer_behind_readers_looks_seldom(cluster: &Cluster) -> Result<()> {
    let clients = clients(cluster).await?;
    for crowd in CROWDS {
        let name = name();
        let lock = |at: usize| clients[at % 3].lock(&name).ttl(TTL);
        let mut readers = Vec::new();
        for at in 0..crowd {
            readers.push(Some(acquire_free(&lock(at).shared()).await?));
        }
        let writer = tokio::spawn(lock(0).acquire());
        until_waiters(&lock(0), 1).await?;
        let before = requests(cluster.node())?;
        // 7 is prime to all sizes: the youngest is neither the first nor the last that leaves.
        for step in 0..crowd {
            let reader = readers[(step * 7 + crowd / 2) % crowd].take();
            ensure!(!writer.is_finished(), "granted beside a reader");
            if let Some(reader) = reader {
                reader.release().await?;
            }
        }
        soon("the writer's grant", writer).await???.release().await?;
        let sent = requests(cluster.node())? - before;
        let looks = sent - crowd as f64 - 1.0;
        ensure!(looks <= 14.0, "{looks} reads of a writer behind {crowd} readers");
    }
    Ok(())
}

async fn an_uncontended_reader_is_two_requests_and_two_proposals(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let lock = client.lock(name()).shared();
    let semaphore = client.semaphore(name(), 3);
    let applied = || metric(cluster.node(), "etcd_server_proposals_applied_total");
    acquire_free(&lock).await?.release().await?;
    let (before, proposals) = (requests(cluster.node())?, applied()?);
    let rounds = 20;
    for round in 0..rounds {
        match round % 4 {
            0 => lock.acquire().await?.release().await?,
            1 => acquire_free(&lock).await?.release().await?,
            2 => permit(&semaphore).await?.release().await?,
            _ => semaphore.try_acquire().await?.granted()?.release().await?,
        }
    }
    let sent = (requests(cluster.node())? - before) / f64::from(rounds);
    let proposals = (applied()? - proposals) / f64::from(rounds);
    ensure!(sent <= 2.05, "{sent} requests for an acquire and a release");
    // The lease of the opening ends meanwhile, by a proposal of the server.
    ensure!((1.9..2.2).contains(&proposals), "{proposals} proposals");
    Ok(())
}

async fn a_refused_reader_or_permit_writes_nothing(cluster: &Cluster) -> Result<()> {
    let one = tenure::connect(&cluster.url()).await?;
    let two = tenure::connect(&cluster.url()).await?;
    let (name, other) = (name(), name());
    let writer = acquire_free(&one.lock(&name)).await?;
    let held = permit(&one.semaphore(&other, 3).permits(2)).await?;
    let refused = async || {
        let lock = two.lock(&name).shared();
        let semaphore = two.semaphore(&other, 3).permits(2);
        let attempts =
            [lock.try_acquire().await?.map(drop), semaphore.try_acquire().await?.map(drop)];
        ensure!(attempts.iter().all(|attempt| matches!(attempt, Attempt::Busy(_))));
        anyhow::Ok(())
    };
    refused().await?;
    two.flush().await?;
    let before = revision(cluster.node())?;
    for _ in 0..10 {
        refused().await?;
    }
    two.flush().await?;
    let after = revision(cluster.node())?;
    ensure!(before == after, "refused tries changed revision {before} to {after}");
    writer.release().await?;
    held.release().await?;
    Ok(())
}

fn waiting(key: &Key, take: u32, of: u32) -> Result<Claim> {
    let mut claim = Claim::new(key.clone(), Owner::random(), Duration::from_secs(60));
    (claim.mode, claim.waits) = (Mode::permits(take, of)?, true);
    Ok(claim)
}

/// The watch begins after it.
async fn a_departure_before_the_wait_is_not_missed(cluster: &Cluster) -> Result<()> {
    let backend = cluster.url().parse::<Config>()?.open().await?;
    let key = Key::new(name())?;
    let (holder, waiter) = (waiting(&key, 2, 3)?, waiting(&key, 2, 3)?);
    backend.try_acquire(&holder).await?.granted()?;
    ensure!(matches!(backend.try_acquire(&waiter).await?, Attempt::Busy(_)));
    ensure!(backend.release(&holder).await?);
    soon("a hint", backend.until_free(&waiter)).await?;
    backend.try_acquire(&waiter).await?.granted()?;
    ensure!(backend.release(&waiter).await?);
    Ok(())
}

/// The client's watch has begun long before, and has told it to those that waited then.
async fn a_departure_that_others_were_told_before_is_not_missed(cluster: &Cluster) -> Result<()> {
    let backend = cluster.url().parse::<Config>()?.open().await?;
    let key = Key::new(name())?;
    let mut claims = Vec::new();
    for take in [2, 3, 1, 3, 1, 1, 5] {
        claims.push(waiting(&key, take, 5)?);
        drop(backend.try_acquire(&claims[claims.len() - 1]).await?);
    }
    let [_, leaves, next, big, first, second, last] = &claims[..] else {
        unreachable!("there are seven")
    };
    let hint = |claim: &Claim| {
        let (backend, claim) = (backend.clone(), claim.clone());
        tokio::spawn(async move { backend.until_free(&claim).await })
    };
    // It keeps the watch open.
    let stays = hint(last);
    let (told, told_first) = (hint(next), hint(first));
    ensure!(backend.release(leaves).await?);
    soon("the hint of the next", told).await??;
    backend.try_acquire(next).await?.granted()?;
    // The watch has begun, and what the second knows is later than that.
    ensure!(matches!(backend.try_acquire(second).await?, Attempt::Busy(_)));
    backend.release(big).await?;
    soon("the hint of the first", told_first).await??;
    ensure!(!stays.is_finished(), "more permits than there are");
    soon("the hint of the second", backend.until_free(second)).await?;
    for claim in [first, second] {
        backend.try_acquire(claim).await?.granted()?;
    }
    stays.abort();
    for claim in &claims {
        backend.release(claim).await?;
    }
    Ok(())
}

async fn many_holders_are_listed_and_one_of_them_evicted(cluster: &Cluster) -> Result<()> {
    let clients = clients(cluster).await?;
    let name = name();
    let lock = |at: usize| clients[at % 3].lock(&name).ttl(TTL);
    let many = 400;
    let mut readers = Vec::new();
    for at in 0..many {
        readers.push(soon("acquire", lock(at).shared().acquire()).await??);
    }
    let Attempt::Busy(busy) = soon("try", lock(0).try_acquire()).await?? else {
        anyhow::bail!("granted beside readers");
    };
    ensure!(busy.holders == many as u32, "{busy}");
    let writer = tokio::spawn(lock(1).acquire());
    until_waiters(&lock(0), 1).await?;
    let evicted = readers.swap_remove(many / 2);
    ensure!(soon("evict", lock(2).evict(evicted.token())).await??);
    soon("the loss", evicted.lost()).await?;
    let holding = soon("status", lock(0).status()).await??;
    let holding = holding.filter(|holding| holding.holders.len() == many - 1);
    let holding = holding.ok_or_else(|| anyhow::anyhow!("another was evicted as well"))?;
    ensure!(holding.holders.iter().all(|holder| holder.ttl_left.is_some()));
    ensure!(holding.holders.is_sorted_by_key(|holder| holder.token), "the oldest is first");
    for reader in readers {
        reader.check()?;
        ensure!(!writer.is_finished(), "a writer was granted beside a reader");
        reader.release().await?;
    }
    soon("the writer's grant", writer).await???.release().await?;
    Ok(())
}
