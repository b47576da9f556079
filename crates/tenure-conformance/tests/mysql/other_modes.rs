//! Readers and permits: how they are woken and what that costs, packets that fail or come late, and
//! what is left in the tables.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Mode, Owner};
use tenure::backends::Mysql;
use tenure::{Attempt, Client, ErrorKind, Key};
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::traffic::Counter;
use crate::wake_ups::StatementLog;
use crate::{acquire, admin, client, status};

server_cases! {
    every_reader_of_a_run_is_woken Mariadb;
    readers_are_handed_a_key_in_few_statements Mariadb;
    a_packet_that_fails_in_the_middle_leaves_nothing Mariadb;
    a_locked_row_fails_only_the_renewal_of_its_reader Mariadb;
    a_delayed_request_never_shortens_the_lease_of_a_reader Mariadb;
    a_reader_ends_no_later_than_the_row_of_its_key Mariadb;
    an_evicted_reader_is_not_renewed_with_a_later_grant Mariadb;
    tokens_grow_after_the_rows_of_readers_were_swept Mariadb;
    nothing_is_left_of_readers_and_permits Mariadb;
}

/// So long that no waiter requests again, and no lease ends, during a case.
const LONG: Duration = Duration::from_secs(120);

fn claim(key: &str, mode: Mode, ttl: Duration) -> Result<Claim> {
    let mut claim = Claim::new(Key::new(key)?, Owner::random(), ttl);
    claim.mode = mode;
    Ok(claim)
}

/// Each reader has a client of its own. Counted at the server, because a poll would find the grant
/// as well, only later.
async fn every_reader_of_a_run_is_woken(cluster: &Cluster) -> Result<()> {
    let mut log = StatementLog::start(cluster)?;
    let writer = client(cluster, "").await?.lock("k").ttl(LONG);
    let guard = acquire(&writer).await?;
    let mut waiting = Vec::new();
    for count in 1..=6 {
        let lock = client(cluster, "").await?.lock("k").ttl(LONG).shared();
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        until_waiters(&writer, count).await?;
    }
    log.until_waiting(6).await?;
    let before = log.wake_ups()?;
    let started = tokio::time::Instant::now();
    guard.release().await?;
    let mut readers = Vec::new();
    for waiter in waiting {
        readers.push(soon("a reader's grant", waiter).await???);
    }
    println!("6 readers after {:?}", started.elapsed());
    let sent = log.wake_ups()? - before;
    // The short handoff, which is tried first, sends one that wakes no client.
    ensure!(sent == 7, "{sent} wake-ups");
    let mut tokens: Vec<_> = readers.iter().map(|reader| reader.token()).collect();
    tokens.sort();
    tokens.dedup();
    ensure!(tokens.len() == 6, "{tokens:?}");
    for reader in readers {
        reader.release().await?;
    }
    Ok(())
}

/// A writer hands off to readers of eight clients, and the last of them to a writer.
async fn readers_are_handed_a_key_in_few_statements(cluster: &Cluster) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(client(cluster, "sweep=0s").await?);
    }
    let mut counter = Counter::new(cluster)?;
    for readers in [1, 10, 100] {
        let (handoff, all) = hand_to_readers(&clients, readers, &mut counter).await?;
        println!("{readers} readers: {handoff} statements to hand off, {all} with their releases");
        // One packet, for each client a wake-up, a poll and its wake connection, and polls now and
        // then: not one for each reader.
        ensure!(handoff < 100, "{readers} readers took {handoff} statements");
    }
    Ok(())
}

async fn hand_to_readers(
    clients: &[Client],
    readers: usize,
    counter: &mut Counter,
) -> Result<(u64, u64)> {
    let lock = clients[0].lock("k").ttl(LONG);
    let guard = acquire(&lock).await?;
    let mut waiting = Vec::new();
    for number in 0..readers {
        let lock = clients[number % clients.len()].lock("k").ttl(LONG).shared();
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
    }
    until_waiters(&lock, readers).await?;
    counter.next()?;
    guard.release().await?;
    let mut held = Vec::new();
    for waiter in waiting {
        held.push(soon("a reader's grant", waiter).await???);
    }
    let handoff = counter.next()?;
    for reader in held {
        reader.release().await?;
    }
    Ok((handoff, handoff + counter.next()?))
}

/// A foreign client has locked a row of `tenure_holder`, which the packet reaches after it has
/// entered the queue.
async fn a_packet_that_fails_in_the_middle_leaves_nothing(cluster: &Cluster) -> Result<()> {
    let backend = Mysql::open(&cluster.url()).await?;
    let reader = claim("k", Mode::Shared, LONG)?;
    let token = backend.try_acquire(&reader).await?.granted().ok().context("free")?.token;
    let (mut foreign, mut watcher) = (admin(cluster)?, admin(cluster)?);
    foreign.query("START TRANSACTION")?;
    foreign.query("SELECT k FROM tenure_holder WHERE k='k' FOR UPDATE")?;
    let before = watcher.query("SELECT CONCAT(owner,' ',token,' ',until) FROM tenure_lease")?;
    let mut writer = claim("k", Mode::Exclusive, Duration::from_secs(4))?;
    writer.waits = true;
    let failed = soon("the failure", backend.try_acquire(&writer)).await?.map(drop);
    let failed = failed.err().context("it did not need the row")?;
    ensure!(failed.kind() == ErrorKind::Unavailable, "{failed}");
    let after = watcher.query("SELECT CONCAT(owner,' ',token,' ',until) FROM tenure_lease")?;
    ensure!(before == after, "{before:?} became {after:?}");
    ensure!(watcher.query("SELECT owner FROM tenure_waiter")?.is_empty(), "an entry is left");
    foreign.query("COMMIT")?;
    ensure!(matches!(backend.try_acquire(&writer).await?, Attempt::Busy(_)));
    let again = backend.try_acquire(&reader).await?.granted().ok().context("it holds")?;
    ensure!(again.token == token);
    ensure!(backend.release(&reader).await?);
    let granted = backend.try_acquire(&writer).await?.granted().ok().context("handed off")?;
    ensure!(granted.token > token);
    ensure!(backend.release(&writer).await?);
    Ok(())
}

/// The row of one key is locked for far longer than the leases are.
async fn a_locked_row_fails_only_the_renewal_of_its_reader(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "").await?;
    let ttl = Duration::from_secs(3);
    for (table, first) in [("tenure_lease", "a"), ("tenure_holder", "b")] {
        let mut guards = Vec::new();
        for number in 0..8 {
            let lock = locks.lock(format!("{first}/{number}")).ttl(ttl);
            // Some of them are exclusive.
            let lock = if number % 3 == 2 { lock } else { lock.shared() };
            guards.push(acquire(&lock).await?);
        }
        let mut foreign = admin(cluster)?;
        foreign.query("START TRANSACTION")?;
        foreign.query(&format!("SELECT k FROM {table} WHERE k='{first}/0' FOR UPDATE"))?;
        let blocked = guards.remove(0);
        soon("the loss", blocked.lost()).await?;
        for guard in &guards {
            guard.check().with_context(|| format!("{table}: lost with another key"))?;
        }
        foreign.query("COMMIT")?;
        for guard in guards {
            soon("release", guard.release()).await??;
        }
    }
    Ok(())
}

/// The request is delayed at the floor, where a sweep would delay it; the renewal is not.
async fn a_delayed_request_never_shortens_the_lease_of_a_reader(cluster: &Cluster) -> Result<()> {
    let backend = Mysql::open(&cluster.url()).await?;
    let mut reader = claim("k", Mode::Shared, LONG)?;
    reader.token = Some(backend.try_acquire(&reader).await?.granted().ok().context("free")?.token);
    let (mut foreign, mut watcher) = (admin(cluster)?, admin(cluster)?);
    foreign.query("START TRANSACTION")?;
    foreign.query("SELECT n FROM tenure_floor WHERE id=1 FOR UPDATE")?;
    let waiting = status(&mut watcher, "INNODB_ROW_LOCK_WAITS")?;
    let late = tokio::spawn({
        let (backend, mut claim) = (backend.clone(), reader.clone());
        (claim.token, claim.ttl) = (None, Duration::from_secs(9));
        async move { backend.try_acquire(&claim).await }
    });
    let blocked = || {
        let waits = status(&mut watcher, "INNODB_ROW_LOCK_WAITS");
        async move { Ok((waits? > waiting).then_some(())) }
    };
    until(SOON, "the request to be delayed", blocked).await?;
    let renewed = soon("renewal", backend.renew(std::slice::from_ref(&reader))).await?;
    ensure!(renewed[0].is_ok(), "{renewed:?}");
    let ends = "SELECT CONCAT(l.until,' ',h.until) FROM tenure_lease l JOIN tenure_holder h \
                ON h.k=l.k";
    let before = watcher.query(ends)?;
    foreign.query("COMMIT")?;
    let late = soon("the late request", late).await???;
    ensure!(late.granted().is_ok_and(|grant| Some(grant.token) == reader.token), "another grant");
    let after = watcher.query(ends)?;
    ensure!(before == after, "from {before:?} to {after:?}");
    ensure!(backend.release(&reader).await?);
    Ok(())
}

/// What frees the row for an exclusive claim would otherwise leave a reader beside it.
async fn a_reader_ends_no_later_than_the_row_of_its_key(cluster: &Cluster) -> Result<()> {
    let backend = Mysql::open(&cluster.url()).await?;
    let mut admin = admin(cluster)?;
    let ttl = |number: u64| Duration::from_millis(2000 + 777 * (number * 5 % 7));
    let mut readers = Vec::new();
    for number in 0..7 {
        let mut reader = claim("k", Mode::Shared, ttl(number))?;
        let grant = backend.try_acquire(&reader).await?.granted().ok().context("it fits")?;
        reader.token = Some(grant.token);
        readers.push(reader);
    }
    let wrong = "SELECT COUNT(*) FROM tenure_lease l JOIN tenure_holder h ON h.k=l.k \
                 WHERE h.until>l.until";
    for round in 0..20 {
        let renewed = backend.renew(&readers[round % 3..]).await;
        ensure!(renewed.iter().all(Result::is_ok), "{renewed:?}");
        ensure!(admin.query(wrong)? == ["0"], "a reader outlives its row");
    }
    for reader in &readers {
        ensure!(backend.release(reader).await?);
        ensure!(admin.query(wrong)? == ["0"], "a reader outlives its row");
    }
    Ok(())
}

async fn an_evicted_reader_is_not_renewed_with_a_later_grant(cluster: &Cluster) -> Result<()> {
    let backend = Mysql::open(&cluster.url()).await?;
    let mut evicted = claim("k", Mode::Shared, LONG)?;
    let first = backend.try_acquire(&evicted).await?.granted().ok().context("free")?.token;
    ensure!(backend.evict(&evicted.key, first).await?);
    let again = backend.try_acquire(&evicted).await?.granted().ok().context("free")?.token;
    ensure!(again > first);
    evicted.token = Some(first);
    let renewed = backend.renew(std::slice::from_ref(&evicted)).await.remove(0);
    let error = renewed.err().context("the evicted grant was renewed")?;
    ensure!(error.kind() == ErrorKind::Lost, "{error}");
    ensure!(backend.release(&evicted).await?);
    Ok(())
}

async fn tokens_grow_after_the_rows_of_readers_were_swept(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "sweep=20ms").await?;
    let mut admin = admin(cluster)?;
    let mut last = None;
    for _ in 0..3 {
        // The first one is never released.
        let left = Mysql::open(&cluster.url()).await?;
        let reader = claim("k", Mode::Shared, LONG)?;
        let first = left.try_acquire(&reader).await?.granted().ok().context("free")?.token;
        ensure!(Some(first) > last, "{first} after {last:?}");
        let second = acquire(&locks.lock("k").shared()).await?;
        last = Some(second.token());
        ensure!(last > Some(first));
        second.release().await?;
        for table in ["tenure_lease", "tenure_holder"] {
            admin.query(&format!("UPDATE {table} SET until=until-INTERVAL 5 MINUTE"))?;
        }
        let empty = || {
            let rows = admin.query("SELECT k FROM tenure_lease UNION SELECT k FROM tenure_holder");
            async { Ok(rows?.is_empty().then_some(())) }
        };
        until(SOON, "the sweep", empty).await?;
    }
    Ok(())
}

async fn nothing_is_left_of_readers_and_permits(cluster: &Cluster) -> Result<()> {
    let locks = client(cluster, "").await?;
    for _ in 0..3 {
        let mut writer = acquire(&locks.lock("k")).await?;
        let waiting = tokio::spawn(locks.lock("k").shared().acquire());
        until_waiters(&locks.lock("k"), 1).await?;
        writer.downgrade().await?;
        let reader = soon("the reader's grant", waiting).await???;
        writer.release().await?;
        reader.release().await?;
        let permit = soon("permits", locks.semaphore("s", 3).permits(2).acquire()).await??;
        let waiting = tokio::spawn(locks.semaphore("s", 3).permits(3).acquire());
        until_waiters(&locks.lock("s"), 1).await?;
        permit.release().await?;
        soon("permits", waiting).await???.release().await?;
    }
    let mut admin = admin(cluster)?;
    ensure!(admin.query("SELECT k FROM tenure_holder")?.is_empty(), "holders are left");
    ensure!(admin.query("SELECT k FROM tenure_waiter")?.is_empty(), "queue entries are left");
    let held = "SELECT k FROM tenure_lease WHERE owner<>'' OR queued<>0";
    ensure!(admin.query(held)?.is_empty(), "rows are left held");
    Ok(())
}
