//! What only PostgreSQL can be put through: killed sessions, a server that is killed and comes
//! back, lost answers, other isolation levels and time zones, and a table full of expired rows.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Postgres;
use tenure::{Attempt, Client, Config, ErrorKind, FencingToken, Grade, Key, LostReason};
use tenure_conformance::bench::{soon, take, until_waiters, within};
use tenure_servers::wire::postgres::Postgres as Wire;
use tenure_servers::{Cluster, Options, Topology};

type Test = fn() -> futures_util::future::BoxFuture<'static, Result<()>>;

/// A trial per function, with its name.
macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        vec![$((stringify!($name), (|| Box::pin($name())) as Test)),+]
    };
}

fn main() {
    let tests = tests![
        a_late_request_takes_nothing_after_its_withdrawal,
        a_lost_answer_costs_no_lock_and_no_token,
        a_killed_server_comes_back_with_the_same_locks_and_higher_tokens,
        a_terminated_session_is_a_lost_lock_at_once,
        a_terminated_transaction_is_a_lost_lock_at_once,
        a_terminated_listener_is_replaced_and_the_waiter_served,
        an_eviction_from_a_session_spares_its_other_locks,
        other_isolation_levels_change_nothing,
        time_zones_do_not_matter,
        a_million_expired_rows_do_not_slow_a_take_down,
        a_sweep_removes_what_expired_and_keeps_what_is_held,
        keys_that_differ_in_a_byte_are_different_locks,
        connections_do_not_grow_with_locks_and_waiters,
        a_user_without_rights_is_told_what_to_do,
        a_hand_over_is_one_statement,
        a_foreign_advisory_lock_is_respected,
        a_hung_transaction_of_others_is_reported_as_unavailable,
        doctor_names_what_is_wrong,
        a_transaction_pooler_is_found_out,
    ];
    let missing = shared().as_ref().err().map(|reason| format!("{reason:#}"));
    let trials = tests.into_iter().map(|(name, test)| match &missing {
        None => Trial::test(name, move || run(test)),
        Some(reason) => {
            let (name, reason) = (format!("{name} (could not be had: {reason})"), reason.clone());
            Trial::test(name, move || Err(reason.into()))
                .with_ignored_flag(!tenure_servers::require("postgres"))
        }
    });
    let trials = trials.collect();
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    libtest_mimic::run(&arguments, trials).exit();
}

fn run(test: Test) -> Result<(), Failed> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(LONGEST, test()).await })??;
    Ok(())
}

fn shared() -> &'static tenure_servers::Result<Cluster> {
    static SHARED: OnceLock<tenure_servers::Result<Cluster>> = OnceLock::new();
    SHARED.get_or_init(|| tenure_servers::start(Topology::Postgres, &Options::default()))
}

fn server() -> Result<&'static Cluster> {
    Ok(shared().as_ref().map_err(Clone::clone)?)
}

/// A server of the test's own, to be hurt.
fn own_server() -> Result<Cluster> {
    Ok(tenure_servers::start(Topology::Postgres, &Options::default())?)
}

fn sql(cluster: &Cluster, text: &str) -> Result<Vec<String>> {
    Ok(Wire::connect(cluster.node().port())?.query(text)?)
}

async fn connect(url: &str) -> Result<Client> {
    Ok(soon("connect", url.parse::<Config>()?.connect()).await??)
}

fn unique(name: &str) -> String {
    format!("{}/{name}", Owner::random())
}

fn claim(key: &str) -> Result<Claim> {
    Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(20)))
}

/// Repeats what a server that is coming back refuses, until it answers.
async fn until_answered<T, F: Future<Output = tenure::Result<T>>>(
    call: impl Fn() -> F,
) -> Result<T> {
    let asking = async {
        loop {
            match call().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                answer => return answer,
            }
        }
    };
    Ok(soon("an answer", asking).await??)
}

async fn a_late_request_takes_nothing_after_its_withdrawal() -> Result<()> {
    let backend = Postgres::open(&server()?.url()).await?;
    for waits in [false, true] {
        let mut late = claim(&unique("k"))?;
        late.doubtful = true;
        late.waits = waits;
        // The request is still on its way when the claim is withdrawn.
        ensure!(!backend.release(&late).await?);
        ensure!(matches!(backend.try_acquire(&late).await?, Attempt::Busy(_)), "a ghost holds");
        let other = Claim::new(late.key.clone(), Owner::random(), late.ttl);
        let grant = backend.try_acquire(&other).await?.granted()?;
        ensure!(matches!(backend.try_acquire(&late).await?, Attempt::Busy(_)));
        ensure!(backend.release(&other).await?, "it was held");
        // A ghost in the queue would have got it now.
        let again = Claim::new(late.key.clone(), Owner::random(), late.ttl);
        ensure!(backend.try_acquire(&again).await?.granted()?.token > grant.token);
        ensure!(backend.release(&again).await?);
    }
    Ok(())
}

/// The proxy swallows the answer to one statement after the other and tears the connection.
async fn a_lost_answer_costs_no_lock_and_no_token() -> Result<()> {
    let cluster = server()?;
    let proxy = cluster.node().proxy()?;
    for mode in ["lease", "session", "row"] {
        let url = format!("postgres://postgres@{}/postgres?mode={mode}", proxy.address());
        let shaky = connect(&url).await?;
        let steady = connect(&format!("{}?mode={mode}", cluster.url())).await?;
        let (key, mut last) = (unique("k"), None::<FencingToken>);
        for round in 1..=8 {
            proxy.swallow_answer(round % 4 + 1);
            let guard = soon("acquire", shaky.lock(&key).acquire()).await??;
            ensure!(Some(guard.token()) > last, "{mode}: {:?} after {last:?}", guard.token());
            last = Some(guard.token());
            let held = soon("holding", steady.lock(&key).try_acquire()).await??;
            ensure!(
                matches!(held, Attempt::Busy(_)) || guard.check().is_err(),
                "{mode}: two holders"
            );
            if let Attempt::Granted(other) = held {
                last = Some(other.token());
                other.release().await?;
            }
            // Lost answers make this doubtful; it must end free either way.
            drop(soon("release", guard.release()).await?);
            proxy.heal();
            soon("flush", shaky.flush()).await?;
            let guard = soon("the lock", steady.lock(&key).acquire()).await??;
            ensure!(Some(guard.token()) > last, "{mode}: {:?} after {last:?}", guard.token());
            last = Some(guard.token());
            guard.release().await?;
        }
    }
    Ok(())
}

async fn a_killed_server_comes_back_with_the_same_locks_and_higher_tokens() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let mut held = claim("held")?;
    held.ttl = Duration::from_secs(60);
    let first = backend.try_acquire(&held).await?.granted()?;
    let mut last = first.token;
    for round in 0..3 {
        for number in 0..50 {
            let other = claim(&format!("other {round} {number}"))?;
            let grant = backend.try_acquire(&other).await?.granted()?;
            ensure!(grant.token > last);
            last = grant.token;
            ensure!(backend.release(&other).await?);
        }
        cluster.node().kill()?;
        let refused = backend.try_acquire(&held).await.map(|_| ()).map_err(|e| e.kind());
        ensure!(refused == Err(ErrorKind::Unavailable), "{refused:?}");
        cluster.node().restart()?;
        let again = until_answered(|| backend.try_acquire(&held)).await?.granted()?;
        ensure!(again.token == first.token, "the grant was lost: {again:?} {first:?}");
        let stranger = claim("held")?;
        let attempt = until_answered(|| backend.try_acquire(&stranger)).await?;
        ensure!(matches!(attempt, Attempt::Busy(_)), "the grant was doubled");
    }
    ensure!(until_answered(|| backend.release(&held)).await?);
    Ok(())
}

/// Ends every connection that holds a lock in this mode.
async fn terminate(mode: &str, which: &str) -> Result<()> {
    let cluster = own_server()?;
    let url = format!("{}?mode={mode}", cluster.url());
    let (one, two) = (connect(&url).await?, connect(&url).await?);
    let guard = take(&one.lock("k").ttl(Duration::from_secs(30))).await?;
    let waiter = tokio::spawn(two.lock("k").acquire());
    until_waiters(&one.lock("k"), 1).await?;
    let ended = sql(&cluster, &format!("SELECT pg_terminate_backend(pid) FROM ({which}) x"))?;
    ensure!(ended == ["t"], "{ended:?}");
    let start = Instant::now();
    let lost = soon("the holder's loss", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    let next = soon("the waiter's grant", waiter).await???;
    // The lease would last for half a minute.
    ensure!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    ensure!(next.token() > guard.token());
    next.release().await?;
    // The client goes on with a new connection.
    let again = soon("acquire", one.lock("k").acquire()).await??;
    ensure!(again.token() > guard.token());
    again.release().await?;
    Ok(())
}

async fn a_terminated_session_is_a_lost_lock_at_once() -> Result<()> {
    terminate("session", "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted").await
}

async fn a_terminated_transaction_is_a_lost_lock_at_once() -> Result<()> {
    let which = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tenure row %'";
    terminate("row", which).await
}

async fn a_terminated_listener_is_replaced_and_the_waiter_served() -> Result<()> {
    let cluster = own_server()?;
    let (one, two) = (connect(&cluster.url()).await?, connect(&cluster.url()).await?);
    let guard = take(&one.lock("k")).await?;
    let waiter = tokio::spawn(two.lock("k").acquire());
    until_waiters(&one.lock("k"), 1).await?;
    let all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'tenure'";
    sql(&cluster, all)?;
    // A lease does not hang on a connection.
    ensure!(guard.check().is_ok());
    soon("release", guard.release()).await??;
    let start = Instant::now();
    soon("the waiter's grant", waiter).await???.release().await?;
    // Without a wake-up the next ask would come after ten seconds.
    ensure!(start.elapsed() < Duration::from_secs(5), "took {:?}", start.elapsed());
    Ok(())
}

async fn an_eviction_from_a_session_spares_its_other_locks() -> Result<()> {
    let url = format!("{}?mode=session", server()?.url());
    let (one, two) = (connect(&url).await?, connect(&url).await?);
    let (a, b) = (unique("a"), unique("b"));
    let (evicted, spared) = (take(&one.lock(&a)).await?, take(&one.lock(&b)).await?);
    ensure!(soon("evict", two.lock(&a).evict(evicted.token())).await??);
    let lost = soon("the loss", evicted.lost()).await?;
    ensure!(lost.reason() == LostReason::Evicted, "{lost}");
    take(&two.lock(&a)).await?.release().await?;
    ensure!(spared.check().is_ok());
    ensure!(matches!(two.lock(&b).try_acquire().await?, Attempt::Busy(_)));
    spared.release().await?;
    Ok(())
}

async fn other_isolation_levels_change_nothing() -> Result<()> {
    let cluster = server()?;
    for (number, level) in ["repeatable read", "serializable"].into_iter().enumerate() {
        let name = format!("isolation{number}");
        sql(cluster, &format!("CREATE ROLE {name} LOGIN SUPERUSER"))?;
        sql(cluster, &format!("ALTER ROLE {name} SET default_transaction_isolation = '{level}'"))?;
        let url = cluster.url().replace("postgres@", &format!("{name}@"));
        for mode in ["lease", "session", "row"] {
            race(&format!("{url}?mode={mode}")).await.context(format!("{level}, {mode}"))?;
        }
        // Behind a pooler nothing is set: there the server's own level is in force.
        race(&format!("{url}?pooler=yes")).await.context(format!("{level}, pooled"))?;
    }
    Ok(())
}

/// Some clients that count under one lock.
async fn race(url: &str) -> Result<()> {
    let (key, counter) = (unique("k"), std::sync::Arc::new(std::sync::Mutex::new((0, 0))));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (client, key, counter) = (connect(url).await?, key.clone(), counter.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = client.lock(&key).ttl(Duration::from_secs(3)).acquire().await?;
                let (count, token) = *counter.lock().unwrap();
                ensure!(guard.token().get() > token, "{} after {token}", guard.token());
                tokio::task::yield_now().await;
                *counter.lock().unwrap() = (count + 1, guard.token().get());
                guard.release().await?;
            }
            Ok(())
        });
    }
    while let Some(done) = within(LONGEST, "the race", tasks.join_next()).await? {
        done??;
    }
    let (count, _) = *counter.lock().unwrap();
    ensure!(count == 40, "{count} instead of 40");
    Ok(())
}

async fn time_zones_do_not_matter() -> Result<()> {
    let cluster = server()?;
    let mut backends = Vec::new();
    for (user, zone, style) in [("tokyo", "Asia/Tokyo", "SQL"), ("lima", "America/Lima", "German")]
    {
        sql(cluster, &format!("CREATE ROLE {user} LOGIN SUPERUSER"))?;
        sql(cluster, &format!("ALTER ROLE {user} SET timezone = '{zone}'"))?;
        sql(cluster, &format!("ALTER ROLE {user} SET datestyle = '{style}'"))?;
        let url = format!("postgres://{user}@{}/postgres", cluster.node().address());
        backends.push(Postgres::open(&url).await?);
    }
    let (tokyo, lima) = (&backends[0], &backends[1]);
    let holder = claim(&unique("k"))?;
    let mut waiter = Claim::new(holder.key.clone(), Owner::random(), holder.ttl);
    waiter.waits = true;
    let first = tokyo.try_acquire(&holder).await?.granted()?;
    let Attempt::Busy(busy) = lima.try_acquire(&waiter).await? else {
        anyhow::bail!("two holders")
    };
    let left = busy.holder.and_then(|holder| holder.ttl_left).context("a lease")?;
    ensure!(left > Duration::from_secs(10) && left <= Duration::from_secs(20), "{left:?} left");
    let pushed = lima.until_free(&waiter);
    ensure!(tokyo.release(&holder).await?);
    let grant = soon("the pushed grant", pushed).await?.context("a grant")?;
    ensure!(grant.token > first.token);
    ensure!(lima.renew(std::slice::from_ref(&waiter)).await[0].is_ok());
    ensure!(lima.release(&waiter).await?);
    Ok(())
}

async fn a_million_expired_rows_do_not_slow_a_take_down() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let fill = "INSERT INTO tenure_lease (key, owner, token, until) \
                SELECT convert_to('dead/' || n, 'UTF8'), 'x', nextval('tenure_token'), \
                now() - interval '1 hour' FROM generate_series(1, 1000000) n";
    let mut wire = Wire::connect(cluster.node().port())?;
    // The wire gives up after five seconds of silence; the server goes on.
    drop(wire.query(&format!("SET synchronous_commit = off; {fill}")));
    let full = async {
        while sql(&cluster, "SELECT count(*) FROM tenure_lease")? != ["1000000"] {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(90), full).await??;
    let mut times = Vec::new();
    for number in 1..200 {
        let claim = claim(&format!("dead/{}", number * 5000))?;
        let start = Instant::now();
        backend.try_acquire(&claim).await?.granted()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!("takeover among a million expired rows: {:?} in the middle", times[100]);
    // A scan of the table takes some hundred milliseconds.
    ensure!(times[100] < Duration::from_millis(50), "{:?}", times[100]);
    Ok(())
}

async fn a_sweep_removes_what_expired_and_keeps_what_is_held() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&format!("{}?sweep=50ms", cluster.url())).await?;
    let (held, mut waiter) = (claim("held")?, claim("waited for")?);
    let token = backend.try_acquire(&held).await?.granted()?.token;
    let dead = claim("waited for")?;
    backend.try_acquire(&dead).await?.granted()?;
    waiter.waits = true;
    ensure!(matches!(backend.try_acquire(&waiter).await?, Attempt::Busy(_)));
    sql(
        &cluster,
        "UPDATE tenure_lease SET until = now() - interval '2 minutes' \
                   WHERE key = 'waited for'",
    )?;
    sql(
        &cluster,
        "INSERT INTO tenure_lease (key, owner, token, until) \
                   SELECT convert_to('dead/' || n, 'UTF8'), 'x', nextval('tenure_token'), \
                   now() - interval '2 minutes' FROM generate_series(1, 5000) n",
    )?;
    let swept = async {
        while sql(&cluster, "SELECT count(*) FROM tenure_lease")? != ["2"] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    soon("the sweep", swept).await??;
    ensure!(backend.try_acquire(&held).await?.granted()?.token == token, "a held row was swept");
    // The waiter is still the first in the queue of the expired holder.
    let newcomer = claim("waited for")?;
    ensure!(matches!(backend.try_acquire(&newcomer).await?, Attempt::Busy(_)));
    let grant = backend.try_acquire(&waiter).await?.granted()?;
    ensure!(grant.token > token);
    Ok(())
}

async fn keys_that_differ_in_a_byte_are_different_locks() -> Result<()> {
    let prefix = unique("");
    let keys = ["a", "A", "a ", " a", "a%", "a_", "a'", "a\"", "a\\", "ä", "a\u{308}", "🦀", "🦞"];
    for mode in ["lease", "session", "row"] {
        let client = connect(&format!("{}?mode={mode}", server()?.url())).await?;
        let mut guards = Vec::new();
        for key in keys {
            guards.push(take(&client.lock(format!("{prefix}{key}"))).await?);
        }
        ensure!(client.list(&prefix).await?.len() == keys.len());
        for guard in guards {
            guard.release().await?;
        }
        ensure!(client.list(&prefix).await?.is_empty());
    }
    Ok(())
}

async fn connections_do_not_grow_with_locks_and_waiters() -> Result<()> {
    let cluster = own_server()?;
    let count = || -> Result<usize> {
        let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tenure%'";
        Ok(sql(&cluster, ours)?[0].parse()?)
    };
    for (mode, most) in [("lease", 2), ("session", 3)] {
        let client = connect(&format!("{}?mode={mode}", cluster.url())).await?;
        let mut guards = Vec::new();
        for number in 0..50 {
            guards.push(take(&client.lock(format!("{mode}/{number}"))).await?);
        }
        let lock = client.lock(format!("{mode}/0"));
        let waiters: Vec<_> = (0..50).map(|_| tokio::spawn(lock.acquire())).collect();
        until_waiters(&lock, 50).await?;
        let used = count()?;
        println!("mode={mode}: {used} connections for 50 locks and 50 waiters");
        ensure!(used <= most, "mode={mode}: {used} connections");
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
        drop(guards);
        soon("shutdown", client.shutdown(Duration::ZERO)).await??;
        drop((lock, client));
        let gone = async {
            while count()? > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok(())
        };
        soon("the end of the connections", gone).await??;
    }
    Ok(())
}

async fn a_user_without_rights_is_told_what_to_do() -> Result<()> {
    let cluster = own_server()?;
    let url = cluster.url();
    sql(&cluster, "CREATE ROLE guest LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")?;
    let guest = url.replace("postgres@", "guest@");
    let error = soon("connect", Postgres::open(&guest)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(error.to_string().contains("tenure schema postgres"), "{error}");
    let other = url.replace("/postgres", "/none").replace("//none@", "//postgres@");
    let error = soon("connect", Postgres::open(&other)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid && error.to_string().contains("none"), "{error:?}");
    let nobody = url.replace("postgres@", "nobody@");
    let error = soon("connect", Postgres::open(&nobody)).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    Ok(())
}

/// Writes of the table, as the server counts them: one per hand-over, however many wait.
async fn a_hand_over_is_one_statement() -> Result<()> {
    let cluster = own_server()?;
    let client = connect(&cluster.url()).await?;
    let mut writes = 0;
    for waiting in [1_u64, 10, 100] {
        // So long that nobody asks again while the server makes up its counts.
        let lock = client.lock(format!("hand-over/{waiting}")).ttl(Duration::from_secs(3600));
        let guard = take(&lock).await?;
        let waiters: Vec<_> = (0..waiting)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.acquire().await?.release().await })
            })
            .collect();
        until_waiters(&lock, usize::try_from(waiting)?).await?;
        // The take and the places.
        let before = until_written(&cluster, writes + 1 + waiting).await?;
        guard.release().await?;
        for waiter in waiters {
            soon("a waiter's turn", waiter).await???;
        }
        writes = until_written(&cluster, before + waiting + 1).await?;
        let done = writes - before;
        println!("{waiting} waiters: {done} writes for {} releases", waiting + 1);
        ensure!(done <= waiting + 1 + waiting / 10 + 1, "{done} writes for {waiting} waiters");
    }
    Ok(())
}

/// Waits until so many writes have been counted: an idle connection tells its numbers ten seconds
/// late.
async fn until_written(cluster: &Cluster, count: u64) -> Result<u64> {
    let text = "SELECT n_tup_upd + n_tup_ins FROM pg_stat_user_tables \
                WHERE relname = 'tenure_lease'";
    let counted = async {
        loop {
            let written = sql(cluster, text).ok().and_then(|rows| rows.first()?.parse().ok());
            if let Some(written) = written.filter(|written: &u64| *written >= count) {
                return anyhow::Ok(written);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONGEST / 3, &format!("{count} writes"), counted).await?
}

async fn a_foreign_advisory_lock_is_respected() -> Result<()> {
    let cluster = server()?;
    let client = connect(&format!("{}?mode=session", cluster.url())).await?;
    let key = unique("k");
    let mut psql = Wire::connect(cluster.node().port())?;
    // The scheme of the page, in SQL.
    let number = format!(
        "(SELECT ('x' || string_agg(lpad(to_hex(get_byte(d, 7 - i)), 2, '0'), '' ORDER BY i))\
         ::bit(64)::bigint FROM (SELECT sha256(convert_to('{key}', 'UTF8')) AS d) x, \
         generate_series(0, 7) i)"
    );
    psql.query(&format!("SELECT pg_advisory_lock({number})"))?;
    ensure!(matches!(client.lock(&key).try_acquire().await?, Attempt::Busy(_)), "two holders");
    let waiter = tokio::spawn(client.lock(&key).acquire());
    psql.query(&format!("SELECT pg_advisory_unlock({number})"))?;
    let guard = soon("the lock", waiter).await???;
    let theirs = psql.query(&format!("SELECT pg_try_advisory_lock({number})"))?;
    ensure!(theirs == ["f"], "{theirs:?}");
    guard.release().await?;
    Ok(())
}

/// Somebody else has our row locked and sleeps.
async fn a_hung_transaction_of_others_is_reported_as_unavailable() -> Result<()> {
    let cluster = server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let claim = claim(&unique("k"))?;
    backend.try_acquire(&claim).await?.granted()?;
    let mut other = Wire::connect(cluster.node().port())?;
    let key = claim.key.as_str();
    other.query(&format!(
        "BEGIN; SELECT 1 FROM tenure_lease WHERE key = convert_to('{key}', 'UTF8') FOR UPDATE"
    ))?;
    let answer = soon("an answer", backend.release(&claim)).await?;
    let kind = answer.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Unavailable), "{kind:?}");
    other.query("ROLLBACK")?;
    ensure!(until_answered(|| backend.release(&claim)).await?, "it was held until now");
    Ok(())
}

async fn doctor_names_what_is_wrong() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let grade = async |subject: &str| -> Result<Grade> {
        let findings = soon("examine", backend.examine()).await??;
        let finding = findings.iter().find(|finding| finding.subject == subject);
        Ok(finding.with_context(|| format!("{subject}: {findings:?}"))?.grade)
    };
    // The servers of tests do not sync.
    ensure!(grade("durability").await? == Grade::Warning);
    for subject in ["pooler", "rights", "index", "tokens"] {
        ensure!(grade(subject).await? == Grade::Good, "{subject}");
    }
    sql(&cluster, "ALTER SEQUENCE tenure_token CACHE 10")?;
    ensure!(grade("tokens").await? == Grade::Fault);
    sql(&cluster, "ALTER TABLE tenure_lease DROP CONSTRAINT tenure_lease_pkey")?;
    ensure!(grade("index").await? == Grade::Fault);
    Ok(())
}

async fn a_transaction_pooler_is_found_out() -> Result<()> {
    let cluster = server()?;
    let pooler = pooler::start(cluster.node().port())?;
    let url = format!("postgres://postgres@127.0.0.1:{pooler}/postgres");
    for mode in ["session", "row"] {
        let refused = soon("connect", Postgres::open(&format!("{url}?mode={mode}"))).await?;
        let error = refused.unwrap_err();
        ensure!(error.kind() == ErrorKind::Unsupported, "{mode}: {error:?}");
        ensure!(error.to_string().contains("mode=lease"), "{error}");
    }
    // Leases live there, without wake-ups.
    race(&format!("{url}?pooler=yes")).await
}

/// A transaction pooler: gives a client any server connection for the length of a transaction.
mod pooler {
    use std::io::{Read, Result, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

    type Pool = Arc<Mutex<Vec<TcpStream>>>;

    /// Listens until the process ends; the port.
    pub(crate) fn start(server: u16) -> Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let pool = Pool::default();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let pool = pool.clone();
                std::thread::spawn(move || serve(client, server, &pool));
            }
        });
        Ok(port)
    }

    fn serve(mut client: TcpStream, server: u16, pool: &Pool) -> Result<()> {
        let mut mine = TcpStream::connect(("127.0.0.1", server))?;
        let mut head = [0; 4];
        client.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_be_bytes(head) as usize - 4];
        client.read_exact(&mut body)?;
        mine.write_all(&[&head[..], &body].concat())?;
        answer(&mut mine, &mut client)?;
        pool.lock().unwrap().push(mine);
        let mut kept = None;
        loop {
            let Some(request) = request(&mut client)? else { return Ok(()) };
            let free = || pool.lock().unwrap().pop();
            let mut server = loop {
                match kept.take().or_else(free) {
                    Some(server) => break server,
                    None => std::thread::yield_now(),
                }
            };
            server.write_all(&request)?;
            match answer(&mut server, &mut client)? {
                b'I' => pool.lock().unwrap().push(server),
                _ => kept = Some(server),
            }
        }
    }

    /// Everything up to where the client waits for an answer; none when it says goodbye.
    fn request(client: &mut TcpStream) -> Result<Option<Vec<u8>>> {
        let mut all = Vec::new();
        loop {
            let (kind, message) = message(client)?;
            all.extend(message);
            match kind {
                b'X' => return Ok(None),
                b'Q' | b'S' => return Ok(Some(all)),
                _ => {}
            }
        }
    }

    /// Passes the answer on; the state of the transaction after it.
    fn answer(server: &mut TcpStream, client: &mut TcpStream) -> Result<u8> {
        loop {
            let (kind, message) = message(server)?;
            client.write_all(&message)?;
            if kind == b'Z' {
                return Ok(message[5]);
            }
        }
    }

    fn message(stream: &mut TcpStream) -> Result<(u8, Vec<u8>)> {
        let mut message = vec![0; 5];
        stream.read_exact(&mut message)?;
        let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]) as usize;
        message.resize(length + 1, 0);
        stream.read_exact(&mut message[5..])?;
        Ok((message[0], message))
    }
}

/// No test takes this long; one that hangs is a failure, not a hanging run.
const LONGEST: Duration = Duration::from_secs(150);
