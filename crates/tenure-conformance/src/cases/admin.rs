//! What operators see: who holds what, since when, and who waits.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::{Config, Finding, Severity};

use super::cases;
use crate::context::{TestContext, acquire_free, soon, until_waiters};

cases! { "admin":
    a_listing_shows_holder_and_waiters,
    a_listing_is_by_prefix_and_in_order,
    a_prefix_is_added_and_removed_again,
    a_note_is_shown_as_it_was_given,
    doctor_finds_no_fault_in_a_good_store,
}

async fn a_listing_shows_holder_and_waiters(context: &TestContext) -> Result<()> {
    let holder = context.client_with(Config::default().owner("holder")).await?;
    let lock = holder.lock(context.key("k")).note("v42");
    let guard = acquire_free(&lock).await?;
    let mut waiters = Vec::new();
    for (count, name) in ["first", "second"].into_iter().enumerate() {
        let client = context.client_with(Config::default().owner(name)).await?;
        waiters.push(tokio::spawn(client.lock(context.key("k")).acquire()));
        until_waiters(&lock, count + 1).await?;
    }
    let holding = lock.status().await?.context("it is held")?;
    ensure!(holding.key == context.key("k"));
    let shown = holding.holder();
    ensure!(shown.owner == "holder" && shown.note == "v42", "{shown:?}");
    ensure!(shown.pid == std::process::id() && !shown.host.is_empty(), "{shown:?}");
    ensure!(shown.token == Some(guard.token()), "{shown:?}");
    ensure!(shown.ttl_left.is_some_and(|left| left <= Duration::from_secs(30)), "{shown:?}");
    let names: Vec<_> = holding.waiters.iter().map(|waiter| waiter.owner.as_str()).collect();
    ensure!(names == ["first", "second"], "{names:?}");
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    until_waiters(&lock, 0).await?;
    guard.release().await?;
    Ok(())
}

async fn a_listing_is_by_prefix_and_in_order(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let names = ["b/2", "b/1", "a", "b%", "b_"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(acquire_free(&client.lock(context.key(name))).await?);
    }
    let list = async |prefix: &str| -> Result<Vec<String>> {
        let full = format!("{}{prefix}", context.prefix());
        let found = soon("list", client.list(&full)).await??;
        let name = |key: String| key.trim_start_matches(context.prefix()).to_owned();
        Ok(found.into_iter().map(|holding| name(holding.key.to_string())).collect())
    };
    ensure!(list("").await? == ["a", "b%", "b/1", "b/2", "b_"], "{:?}", list("").await?);
    ensure!(list("b/").await? == ["b/1", "b/2"], "{:?}", list("b/").await?);
    ensure!(list("b%").await? == ["b%"], "{:?}", list("b%").await?);
    ensure!(list("b_").await? == ["b_"], "{:?}", list("b_").await?);
    ensure!(list("nothing").await?.is_empty());
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn a_prefix_is_added_and_removed_again(context: &TestContext) -> Result<()> {
    let plain = context.client().await?;
    let inner = plain.prefixed(context.key("app/"))?;
    let deeper = inner.prefixed("x/")?;
    let guard = acquire_free(&deeper.lock("k")).await?;
    ensure!(guard.key().as_str() == "k");
    ensure!(inner.list("").await?[0].key.as_str() == "x/k");
    ensure!(deeper.list("").await?[0].key.as_str() == "k");
    ensure!(plain.lock(context.key("app/x/k")).status().await?.is_some());
    ensure!(inner.lock("k").status().await?.is_none());
    guard.release().await?;
    Ok(())
}

async fn a_note_is_shown_as_it_was_given(context: &TestContext) -> Result<()> {
    let notes = ["", "tab\tand\nline", "\u{1b}[31mred", "'; --", "日本 🦀", "\\t"];
    let client = context.client().await?;
    for note in notes {
        let lock = client.lock(context.key("k")).note(note);
        let guard = acquire_free(&lock).await?;
        let holding = lock.status().await?.context("it is held")?;
        ensure!(holding.holder().note == note, "{note:?} became {:?}", holding.holder().note);
        guard.release().await?;
    }
    Ok(())
}

async fn doctor_finds_no_fault_in_a_good_store(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let findings = soon("doctor", client.doctor()).await??;
    ensure!(!findings.is_empty(), "nothing was checked");
    let fault = findings.iter().find(|finding| finding.severity == Severity::Fault);
    ensure!(fault.is_none(), "{fault:?}");
    let lacks_advice =
        |finding: &&Finding| finding.severity > Severity::Good && finding.advice.is_empty();
    let silent = findings.iter().find(lacks_advice);
    ensure!(silent.is_none(), "no advice: {silent:?}");
    Ok(())
}
