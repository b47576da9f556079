//! What people see: who holds what, since when, and who waits.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::{Config, Finding, Grade};

use super::cases;
use crate::bench::{Bench, soon, take, until_waiters};

cases! { "people":
    a_listing_shows_holder_and_waiters,
    a_listing_is_by_prefix_and_in_order,
    a_prefix_is_put_on_and_hidden_again,
    a_note_is_shown_as_it_was_given,
    an_examination_of_a_good_store_finds_no_fault,
}

async fn a_listing_shows_holder_and_waiters(bench: &Bench) -> Result<()> {
    let holder = bench.client_with(Config::default().owner("holder")).await?;
    let lock = holder.lock(bench.key("k")).note("v42");
    let guard = take(&lock).await?;
    let mut waiters = Vec::new();
    for (count, name) in ["first", "second"].into_iter().enumerate() {
        let client = bench.client_with(Config::default().owner(name)).await?;
        waiters.push(tokio::spawn(client.lock(bench.key("k")).acquire()));
        until_waiters(&lock, count + 1).await?;
    }
    let holding = lock.holding().await?.context("it is held")?;
    ensure!(holding.key == bench.key("k"));
    let shown = &holding.holder;
    ensure!(shown.name == "holder" && shown.note == "v42", "{shown:?}");
    ensure!(shown.pid == std::process::id() && !shown.host.is_empty(), "{shown:?}");
    ensure!(shown.token == Some(guard.token()), "{shown:?}");
    ensure!(shown.ttl_left.is_some_and(|left| left <= Duration::from_secs(30)), "{shown:?}");
    let names: Vec<_> = holding.waiters.iter().map(|waiter| waiter.name.as_str()).collect();
    ensure!(names == ["first", "second"], "{names:?}");
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    until_waiters(&lock, 0).await?;
    guard.release().await?;
    Ok(())
}

async fn a_listing_is_by_prefix_and_in_order(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let names = ["b/2", "b/1", "a", "b%", "b_"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(take(&client.lock(bench.key(name))).await?);
    }
    let list = async |prefix: &str| -> Result<Vec<String>> {
        let full = format!("{}{prefix}", bench.prefix());
        let found = soon("list", client.list(&full)).await??;
        let name = |key: String| key.trim_start_matches(bench.prefix()).to_owned();
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

async fn a_prefix_is_put_on_and_hidden_again(bench: &Bench) -> Result<()> {
    let plain = bench.client().await?;
    let inner = plain.prefixed(bench.key("app/"))?;
    let deeper = inner.prefixed("x/")?;
    let guard = take(&deeper.lock("k")).await?;
    ensure!(guard.key().as_str() == "k");
    ensure!(inner.list("").await?[0].key.as_str() == "x/k");
    ensure!(deeper.list("").await?[0].key.as_str() == "k");
    ensure!(plain.lock(bench.key("app/x/k")).holding().await?.is_some());
    ensure!(inner.lock("k").holding().await?.is_none());
    guard.release().await?;
    Ok(())
}

async fn a_note_is_shown_as_it_was_given(bench: &Bench) -> Result<()> {
    let notes = ["", "tab\tand\nline", "\u{1b}[31mred", "'; --", "日本 🦀", "\\t"];
    let client = bench.client().await?;
    for note in notes {
        let lock = client.lock(bench.key("k")).note(note);
        let guard = take(&lock).await?;
        let holding = lock.holding().await?.context("it is held")?;
        ensure!(holding.holder.note == note, "{note:?} became {:?}", holding.holder.note);
        guard.release().await?;
    }
    Ok(())
}

async fn an_examination_of_a_good_store_finds_no_fault(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let findings = soon("examine", client.examine()).await??;
    ensure!(!findings.is_empty(), "nothing was looked at");
    let fault = findings.iter().find(|finding| finding.grade == Grade::Fault);
    ensure!(fault.is_none(), "{fault:?}");
    let lacks_advice =
        |finding: &&Finding| finding.grade > Grade::Good && finding.advice.is_empty();
    let silent = findings.iter().find(lacks_advice);
    ensure!(silent.is_none(), "no advice: {silent:?}");
    Ok(())
}
