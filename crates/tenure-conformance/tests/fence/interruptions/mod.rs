//! The rule of all fences: a stale holder that follows `docs/fencing.md` overwrites no update of
//! the next holder, wherever either is interrupted between two steps: by a transaction that is
//! rolled back, a future that is dropped, or a process that is killed.
//!
//! Both holders are run step by step, in every order: the stale one is paused at any step, and
//! resumes at any step of the next. A pause in the middle of a transaction is not part of it,
//! because all other holders wait for that: `row_locks` shows that they do.

mod column;
mod files;
mod schedule;
mod services;
mod sql;
mod sqlx;
mod stores;
mod tokens;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::schedule::{Fault, Plan, Round, Stop, UNDISTURBED, run_round};
use self::stores::Procedure;
use crate::{cases, unique};

/// The limit of one round, on a busy machine.
const LONGEST: Duration = Duration::from_secs(60);

cases! {
    no_update_is_lost_whatever_is_interrupted_between_two_steps on
        &["consul", "etcd", "file", "http", "memory", "mysql", "postgres", "redis", "sqlite",
            "sqlx-mysql", "sqlx-postgres", "zookeeper"];
}

async fn no_update_is_lost_whatever_is_interrupted_between_two_steps(url: String) -> Result<()> {
    let runtime = tokio::runtime::Handle::current();
    // Transactions of SQLite cannot move from thread to thread.
    tokio::task::spawn_blocking(move || runtime.block_on(run_all(&url))).await?
}

async fn run_all(url: &str) -> Result<()> {
    for &procedure in stores::procedures(url) {
        let wrong = rounds(url, procedure, usize::MAX).await?;
        ensure!(wrong.is_empty(), "{procedure:?}: {} rounds:\n{}", wrong.len(), wrong.join("\n"));
    }
    // If the schedules find nothing wrong with this procedure, they find nothing at all.
    if let Some(procedure) = stores::unsafe_procedure(url) {
        let wrong = rounds(url, procedure, 1).await?;
        ensure!(!wrong.is_empty(), "inconclusive: {procedure:?} lost nothing either");
    }
    Ok(())
}

/// Runs every schedule, until so many rounds went wrong. Returns what was wrong.
async fn rounds(url: &str, procedure: Procedure, limit: usize) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let undisturbed = round(url, procedure, UNDISTURBED).await?;
    for mut plan in plans(&undisturbed.stops) {
        // The stale holder resumes later and later, until the next one has no more idle stops.
        loop {
            let round = round(url, procedure, plan).await?;
            wrong.extend(round.mismatch.map(|text| format!("{plan:?}: {text}")));
            let idle_stops = round.stops.iter().filter(|stop| **stop == Stop::Idle).count();
            if wrong.len() >= limit {
                return Ok(wrong);
            }
            if plan.resume >= idle_stops {
                break;
            }
            plan.resume += 1;
        }
    }
    Ok(wrong)
}

async fn round(url: &str, procedure: Procedure, plan: Plan) -> Result<Round> {
    let name = unique("interrupted");
    let run = async {
        let resource = stores::open(url, &name, procedure).await?;
        let mut tokens = stores::tokens(url, &name).await?;
        run_round(&*resource, &mut tokens, plan).await
    };
    match tokio::time::timeout(LONGEST, run).await {
        Ok(round) => round.with_context(|| format!("{procedure:?}, {plan:?}")),
        Err(_) => bail!("{procedure:?}, {plan:?}: not done after {LONGEST:?}"),
    }
}

/// Every stop at which the stale holder can be paused, with every fault of the next, for holders
/// that stop there.
fn plans(stops: &[Stop]) -> Vec<Plan> {
    let is_idle = |at: &usize| stops[*at] == Stop::Idle;
    let mut faults = vec![None];
    for at in 0..stops.len() {
        faults.extend([Fault::Cancel, Fault::Crash].map(|fault| Some((fault, at))));
        faults.extend((!is_idle(&at)).then_some(Some((Fault::Rollback, at))));
    }
    let mut plans = Vec::new();
    for pause in (0..stops.len()).filter(is_idle) {
        plans.extend(faults.iter().map(|fault| Plan {
            pause,
            is_cancelled: false,
            fault: *fault,
            resume: 0,
        }));
    }
    plans.extend((0..stops.len()).map(|pause| Plan { pause, is_cancelled: true, ..UNDISTURBED }));
    plans
}
