//! Two holders that work as the page says, one step at a time, and what breaks off between steps.

use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use anyhow::{Result, ensure};
use futures_util::future::{LocalBoxFuture, poll_fn};
use tenure::FencingToken;

use super::tokens::Tokens;

/// One who changes the number as the page says.
pub(super) trait Holder {
    /// Adds so much to the number. Between any two steps it lets the schedule decide.
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>>;

    /// What the number is when everything that was begun has ended. The token is the highest.
    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>>;
}

/// Where a resource of one number is kept, and how another holder comes to it.
pub(super) trait Ground {
    /// A holder with connections of its own.
    fn open(&self) -> LocalBoxFuture<'_, Result<Box<dyn Holder>>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Wrote,
    Refused,
}

/// What a holder is told between two steps of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    Go,
    /// The transaction is over. Go on as the page says.
    Rollback,
}

/// Where the holder stands: the schedule polls it by hand, so no wake-up is needed.
#[derive(Default)]
pub(super) struct Steps(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: Option<Stop>,
    leave: Option<Leave>,
}

/// Where a holder waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing is open: another holder can come in here.
    Rest,
    /// In a transaction, or with a guard in its hands, for which others wait.
    Inside,
}

impl Steps {
    /// Between two steps, with nothing open.
    pub(super) async fn rest(&self) {
        self.stop(Stop::Rest).await;
    }

    /// Between two steps of a transaction, a turn or the like. True if it is rolled back here.
    pub(super) async fn breaks(&self) -> bool {
        self.stop(Stop::Inside).await == Leave::Rollback
    }

    async fn stop(&self, stop: Stop) -> Leave {
        poll_fn(|_| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let leave = state.leave.take();
            state.waiting = leave.is_none().then_some(stop);
            leave.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn waiting(&self) -> Option<Stop> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).waiting
    }

    fn give(&self, leave: Leave) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.waiting, state.leave) = (None, Some(leave));
    }

    /// After a future was dropped.
    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State::default();
    }
}

/// How a holder's work is broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The database ends the transaction.
    Rollback,
    /// The future is dropped in the middle of a step, and the holder begins again.
    Cancel,
    /// The process is gone, its connections with it; the lock goes to another.
    Crash,
}

/// What happens in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The stop at which the stale holder falls asleep.
    pub(super) pause: usize,
    /// It is broken off in the middle of the step after that, and never wakes up.
    pub(super) ends: bool,
    /// What happens to the next holder, and at which of its stops.
    pub(super) fault: Option<(Fault, usize)>,
    /// At which rest of the next holder the stale one wakes up.
    pub(super) wake: usize,
}

/// The first round: nobody is disturbed, and the stale holder comes last.
pub(super) const QUIET: Plan = Plan { pause: 0, ends: false, fault: None, wake: usize::MAX };

/// What a round came to.
pub(super) struct Round {
    /// An update that was confirmed is not there, or one that was refused is.
    pub(super) wrong: Option<String>,
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
        Poll::Pending => match steps.waiting() {
            Some(stop) => Poll::Ready(Ok(Reached::Stop(stop))),
            None => Poll::Pending,
        },
    })
    .await
}

/// Lets it come to its end, if there is one.
async fn wake(asleep: Option<Work<'_>>, steps: &Steps, tally: &mut Tally) -> Result<()> {
    let Some(mut work) = asleep else { return Ok(()) };
    loop {
        if let Reached::End(outcome) = advance(&mut work, steps).await? {
            tally.add(Some(outcome));
            return Ok(());
        }
        steps.give(Leave::Go);
    }
}

/// Begins the next step and drops the work in the middle of it. The outcome, if there is one so
/// soon.
async fn cut(mut work: Work<'_>, steps: &Steps) -> Option<Outcome> {
    steps.give(Leave::Go);
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
    /// Broken off: it may have happened.
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

/// Plays it. The stale holder adds 1, the next one 10, and the one after a crash 100.
pub(super) async fn play(ground: &dyn Ground, tokens: &mut Tokens, plan: Plan) -> Result<Round> {
    let mut tally = [Tally::default(); 3];
    let (mut stale, stale_steps) = (ground.open().await?, Steps::default());
    let first = tokens.next().await?;
    let mut asleep = None;
    if plan.ends {
        // With its connection, for a client may roll back only when that is used again.
        let mut stale = ground.open().await?;
        let work = stale.change(first, 1, &stale_steps);
        drop(until_asleep(work, &stale_steps, plan, &mut tally[0]).await?);
    } else {
        let work = stale.change(first, 1, &stale_steps);
        asleep = until_asleep(work, &stale_steps, plan, &mut tally[0]).await?;
    }
    let (mut next, steps, mut who) = (ground.open().await?, Steps::default(), 1);
    let (mut token, mut stops) = (tokens.next().await?, Vec::new());
    let mut rests = 0;
    'again: loop {
        let mut work = next.change(token, 10_i64.pow(who), &steps);
        loop {
            let stop = match advance(&mut work, &steps).await? {
                Reached::End(outcome) => {
                    tally[who as usize].add(Some(outcome));
                    break 'again;
                }
                Reached::Stop(stop) => stop,
            };
            if stop == Stop::Rest {
                if rests == plan.wake {
                    wake(asleep.take(), &stale_steps, &mut tally[0]).await?;
                }
                rests += 1;
            }
            let fault = plan.fault.filter(|(_, at)| *at == stops.len());
            stops.push(stop);
            match fault {
                None => steps.give(Leave::Go),
                Some((Fault::Rollback, _)) => steps.give(Leave::Rollback),
                Some((Fault::Cancel, _)) => {
                    let outcome = cut(work, &steps).await;
                    tally[who as usize].add(outcome);
                    if outcome.is_some() {
                        break 'again;
                    }
                    drop(next);
                    next = ground.open().await?;
                    continue 'again;
                }
                Some((Fault::Crash, _)) => {
                    drop(work);
                    steps.clear();
                    drop(next);
                    (next, token, who) = (ground.open().await?, tokens.next().await?, 2);
                    continue 'again;
                }
            }
        }
    }
    wake(asleep, &stale_steps, &mut tally[0]).await?;
    drop(next);
    let sum = stale.settle(tokens.next().await?).await?;
    Ok(Round { wrong: judge(sum, &tally), stops })
}

/// The stale holder, asleep; none if it came to its end, or was broken off.
async fn until_asleep<'a>(
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
        steps.give(Leave::Go);
    }
    match advance(&mut work, steps).await? {
        Reached::End(outcome) => tally.add(Some(outcome)),
        Reached::Stop(_) if plan.ends => tally.add(cut(work, steps).await),
        Reached::Stop(stop) => {
            ensure!(stop == Stop::Rest, "one who is paused in a transaction makes all others wait");
            return Ok(Some(work));
        }
    }
    Ok(None)
}

/// What is wrong with the sum: the updates of each holder are a digit of it.
fn judge(sum: i64, tally: &[Tally; 3]) -> Option<String> {
    let fits = tally
        .iter()
        .zip([1, 10, 100])
        .all(|(tally, by)| (tally.done..=tally.done + tally.unknown).contains(&(sum / by % 10)));
    (!fits).then(|| format!("the sum is {sum} after {tally:?}"))
}
