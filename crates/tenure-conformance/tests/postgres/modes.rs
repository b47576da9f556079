//! Shared locks and permits: the two forms of a row, what a run of readers costs, and the limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::backend::{Backend, Claim, Mode, Owner, Scope};
use tenure::backends::Postgres;
use tenure::{Attempt, FencingToken};
use tenure_conformance::context::{SOON, soon, until};
use tenure_servers::Cluster;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::model::{below, seed};
use crate::{LONGEST, cases, claim, connect, own_server, password, pooler, server, sql, unique};

cases! {
    both_forms_of_a_row_are_used,
    exclusive_claims_and_readers_meet_on_one_row,
    a_run_of_readers_is_one_statement_and_one_message_each,
    a_key_has_at_most_1024_holders,
    the_end_of_the_first_of_several_leases_is_the_time_to_try_again,
    what_readers_leave_is_swept,
    modes_work_behind_a_pooler,
}

pub(crate) fn with_mode(key: &str, mode: Mode) -> Result<Claim> {
    let mut claim = claim(key)?;
    claim.mode = mode;
    Ok(claim)
}

pub(crate) fn reader(key: &str) -> Result<Claim> {
    with_mode(key, Mode::Shared)
}

pub(crate) async fn acquire(backend: &Postgres, claim: &Claim) -> Result<FencingToken> {
    Ok(soon("acquire", backend.try_acquire(claim)).await??.granted()?.token)
}

pub(crate) fn form(cluster: &Cluster, key: &str) -> Result<String> {
    let text = format!(
        "SELECT coalesce(owner, 'free') || ' ' || jsonb_array_length(holders) || ' ' || \
         jsonb_array_length(queue) FROM tenure_lease WHERE key = convert_to('{key}', 'UTF8')"
    );
    sql(cluster, &text)?.pop().context("a row")
}

/// Exclusive claims acquire, queue and release while readers come and go on the row. What is in the
/// columns alone is what a client of an earlier version sees.
async fn both_forms_of_a_row_are_used() -> Result<()> {
    let cluster = server()?;
    let (one, two) = (Postgres::open(&cluster.url()).await?, Postgres::open(&cluster.url()).await?);
    let key = unique("k");
    let (mut writer, mut next) = (claim(&key)?, claim(&key)?);
    let (mut first, mut second) = (reader(&key)?, reader(&key)?);
    for claim in [&mut writer, &mut next, &mut first, &mut second] {
        claim.waits = true;
    }
    let owner = writer.owner;
    acquire(&one, &writer).await?;
    ensure!(form(cluster, &key)? == format!("{owner} 0 0"));
    ensure!(matches!(two.try_acquire(&first).await?, Attempt::Busy(_)));
    ensure!(matches!(one.try_acquire(&second).await?, Attempt::Busy(_)));
    ensure!(matches!(one.try_acquire(&next).await?, Attempt::Busy(_)));
    ensure!(form(cluster, &key)? == format!("{owner} 0 3"), "an exclusive holder stays in columns");
    // The client that releases has not seen that the row is mixed.
    let three = Postgres::open(&cluster.url()).await?;
    ensure!(three.release(&writer).await?);
    ensure!(form(cluster, &key)? == "~shared 2 1", "{}", form(cluster, &key)?);
    ensure!(two.release(&first).await?);
    ensure!(form(cluster, &key)? == "~shared 1 1");
    ensure!(two.release(&second).await?);
    let owner = next.owner;
    ensure!(form(cluster, &key)? == format!("{owner} 0 0"), "{}", form(cluster, &key)?);
    ensure!(one.release(&next).await?);
    ensure!(form(cluster, &key)? == "free 0 0");
    Ok(())
}

/// Exclusive claims acquire, try, queue, give up and release while readers come and go, over three
/// clients. Writers keep a pair of numbers equal; readers look at it.
async fn exclusive_claims_and_readers_meet_on_one_row() -> Result<()> {
    let cluster = server()?;
    let key = unique("k");
    let pair = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..12_u64 {
        let lock = connect(&cluster.url()).await?.lock(&key).ttl(Duration::from_secs(20));
        let pair = pair.clone();
        let mut state = seed() + number;
        tasks.spawn(async move {
            for _ in 0..25 {
                let is_reader = number % 3 == 0;
                let lock = if is_reader { lock.clone().shared() } else { lock.clone() };
                let patience = Duration::from_millis(below(&mut state, 60));
                let attempt = match below(&mut state, 4) {
                    0 => lock.try_acquire().await?,
                    1 => lock.acquire_within(patience).await?,
                    _ => Attempt::Granted(lock.acquire().await?),
                };
                let Attempt::Granted(mut guard) = attempt else { continue };
                let next = pair.0.load(SeqCst) + u64::from(!is_reader);
                pair.0.store(next, SeqCst);
                tokio::task::yield_now().await;
                let seen = (pair.0.load(SeqCst), pair.1.load(SeqCst));
                ensure!(seen == (next, next - u64::from(!is_reader)), "{seen:?} instead of {next}");
                pair.1.store(next, SeqCst);
                if below(&mut state, 4) == 0 {
                    guard.downgrade().await?;
                    tokio::task::yield_now().await;
                    ensure!(pair.0.load(SeqCst) == next, "a writer beside a reader");
                }
                guard.release().await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = soon("all rounds", tasks.join_next()).await? {
        ended??;
    }
    // The last exclusive release leaves a row that only the columns describe.
    let last = Postgres::open(&cluster.url()).await?;
    let claim = claim(&key)?;
    acquire(&last, &claim).await?;
    ensure!(last.release(&claim).await?);
    ensure!(form(cluster, &key)? == "free 0 0", "{}", form(cluster, &key)?);
    Ok(())
}

/// How often the server has notified a channel, and of what.
async fn listen(cluster: &Cluster, channel: &str) -> Result<UnboundedReceiver<String>> {
    let stream = tokio::net::TcpStream::connect(cluster.node().address()).await?;
    let mut login = tokio_postgres::Config::new();
    login.user("postgres").dbname("postgres").password(password(cluster)?);
    let (client, mut connection) = login.connect_raw(stream, NoTls).await?;
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let next = std::future::poll_fn(|context| connection.poll_message(context)).await;
            let Some(Ok(message)) = next else { return };
            if let AsyncMessage::Notification(one) = message
                && sender.send(one.payload().to_owned()).is_err()
            {
                return;
            }
        }
    });
    client.batch_execute(&format!("LISTEN {channel}")).await?;
    // The connection goes on for as long as its client.
    tokio::spawn(async move {
        let _client = client;
        std::future::pending::<()>().await;
    });
    Ok(receiver)
}

async fn a_run_of_readers_is_one_statement_and_one_message_each() -> Result<()> {
    let cluster = own_server()?;
    let holder = Postgres::open(&cluster.url()).await?;
    let waiting = Postgres::open(&cluster.url()).await?;
    let mut writes = 0;
    for count in [1_usize, 10, 100] {
        let key = format!("run/{count}");
        let mut writer = claim(&key)?;
        writer.ttl = Duration::from_secs(3600);
        let before = acquire(&holder, &writer).await?;
        let mut readers = Vec::new();
        for _ in 0..count {
            let mut reader = reader(&key)?;
            (reader.waits, reader.ttl) = (true, writer.ttl);
            ensure!(matches!(waiting.try_acquire(&reader).await?, Attempt::Busy(_)));
            readers.push(reader);
        }
        let channel =
            sql(&cluster, &format!("SELECT queue->0->>'c' FROM tenure_lease WHERE key = '{key}'"))?;
        let mut messages = listen(&cluster, channel.first().context("a waiter")?).await?;
        writes = until_written(&cluster, writes + 1 + count as u64).await?;
        ensure!(holder.release(&writer).await?);
        let mut tokens = Vec::new();
        for reader in &readers {
            let pushed = soon("the push", waiting.until_free(reader)).await?;
            tokens.push(pushed.context("a push is the grant")?.token.get());
        }
        let first = tokens[0];
        ensure!(first > before.get() + 1023, "{first} is in the range of {before}");
        ensure!((first..).take(count).eq(tokens.iter().copied()), "{tokens:?}");
        let after = until_written(&cluster, writes + 1).await?;
        println!("{count} readers: {} writes for their handoff", after - writes);
        ensure!(after == writes + 1, "{} writes", after - writes);
        // A message to each; then what the next statement pushes: nothing to those that hold.
        let late = reader(&key)?;
        acquire(&holder, &late).await?;
        ensure!(holder.release(&late).await?);
        holder.evict(&late.key, FencingToken::new(first).context("a token")?).await?;
        let mut seen = Vec::new();
        for _ in 0..=count {
            seen.push(soon("a message", messages.recv()).await?.context("it listens")?);
        }
        let lost = seen.pop();
        ensure!(lost.is_some_and(|text| text.starts_with("lost ")), "{seen:?}");
        ensure!(seen.iter().all(|text| text.starts_with("grant ")), "{seen:?}");
        seen.sort();
        seen.dedup();
        ensure!(seen.len() == count, "{seen:?}");
        writes = after + 3;
    }
    Ok(())
}

/// Waits until so many writes have been counted: an idle server process reports its statistics ten
/// seconds late.
async fn until_written(cluster: &Cluster, count: u64) -> Result<u64> {
    let text = "SELECT n_tup_upd + n_tup_ins FROM pg_stat_user_tables \
                WHERE relname = 'tenure_lease'";
    until(LONGEST / 3, &format!("{count} writes"), || async {
        let written = sql(cluster, text).ok().and_then(|rows| rows.first()?.parse().ok());
        Ok(written.filter(|written: &u64| *written >= count))
    })
    .await
}

async fn a_key_has_at_most_1024_holders() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let first = reader("k")?;
    acquire(&backend, &first).await?;
    sql(
        &cluster,
        "UPDATE tenure_lease SET holders = holders || (SELECT jsonb_agg(holders->0 \
         || jsonb_build_object('o', 'other-' || n, 't', n)) FROM generate_series(1, 1023) n)",
    )?;
    let mut late = reader("k")?;
    for waits in [false, true] {
        late.waits = waits;
        let attempt = soon("acquire", backend.try_acquire(&late)).await??;
        let Attempt::Busy(busy) = attempt else { bail!("1025 holders") };
        ensure!(busy.holders == 1024 && busy.ahead == waits.then_some(0), "{busy:?}");
    }
    ensure!(soon("release", backend.release(&first)).await??);
    let pushed = soon("the push", backend.until_free(&late)).await?;
    ensure!(pushed.is_some(), "the waiter was not granted");
    let holdings = soon("list", backend.list(Scope::Key(&late.key))).await??;
    ensure!(holdings[0].holders.len() == 1024 && holdings[0].waiters.is_empty());
    Ok(())
}

async fn the_end_of_the_first_of_several_leases_is_the_time_to_try_again() -> Result<()> {
    let backend = Postgres::open(&server()?.url()).await?;
    let key = unique("k");
    let (long, mut short) = (reader(&key)?, reader(&key)?);
    short.ttl = Duration::from_secs(5);
    acquire(&backend, &long).await?;
    acquire(&backend, &short).await?;
    let mut writer = claim(&key)?;
    writer.waits = true;
    let Attempt::Busy(busy) = backend.try_acquire(&writer).await? else { bail!("two kinds") };
    ensure!(busy.retry_after.is_some_and(|after| after <= short.ttl), "{busy:?}");
    // Behind a waiter whose entry ends first, that is the time.
    let mut next = reader(&key)?;
    (next.waits, writer.ttl) = (true, Duration::from_secs(1));
    ensure!(!backend.release(&writer).await?);
    writer.owner = Owner::random();
    ensure!(matches!(backend.try_acquire(&writer).await?, Attempt::Busy(_)));
    let Attempt::Busy(busy) = backend.try_acquire(&next).await? else { bail!("it overtook") };
    ensure!(busy.retry_after.is_some_and(|after| after <= writer.ttl), "{busy:?}");
    Ok(())
}

async fn what_readers_leave_is_swept() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&format!("{}?sweep=50ms", cluster.url())).await?;
    let (held, ends) = (reader("held")?, reader("ended")?);
    acquire(&backend, &held).await?;
    acquire(&backend, &ends).await?;
    sql(
        &cluster,
        "UPDATE tenure_lease SET until = now() - interval '2 minutes', \
         holders = jsonb_set(holders, '{0,u}', to_jsonb(now() - interval '2 minutes')) \
         WHERE key = 'ended'",
    )?;
    // A tombstone is kept for as long as it lasts, also on a row that was free for long.
    let mut cancelled = claim("cancelled")?;
    let before = claim("cancelled")?;
    acquire(&backend, &before).await?;
    ensure!(backend.release(&before).await?);
    cancelled.unconfirmed = true;
    backend.release(&cancelled).await?;
    sql(
        &cluster,
        "UPDATE tenure_lease SET until = now() - interval '2 minutes' WHERE key = 'cancelled'",
    )?;
    until(SOON, "the sweep", || async {
        let rows = sql(&cluster, "SELECT convert_from(key, 'UTF8') FROM tenure_lease ORDER BY 1")?;
        Ok((!rows.contains(&"ended".to_owned())).then_some(rows))
    })
    .await
    .and_then(|rows| {
        ensure!(rows == ["cancelled", "held"], "{rows:?}");
        Ok(())
    })?;
    let late = backend.try_acquire(&cancelled).await?;
    ensure!(matches!(late, Attempt::Busy(_)), "a cancelled claim holds the key");
    Ok(())
}

async fn modes_work_behind_a_pooler() -> Result<()> {
    let cluster = server()?;
    let port = pooler::start(cluster.node().port())?;
    let url =
        format!("postgres://postgres:{}@127.0.0.1:{port}/postgres?pooler=yes", password(cluster)?);
    let backend = Postgres::open(&url).await?;
    let key = unique("k");
    let mut writer = claim(&key)?;
    writer.token = Some(acquire(&backend, &writer).await?);
    let mut waiting = reader(&key)?;
    waiting.waits = true;
    ensure!(matches!(backend.try_acquire(&waiting).await?, Attempt::Busy(_)));
    let mut shared = writer.clone();
    shared.mode = Mode::Shared;
    ensure!(Some(acquire(&backend, &shared).await?) == writer.token);
    let token = acquire(&backend, &waiting).await?;
    for renewed in backend.renew(&[writer.clone(), waiting.clone()]).await {
        renewed?;
    }
    ensure!(backend.release(&writer).await?);
    ensure!(backend.evict(&waiting.key, token).await?);
    acquire(&backend, &with_mode(&key, Mode::permits(2, 3)?)?).await?;
    Ok(())
}
