//! Runs two holders one step at a time, and interrupts them between steps.

use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use futures_util::future::{LocalBoxFuture, poll_fn};
use tenure::FencingToken;

use super::tokens::Tokens;

/// The first round: no holder is interrupted, and the stale one comes last.
pub(super) const UNDISTURBED: Plan =
    Plan { pause: 0, is_cancelled: false, fault: None, resume: usize::MAX };

/// A holder that changes the number as `docs/fencing.md` says.
#[async_trait(?Send)]
pub(super) trait Holder {
    /// Adds so much to the number. Between any two steps it lets the schedule decide.
    async fn add(&mut self, token: FencingToken, by: i64, steps: &Steps) -> Result<Outcome>;

    /// The number when everything that was begun has ended. The token is the highest.
    async fn settle(&mut self, token: FencingToken) -> Result<i64>;
}

/// A resource of one number that several holders change.
#[async_trait(?Send)]
pub(super) trait SharedResource {
    /// A holder with connections of its own.
    async fn holder(&self) -> Result<Box<dyn Holder>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Wrote,
    Refused,
}

/// What the schedule tells a holder at a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Continue,
    /// The transaction is over. The holder goes on as the page says.
    Rollback,
}

/// Where a holder stands. The schedule polls the holder by hand, so no waker is needed.
#[derive(Default)]
pub(super) struct Steps(Mutex<StepState>);

#[derive(Default)]
struct StepState {
    waiting_at: Option<Stop>,
    decision: Option<Decision>,
}

/// Where a holder waits for the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing is open: another holder can come in here.
    Idle,
    /// In a transaction, or with a guard, for which other holders wait.
    InTransaction,
}

impl Steps {
    /// A stop between two steps, with nothing open.
    pub(super) async fn idle(&self) {
        self.stop(Stop::Idle).await;
    }

    /// A stop between two steps of a transaction, a turn or the like. True if it is rolled back.
    pub(super) async fn is_rolled_back(&self) -> bool {
        self.stop(Stop::InTransaction).await == Decision::Rollback
    }

    async fn stop(&self, stop: Stop) -> Decision {
        poll_fn(|_| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let decision = state.decision.take();
            state.waiting_at = decision.is_none().then_some(stop);
            decision.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn waiting_at(&self) -> Option<Stop> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).waiting_at
    }

    fn decide(&self, decision: Decision) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = StepState { waiting_at: None, decision: Some(decision) };
    }

    /// After a future was dropped.
    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = StepState::default();
    }
}

/// How a holder is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The database ends the transaction.
    Rollback,
    /// The future is dropped in the middle of a step, and the holder begins again.
    Cancel,
    /// The process is killed, and its connections are closed; another holder gets the lock.
    Crash,
}

/// What happens in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The stop at which the stale holder is paused.
    pub(super) pause: usize,
    /// Whether it is cancelled in the middle of the step after that, and never resumes.
    pub(super) is_cancelled: bool,
    /// What happens to the next holder, and at which of its stops.
    pub(super) fault: Option<(Fault, usize)>,
    /// At which idle stop of the next holder the stale one resumes.
    pub(super) resume: usize,
}

/// The result of a round.
pub(super) struct Round {
    /// A confirmed update is missing, or a refused one is there.
    pub(super) mismatch: Option<String>,
    /// Where the next holder stopped.
    pub(super) stops: Vec<Stop>,
}

type Work<'a> = LocalBoxFuture<'a, Result<Outcome>>;

enum Reached {
    Stop(Stop),
    End(Outcome),
}

/// Runs until the next stop.
async fn advance(work: &mut Work<'_>, steps: &Steps) -> Result<Reached> {
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(outcome.map(Reached::End)),
        Poll::Pending => match steps.waiting_at() {
            Some(stop) => Poll::Ready(Ok(Reached::Stop(stop))),
            None => Poll::Pending,
        },
    })
    .await
}

/// Runs a paused holder to its end, if there is one.
async fn resume(paused: Option<Work<'_>>, steps: &Steps, tally: &mut Tally) -> Result<()> {
    let Some(mut work) = paused else { return Ok(()) };
    loop {
        if let Reached::End(outcome) = advance(&mut work, steps).await? {
            tally.add(Some(outcome));
            return Ok(());
        }
        steps.decide(Decision::Continue);
    }
}

/// Begins the next step and drops the work in the middle of it. Returns the outcome, if there is
/// one so soon.
async fn cancel(mut work: Work<'_>, steps: &Steps) -> Option<Outcome> {
    steps.decide(Decision::Continue);
    let polled = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
    drop(work);
    steps.clear();
    match polled {
        Poll::Ready(Ok(outcome)) => Some(outcome),
        _ => None,
    }
}

/// What is known of the updates of a holder.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    done: i64,
    /// Interrupted: their outcome is unknown.
    unknown: i64,
}

impl Tally {
    fn add(&mut self, outcome: Option<Outcome>) {
        match outcome {
            Some(Outcome::Wrote) => self.done += 1,
            Some(Outcome::Refused) => {}
            None => self.unknown += 1,
        }
    }
}

/// Runs one round. The stale holder adds 1, the next one 10, and the one after a crash 100.
pub(super) async fn run_round(
    resource: &dyn SharedResource,
    tokens: &mut Tokens,
    plan: Plan,
) -> Result<Round> {
    let mut tally = [Tally::default(); 3];
    let mut stale = resource.holder().await?;
    let stale_steps = Steps::default();
    let first = tokens.next().await?;
    let mut cancelled = None;
    // A cancelled holder goes with its connection, because a client may roll back only when that is
    // used again.
    if plan.is_cancelled {
        cancelled = Some(resource.holder().await?);
    }
    let begun = cancelled.as_mut().unwrap_or(&mut stale);
    let work = begun.add(first, 1, &stale_steps);
    let mut paused = until_paused(work, &stale_steps, plan, &mut tally[0]).await?;
    if plan.is_cancelled {
        paused = None;
        drop(cancelled);
    }
    let (stops, next) =
        run_next_holders(resource, tokens, plan, &mut paused, &stale_steps, &mut tally).await?;
    resume(paused, &stale_steps, &mut tally[0]).await?;
    drop(next);
    let sum = stale.settle(tokens.next().await?).await?;
    Ok(Round { mismatch: mismatch(sum, &tally), stops })
}

/// Runs the holders after the stale one, which is resumed at the planned stop. Returns their stops,
/// and the last of them.
async fn run_next_holders(
    resource: &dyn SharedResource,
    tokens: &mut Tokens,
    plan: Plan,
    paused: &mut Option<Work<'_>>,
    stale_steps: &Steps,
    tally: &mut [Tally; 3],
) -> Result<(Vec<Stop>, Box<dyn Holder>)> {
    let mut next = resource.holder().await?;
    let mut who = 1;
    let mut token = tokens.next().await?;
    let steps = Steps::default();
    let mut stops = Vec::new();
    'again: loop {
        let mut work = next.add(token, 10_i64.pow(who), &steps);
        loop {
            let stop = match advance(&mut work, &steps).await? {
                Reached::End(outcome) => {
                    tally[who as usize].add(Some(outcome));
                    break 'again;
                }
                Reached::Stop(stop) => stop,
            };
            if stop == Stop::Idle && idle_stops(&stops) == plan.resume {
                resume(paused.take(), stale_steps, &mut tally[0]).await?;
            }
            let fault = plan.fault.filter(|(_, at)| *at == stops.len());
            stops.push(stop);
            match fault {
                None => steps.decide(Decision::Continue),
                Some((Fault::Rollback, _)) => steps.decide(Decision::Rollback),
                Some((Fault::Cancel, _)) => {
                    let outcome = cancel(work, &steps).await;
                    tally[who as usize].add(outcome);
                    if outcome.is_some() {
                        break 'again;
                    }
                    next = replace(next, resource).await?;
                    continue 'again;
                }
                Some((Fault::Crash, _)) => {
                    drop(work);
                    steps.clear();
                    next = replace(next, resource).await?;
                    token = tokens.next().await?;
                    who = 2;
                    continue 'again;
                }
            }
        }
    }
    Ok((stops, next))
}

/// A new holder, after the connections of the old one are closed.
async fn replace(old: Box<dyn Holder>, resource: &dyn SharedResource) -> Result<Box<dyn Holder>> {
    drop(old);
    resource.holder().await
}

fn idle_stops(stops: &[Stop]) -> usize {
    stops.iter().filter(|stop| **stop == Stop::Idle).count()
}

/// Runs the stale holder up to its pause. `None` if it came to its end, or was cancelled.
async fn until_paused<'a>(
    mut work: Work<'a>,
    steps: &Steps,
    plan: Plan,
    tally: &mut Tally,
) -> Result<Option<Work<'a>>> {
    for _ in 0..plan.pause {
        if let Reached::End(outcome) = advance(&mut work, steps).await? {
            tally.add(Some(outcome));
            return Ok(None);
        }
        steps.decide(Decision::Continue);
    }
    match advance(&mut work, steps).await? {
        Reached::End(outcome) => tally.add(Some(outcome)),
        Reached::Stop(_) if plan.is_cancelled => tally.add(cancel(work, steps).await),
        Reached::Stop(stop) => {
            ensure!(stop == Stop::Idle, "a holder paused in a transaction makes all others wait");
            return Ok(Some(work));
        }
    }
    Ok(None)
}

/// What is wrong with the sum: the updates of each holder are a digit of it.
fn mismatch(sum: i64, tally: &[Tally; 3]) -> Option<String> {
    let fits = tally
        .iter()
        .zip([1, 10, 100])
        .all(|(tally, by)| (tally.done..=tally.done + tally.unknown).contains(&(sum / by % 10)));
    (!fits).then(|| format!("the sum is {sum} after {tally:?}"))
}
