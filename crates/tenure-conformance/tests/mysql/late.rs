//! Requests that are executed late, and requests that cannot be executed: they shorten no lease,
//! revoke no release and delay no other request.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Mysql;
use tenure::{ErrorKind, Key};
use tenure_conformance::context::{soon, until};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::{acquire, admin, client, status};

server_cases! {
    a_delayed_request_never_shortens_the_lease Mariadb;
    a_renewal_of_another_grant_of_the_same_owner_is_refused Mariadb;
    a_locked_row_fails_only_its_own_renewal Mariadb;
}

/// The request is delayed at the floor, where a sweep would delay it; the renewal is not.
async fn a_delayed_request_never_shortens_the_lease(cluster: &Cluster) -> Result<()> {
    let mut compared = 0;
    for waits in [false, true] {
        let backend = Mysql::open(&format!("{}?mode=lease", cluster.url())).await?;
        let (mut foreign, mut reader) = (admin(cluster)?, admin(cluster)?);
        for number in 0..4 {
            let key = format!("k/{number}/{waits}");
            let mut claim = Claim::new(Key::new(&*key)?, Owner::random(), Duration::from_secs(9));
            claim.waits = waits;
            let token = backend.try_acquire(&claim).await?.granted().ok().context("free")?.token;
            foreign.query("START TRANSACTION")?;
            foreign.query("SELECT n FROM tenure_floor WHERE id=1 FOR UPDATE")?;
            let waiting = status(&mut reader, "INNODB_ROW_LOCK_WAITS")?;
            let late = tokio::spawn({
                let (backend, claim) = (backend.clone(), claim.clone());
                async move { backend.try_acquire(&claim).await }
            });
            let blocked = || {
                let waits = status(&mut reader, "INNODB_ROW_LOCK_WAITS");
                async move { Ok((waits? > waiting).then_some(())) }
            };
            until(Duration::from_secs(5), "the request to be delayed", blocked).await?;
            // A statement waits for a row for longer than this.
            tokio::time::sleep(Duration::from_millis(300)).await;
            claim.token = Some(token);
            let claims = [claim.clone()];
            let renewal = backend.renew(&claims);
            let renewed = tokio::time::timeout(Duration::from_millis(300), renewal).await;
            let sql = format!("SELECT until FROM tenure_lease WHERE k='{key}'");
            let before = reader.query(&sql)?;
            foreign.query("COMMIT")?;
            let late = soon("the late request", late).await???;
            ensure!(late.granted().is_ok_and(|grant| grant.token == token), "another grant");
            if matches!(renewed.as_deref(), Ok([Ok(_)])) {
                compared += 1;
                let after = reader.query(&sql)?;
                ensure!(after >= before, "{key}: from {before:?} back to {after:?}");
            }
            ensure!(backend.release(&claim).await?);
        }
    }
    ensure!(compared > 0, "no renewal came through");
    Ok(())
}

async fn a_renewal_of_another_grant_of_the_same_owner_is_refused(cluster: &Cluster) -> Result<()> {
    for mode in ["lease", "session", "row"] {
        let url = format!("{}?mode={mode}", cluster.url());
        let (one, two) = (Mysql::open(&url).await?, Mysql::open(&url).await?);
        let key = Key::new("k")?;
        let ttl = Duration::from_secs(20);
        let mut evicted = Claim::new(key.clone(), Owner::random(), ttl);
        let first = one.try_acquire(&evicted).await?.granted().ok().context("free")?.token;
        ensure!(two.evict(&key, first).await?, "{mode}: nothing to evict");
        let between = Claim::new(key.clone(), Owner::random(), ttl);
        let acquired = || async { Ok(two.try_acquire(&between).await?.granted().ok()) };
        // In `session` and `row` the evicted holder has to release the server's own lock first.
        evicted.token = Some(first);
        let renewed = one.renew(std::slice::from_ref(&evicted)).await;
        ensure!(renewed[0].is_err(), "{mode}: renewed after its eviction");
        until(Duration::from_secs(10), "the next grant", acquired).await.context(mode)?;
        ensure!(two.release(&between).await?);
        // The late request of the evicted claim.
        let again = || async { Ok(one.try_acquire(&evicted).await?.granted().ok()) };
        let again = until(Duration::from_secs(10), "the late grant", again).await?.token;
        ensure!(again > first, "{mode}: {again} after {first}");
        let renewed = one.renew(std::slice::from_ref(&evicted)).await.remove(0);
        let error =
            renewed.err().with_context(|| format!("{mode}: the evicted grant was renewed"))?;
        ensure!(error.kind() == ErrorKind::Lost, "{mode}: {error:?}");
        one.release(&evicted).await?;
    }
    Ok(())
}

/// The ttl is far shorter than the time for which the row is locked.
async fn a_locked_row_fails_only_its_own_renewal(cluster: &Cluster) -> Result<()> {
    let tables = [("lease", "tenure_lease"), ("session", "tenure_session"), ("row", "tenure_row")];
    for (mode, table) in tables {
        let locks = client(cluster, &format!("mode={mode}")).await?;
        let mut guards = Vec::new();
        for number in 0..10 {
            let lock = locks.lock(format!("{mode}/{number}")).ttl(Duration::from_secs(3));
            guards.push(acquire(&lock).await?);
        }
        let mut foreign = admin(cluster)?;
        foreign.query("START TRANSACTION")?;
        foreign.query(&format!("SELECT k FROM {table} WHERE k='{mode}/0' FOR UPDATE"))?;
        let _blocked = guards.remove(0);
        tokio::time::sleep(Duration::from_secs(6)).await;
        for guard in &guards {
            guard.check().with_context(|| format!("{mode}: lost with the row of another key"))?;
        }
        foreign.query("COMMIT")?;
        for guard in guards {
            soon("release", guard.release()).await??;
        }
    }
    Ok(())
}
