//! What every fence promises.

use anyhow::{Context, Result, ensure};

use crate::registers::open;
use crate::{EVERY, KEPT, cases, token, unique};

cases! {
    an_equal_token_is_admitted_and_a_lower_one_refused_with_both_numbers on EVERY;
    a_refused_write_changes_nothing on EVERY;
    a_read_by_the_next_holder_is_enough_to_refuse_the_last_one on EVERY;
    the_largest_tokens_are_told_apart on EVERY;
    resources_have_fences_of_their_own on EVERY;
    of_holders_that_write_at_once_the_highest_wins on EVERY;
    a_fence_that_lost_its_data_admits_any_token on KEPT;
}

async fn an_equal_token_is_admitted_and_a_lower_one_refused_with_both_numbers(
    url: String,
) -> Result<()> {
    let mut register = open(&url, &unique("equal")).await?;
    for number in 1..=3 {
        ensure!(register.read(Some(token(7))).await? == Ok(number - 1));
        register.write(number, Some(token(7))).await??;
    }
    register.write(9, Some(token(8))).await??;
    let stale = register.write(10, Some(token(7))).await?.err().context("7 after 8")?;
    ensure!((stale.token(), stale.seen()) == (token(7), token(8)), "{stale}");
    let stale = register.read(Some(token(6))).await?.err().context("a read after 8")?;
    ensure!((stale.token(), stale.seen()) == (token(6), token(8)), "{stale}");
    register.write(11, Some(token(8))).await??;
    Ok(())
}

async fn a_refused_write_changes_nothing(url: String) -> Result<()> {
    let mut register = open(&url, &unique("refused")).await?;
    register.write(5, Some(token(2))).await??;
    ensure!(register.write(6, Some(token(1))).await?.is_err());
    ensure!(register.read(None).await? == Ok(5));
    // Neither the number nor the fence has changed.
    ensure!(register.read(Some(token(2))).await? == Ok(5));
    Ok(())
}

/// The order of events that a fence on writes alone lets through.
async fn a_read_by_the_next_holder_is_enough_to_refuse_the_last_one(url: String) -> Result<()> {
    let name = unique("first-contact");
    let mut last = open(&url, &name).await?;
    let mut next = open(&url, &name).await?;
    let read_by_last = last.read(Some(token(1))).await??;
    let read_by_next = next.read(Some(token(2))).await??;
    ensure!(last.write(read_by_last + 1, Some(token(1))).await?.is_err());
    next.write(read_by_next + 1, Some(token(2))).await??;
    ensure!(next.read(None).await? == Ok(1));
    Ok(())
}

/// Numbers of Lua or JavaScript are not exact there.
async fn the_largest_tokens_are_told_apart(url: String) -> Result<()> {
    let mut register = open(&url, &unique("large")).await?;
    let largest = i64::MAX as u64;
    register.write(1, Some(token(9))).await??;
    // As texts, the longer one is higher.
    register.write(2, Some(token(10))).await??;
    ensure!(register.write(3, Some(token(9))).await?.is_err());
    register.write(4, Some(token(largest - 1))).await??;
    register.write(5, Some(token(largest))).await??;
    let stale = register.write(6, Some(token(largest - 1))).await?.err().context("one below")?;
    ensure!(stale.seen() == token(largest));
    register.write(7, Some(token(largest))).await??;
    Ok(())
}

async fn resources_have_fences_of_their_own(url: String) -> Result<()> {
    let name = unique("Own");
    let mut one = open(&url, &name).await?;
    // Names that a careless comparison treats as equal.
    for other in [name.to_lowercase(), format!("{name}_"), unique("own'\"%")] {
        if url.starts_with("mysql") && other == name.to_lowercase() {
            continue; // The table of the test treats them as equal; the one of the fence does not.
        }
        one.write(1, Some(token(9))).await??;
        if !url.starts_with("http") || !other.contains('"') {
            open(&url, &other).await?.write(2, Some(token(3))).await??;
        }
    }
    Ok(())
}

/// Each holder writes its own tokens, in rising order; one that was overtaken is refused from then
/// on.
async fn of_holders_that_write_at_once_the_highest_wins(url: String) -> Result<()> {
    let name = unique("at-once");
    open(&url, &name).await?.write(0, Some(token(1))).await??;
    let holders = (0..4u64).map(|holder| {
        let (url, name) = (url.clone(), name.clone());
        tokio::spawn(async move {
            let mut register = open(&url, &name).await?;
            let mut last = 0;
            for round in 0..25 {
                let number = 2 + round * 4 + (holder + round) % 4;
                if register.write(i64::try_from(number)?, Some(token(number))).await?.is_ok() {
                    last = number;
                }
            }
            anyhow::Ok(last)
        })
    });
    let mut highest = 0;
    for holder in holders.collect::<Vec<_>>() {
        highest = highest.max(holder.await??);
    }
    let left = open(&url, &name).await?.read(Some(token(highest))).await??;
    ensure!(left == i64::try_from(highest)?, "{left} is left, and {highest} was admitted");
    Ok(())
}

async fn a_fence_that_lost_its_data_admits_any_token(url: String) -> Result<()> {
    let mut register = open(&url, &unique("lost")).await?;
    register.write(1, Some(token(8))).await??;
    ensure!(register.write(2, Some(token(7))).await?.is_err());
    register.spoil(None).await?;
    register.write(3, Some(token(7))).await??;
    register.write(4, Some(token(8))).await??;
    Ok(())
}
