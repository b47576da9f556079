//! At most one holder per key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use tenure::Key;

use super::cases;
use crate::context::{TestContext, acquire_free, expect_busy, soon};

cases! { "exclusion":
    two_clients_exclude_each_other,
    two_claims_of_one_client_exclude_each_other,
    many_tasks_never_hold_together,
    keys_do_not_wait_for_each_other,
    hostile_keys_are_keys_like_any_other,
}

async fn two_clients_exclude_each_other(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("k"))).await?;
    expect_busy(&two.lock(context.key("k"))).await?;
    guard.release().await?;
    let guard = acquire_free(&two.lock(context.key("k"))).await?;
    expect_busy(&one.lock(context.key("k"))).await?;
    guard.release().await?;
    Ok(())
}

async fn two_claims_of_one_client_exclude_each_other(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let guard = acquire_free(&lock).await?;
    expect_busy(&lock).await?;
    expect_busy(&lock.clone()).await?;
    guard.release().await?;
    Ok(())
}

async fn many_tasks_never_hold_together(context: &TestContext) -> Result<()> {
    let inside = Arc::new(AtomicU32::new(0));
    let clients = [context.client().await?, context.client().await?];
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..10 {
        // Nothing here waits for the end of a lease. With a shorter one, a request that wakes the
        // next waiter would have less time than MariaDB may take for that.
        let ttl = context.info().min_ttl.max(std::time::Duration::from_secs(6));
        let lock = clients[number % 2].lock(context.key("k")).ttl(ttl);
        let inside = inside.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                let guard = lock.acquire().await?;
                ensure!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two were inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await?;
            }
            Ok(())
        });
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    };
    tokio::time::timeout(std::time::Duration::from_secs(120), all).await?
}

async fn keys_do_not_wait_for_each_other(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let mut guards = Vec::new();
    for name in ["a", "a/b", "a/b/c", "A", "a b", "ab", "é", "e\u{301}"] {
        guards.push(acquire_free(&client.lock(context.key(name))).await?);
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn hostile_keys_are_keys_like_any_other(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let long = "k".repeat(Key::MAX_LEN - context.prefix().len());
    let hostile = [
        "'; DROP TABLE claim; --",
        "\" OR 1=1",
        "%",
        "_",
        "%00",
        "../../../etc/passwd",
        "/",
        "//",
        "*",
        "?[a-z]",
        "{tag}",
        "a}b",
        "{}",
        "$(reboot)",
        "`reboot`",
        "a\\b",
        "-rf",
        "--",
        "~",
        "redis.call('FLUSHALL')",
        "\u{1f980}",
        "日本",
        ".",
        "..",
        "con",
        "a:b",
        "a&b=c#d",
        &long,
    ];
    for name in hostile {
        let (one, two) = (one.lock(context.key(name)), two.lock(context.key(name)));
        let guard = acquire_free(&one).await?;
        expect_busy(&two).await?;
        let seen = soon("holding", two.status()).await??;
        let seen = seen.map(|holding| holding.key.to_string());
        ensure!(seen.as_deref() == Some(context.key(name).as_str()), "{name}: listed as {seen:?}");
        guard.release().await?;
    }
    ensure!(one.list(context.prefix()).await?.is_empty(), "something is still held");
    Ok(())
}
