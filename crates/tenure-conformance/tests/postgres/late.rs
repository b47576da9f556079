//! Requests and pushed messages that arrive late, in any order: none may shorten a lease, reverse
//! an eviction or make a second holder.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tenure::backend::{Backend, Claim, HolderInfo, Owner, Scope};
use tenure::backends::Postgres;
use tenure::{Attempt, ErrorKind, Key};
use tenure_conformance::context::{SOON, acquire_free, soon, until, until_waiters};
use tenure_servers::Cluster;
use tenure_servers::wire::postgres::Postgres as Wire;

use crate::{cases, claim, connect, own_server, server, sql, unique};

/// By how much a request is older than the next one.
const OLDER: Duration = Duration::from_millis(300);

cases! {
    a_late_request_does_not_shorten_the_lease,
    a_late_request_does_not_shorten_a_queue_entry,
    a_renewal_with_a_shorter_ttl_does_not_shorten_the_lease,
    a_push_from_before_an_outage_makes_no_second_holder,
    a_pushed_grant_that_a_busy_response_overtook_is_ignored,
    a_pushed_grant_is_ignored_after_its_eviction,
    a_renewal_of_an_evicted_grant_is_refused_after_a_late_request,
}

/// Delays inserts whose note is `held-up`, after everything in them was computed and before they
/// are carried out, until the test resumes them.
pub(crate) struct DelayedInserts(Wire);

impl DelayedInserts {
    pub(crate) fn start(cluster: &Cluster, table: &str) -> Result<DelayedInserts> {
        let mut wire = Wire::connect(cluster.node().port())?;
        wire.query("SELECT pg_advisory_lock(4711)")?;
        wire.query(&format!(
            "CREATE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF NEW::text LIKE '%held-up%' THEN PERFORM pg_advisory_xact_lock_shared(4711);
               END IF; RETURN NEW; END $$;
             CREATE TRIGGER held_up BEFORE INSERT ON {table}
               FOR EACH ROW EXECUTE FUNCTION held_up()"
        ))?;
        Ok(DelayedInserts(wire))
    }

    /// Returns when a request is delayed.
    pub(crate) async fn until_delayed(&self, cluster: &Cluster) -> Result<()> {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        until(SOON, "a request that is delayed", || async {
            Ok((sql(cluster, waiting)? == ["1"]).then_some(()))
        })
        .await
    }

    pub(crate) fn resume(mut self) -> Result<()> {
        self.0.query("SELECT pg_advisory_unlock(4711)").map(drop)?;
        Ok(())
    }
}

/// A request of the same claim that will be delayed.
pub(crate) fn delayed_request(claim: &Claim) -> Claim {
    let mut late = claim.clone();
    late.holder_info = HolderInfo::new("held-up", "", 0, "");
    late
}

/// Two requests of one claim: the earlier one is carried out last.
async fn a_late_request_does_not_shorten_the_lease() -> Result<()> {
    let cluster = own_server()?;
    let (one, two) = (Postgres::open(&cluster.url()).await?, Postgres::open(&cluster.url()).await?);
    let claim = claim("k")?;
    let delayed = DelayedInserts::start(&cluster, "tenure_lease")?;
    let late = delayed_request(&claim);
    let late = tokio::spawn(async move { one.try_acquire(&late).await });
    delayed.until_delayed(&cluster).await?;
    // The earlier request is older by this much, by which it could shorten the lease.
    tokio::time::sleep(OLDER).await;
    let sent = Instant::now();
    let grant = two.try_acquire(&claim).await?.granted()?;
    delayed.resume()?;
    let again = soon("the late response", late).await???.granted()?;
    ensure!(again.token == grant.token, "{again:?} {grant:?}");
    let left = left(&two, &claim.key).await?;
    ensure!(Instant::now() + left >= sent + grant.ttl, "the lease was cut to {left:?}");
    Ok(())
}

async fn left(backend: &Postgres, key: &Key) -> Result<Duration> {
    let holdings = backend.list(Scope::Key(key)).await?;
    holdings.first().and_then(|holding| holding.holder().ttl_left).context("a lease")
}

async fn a_late_request_does_not_shorten_a_queue_entry() -> Result<()> {
    for mode in ["lease", "session", "row"] {
        let cluster = own_server()?;
        let url = format!("{}?mode={mode}", cluster.url());
        let (one, two) = (Postgres::open(&url).await?, Postgres::open(&url).await?);
        let (holder, mut waiter) = (claim("k")?, claim("k")?);
        waiter.waits = true;
        two.try_acquire(&holder).await?.granted()?;
        let table = if mode == "lease" { "tenure_lease" } else { "tenure_board" };
        let delayed = DelayedInserts::start(&cluster, table)?;
        let late = delayed_request(&waiter);
        let late = tokio::spawn(async move { one.try_acquire(&late).await });
        delayed.until_delayed(&cluster).await?;
        tokio::time::sleep(OLDER).await;
        ensure!(matches!(two.try_acquire(&waiter).await?, Attempt::Busy(_)), "{mode}");
        let end = format!("SELECT queue->0->>'u' FROM {table}");
        let before = sql(&cluster, &end)?;
        delayed.resume()?;
        ensure!(matches!(soon("the late response", late).await???, Attempt::Busy(_)), "{mode}");
        let after = sql(&cluster, &end)?;
        ensure!(after >= before, "{mode}: the queue entry ended at {before:?}, now at {after:?}");
    }
    Ok(())
}

async fn a_renewal_with_a_shorter_ttl_does_not_shorten_the_lease() -> Result<()> {
    let backend = Postgres::open(&server()?.url()).await?;
    let mut claim = claim(&unique("k"))?;
    let sent = Instant::now();
    let grant = backend.try_acquire(&claim).await?.granted()?;
    claim.token = Some(grant.token);
    claim.ttl = Duration::from_secs(1);
    backend.renew(std::slice::from_ref(&claim)).await.remove(0)?;
    let left = left(&backend, &claim.key).await?;
    ensure!(Instant::now() + left >= sent + grant.ttl, "the lease was cut to {left:?}");
    Ok(())
}

/// The waiter's connection is cut for longer than its ttl. Meanwhile it is granted the lock, its
/// lease ends, and another waiter gets it. Then the connection works again, and the old push
/// arrives.
async fn a_push_from_before_an_outage_makes_no_second_holder() -> Result<()> {
    let cluster = server()?;
    let proxy = cluster.node().proxy()?;
    let url = format!("{}?outage=1m", cluster.node().url_at(&proxy.address()));
    let (steady, shaky) = (connect(&cluster.url()).await?, connect(&url).await?);
    let key = unique("k");
    let first = acquire_free(&steady.lock(&key)).await?;
    let ttl = Duration::from_secs(2);
    let waiter = tokio::spawn(shaky.lock(&key).ttl(ttl).acquire());
    until_waiters(&steady.lock(&key), 1).await?;
    let next = tokio::spawn(steady.lock(&key).ttl(ttl).acquire());
    until_waiters(&steady.lock(&key), 2).await?;
    proxy.cut();
    soon("release", first.release()).await??;
    // The lease of the waiter that is cut off ends, and the next one gets the lock.
    let held = soon("the next one's grant", next).await???;
    proxy.heal();
    if let Ok(stale) = tokio::time::timeout(ttl * 2, waiter).await {
        bail!("token {} is held beside {}", stale??.token(), held.token());
    }
    held.check()?;
    Ok(())
}

/// The stale push arrives over another connection than the response, and after it.
async fn a_pushed_grant_that_a_busy_response_overtook_is_ignored() -> Result<()> {
    let cluster = server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let holder = claim(&unique("k"))?;
    let mut waiter = Claim::new(holder.key.clone(), Owner::random(), holder.ttl);
    waiter.waits = true;
    let old = backend.try_acquire(&holder).await?.granted()?.token;
    ensure!(backend.release(&holder).await?);
    let holder = Claim::new(holder.key.clone(), Owner::random(), holder.ttl);
    let new = backend.try_acquire(&holder).await?.granted()?.token;
    ensure!(matches!(backend.try_acquire(&waiter).await?, Attempt::Busy(_)));
    let push = |token| {
        let owner = waiter.owner;
        let key = holder.key.as_str();
        sql(
            cluster,
            &format!(
                "SELECT pg_notify(queue->0->>'c', 'grant {owner} {token}') FROM tenure_lease \
                 WHERE key = convert_to('{key}', 'UTF8')"
            ),
        )
    };
    for stale in [old, new] {
        push(stale)?;
        let pushed = tokio::time::timeout(Duration::from_millis(300), backend.until_free(&waiter));
        if let Ok(Some(grant)) = pushed.await {
            bail!("token {} was accepted beside {new}", grant.token);
        }
    }
    // A newer one is a grant.
    ensure!(backend.release(&holder).await?);
    let pushed = soon("the push", backend.until_free(&waiter)).await?;
    ensure!(pushed.context("a grant")?.token > new);
    Ok(())
}

async fn a_pushed_grant_is_ignored_after_its_eviction() -> Result<()> {
    let (one, two) =
        (Postgres::open(&server()?.url()).await?, Postgres::open(&server()?.url()).await?);
    let holder = claim(&unique("k"))?;
    let other = Claim::new(holder.key.clone(), Owner::random(), holder.ttl);
    let mut waiter = Claim::new(holder.key.clone(), Owner::random(), holder.ttl);
    waiter.waits = true;
    two.try_acquire(&holder).await?.granted()?;
    ensure!(matches!(one.try_acquire(&waiter).await?, Attempt::Busy(_)));
    ensure!(two.release(&holder).await?);
    let granted = two.list(Scope::Key(&holder.key)).await?;
    let token = granted.first().and_then(|holding| holding.holder().token).context("a grant")?;
    ensure!(two.evict(&holder.key, token).await?);
    let new = two.try_acquire(&other).await?.granted()?.token;
    ensure!(matches!(one.try_acquire(&waiter).await?, Attempt::Busy(_)));
    // The push of the evicted grant arrived before that response.
    let pushed = tokio::time::timeout(Duration::from_millis(300), one.until_free(&waiter)).await;
    if let Ok(Some(grant)) = pushed {
        bail!("the evicted token {} was accepted beside {new}", grant.token);
    }
    Ok(())
}

/// A claim is evicted, another holds in between, and then a late request of the evicted claim is
/// carried out: the same owner, another grant.
async fn a_renewal_of_an_evicted_grant_is_refused_after_a_late_request() -> Result<()> {
    for mode in ["lease", "session", "row"] {
        let url = format!("{}?mode={mode}", server()?.url());
        let (one, two) = (Postgres::open(&url).await?, Postgres::open(&url).await?);
        let mut evicted = claim(&unique("k"))?;
        let first = one.try_acquire(&evicted).await?.granted()?.token;
        ensure!(two.evict(&evicted.key, first).await?, "{mode}");
        let between = Claim::new(evicted.key.clone(), Owner::random(), evicted.ttl);
        let token = two.try_acquire(&between).await?.granted()?.token;
        ensure!(two.release(&between).await?, "{mode}");
        let late = one.try_acquire(&evicted).await?.granted()?.token;
        ensure!(first < token && token < late, "{mode}");
        evicted.token = Some(first);
        let renewed = one.renew(std::slice::from_ref(&evicted)).await.remove(0);
        let kind = renewed.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Lost), "{mode}: token {first} was renewed: {kind:?}");
        evicted.token = Some(late);
        one.renew(std::slice::from_ref(&evicted)).await.remove(0).context(mode)?;
        ensure!(one.release(&evicted).await?, "{mode}");
    }
    Ok(())
}
