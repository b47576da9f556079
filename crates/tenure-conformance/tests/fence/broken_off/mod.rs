//! The rule of all fences: a stale holder that works as the page says takes no update from the next
//! one, whatever is broken off between any two steps of either: a transaction that is rolled back,
//! a future that is dropped, a process that is gone.
//!
//! Both holders are played step by step, in every order: the stale one falls asleep at any step,
//! and wakes up at any step of the next. Not played is a pause in the middle of a transaction, for
//! which others wait: `locking` shows that they do.

mod column;
mod files;
mod grounds;
mod play;
mod services;
mod sql;
mod tokens;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::grounds::Way;
use self::play::{Fault, Ground, Plan, QUIET, Stop, play};
use crate::{cases, unique};

cases! {
    no_update_is_lost_whatever_is_broken_off_between_two_steps on
        &["consul", "etcd", "file", "http", "memory", "mysql", "postgres", "redis", "sqlite",
            "zookeeper"];
}

async fn no_update_is_lost_whatever_is_broken_off_between_two_steps(url: String) -> Result<()> {
    let here = tokio::runtime::Handle::current();
    // Transactions of SQLite cannot go from thread to thread.
    tokio::task::spawn_blocking(move || here.block_on(play_all(&url))).await?
}

async fn play_all(url: &str) -> Result<()> {
    for &way in grounds::ways(url) {
        let wrong = rounds(url, way, usize::MAX).await?;
        ensure!(wrong.is_empty(), "{way:?}: {} rounds:\n{}", wrong.len(), wrong.join("\n"));
    }
    // A schedule that finds nothing wrong with this one finds nothing at all.
    if let Some(way) = grounds::unsafe_way(url) {
        let wrong = rounds(url, way, 1).await?;
        ensure!(!wrong.is_empty(), "inconclusive: {way:?} lost nothing either");
    }
    Ok(())
}

/// Plays every order, until so many went wrong; what did.
async fn rounds(url: &str, way: Way, most: usize) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let quiet = round(url, way, QUIET).await?;
    for mut plan in plans(&quiet.stops) {
        // Later and later, until there is no rest left to wake up at.
        loop {
            let round = round(url, way, plan).await?;
            wrong.extend(round.wrong.map(|text| format!("{plan:?}: {text}")));
            let rests = round.stops.iter().filter(|stop| **stop == Stop::Rest).count();
            if wrong.len() >= most {
                return Ok(wrong);
            }
            if plan.wake >= rests {
                break;
            }
            plan.wake += 1;
        }
    }
    Ok(wrong)
}

async fn round(url: &str, way: Way, plan: Plan) -> Result<play::Round> {
    let name = unique("broken-off");
    let played = async {
        let ground: Box<dyn Ground> = grounds::open(url, &name, way).await?;
        let mut tokens = grounds::tokens(url, &name).await?;
        play(&*ground, &mut tokens, plan).await
    };
    match tokio::time::timeout(LONGEST, played).await {
        Ok(round) => round.with_context(|| format!("{way:?}, {plan:?}")),
        Err(_) => bail!("{way:?}, {plan:?}: not done after {LONGEST:?}"),
    }
}

/// Where the stale holder falls asleep and what happens to the next, for holders that stop there.
fn plans(stops: &[Stop]) -> Vec<Plan> {
    let is_rest = |at: &usize| stops[*at] == Stop::Rest;
    let mut faults = vec![None];
    for at in 0..stops.len() {
        faults.extend([Fault::Cancel, Fault::Crash].map(|fault| Some((fault, at))));
        faults.extend((!is_rest(&at)).then_some(Some((Fault::Rollback, at))));
    }
    let mut plans = Vec::new();
    for pause in (0..stops.len()).filter(is_rest) {
        plans.extend(faults.iter().map(|fault| Plan {
            pause,
            ends: false,
            fault: *fault,
            wake: 0,
        }));
    }
    plans.extend((0..stops.len()).map(|pause| Plan { pause, ends: true, ..QUIET }));
    plans
}

/// One round, on a machine that does much else.
const LONGEST: Duration = Duration::from_secs(60);
