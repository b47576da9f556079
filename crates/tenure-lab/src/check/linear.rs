//! Whether some order of single steps explains the whole history: linearizability of a mutex that
//! knows its owner and hands out growing tokens.
//!
//! Steps: a grant takes effect between asking and its answer, giving back between the call and its
//! answer, and the server may take the lock away by itself, but not before the holder's own deadline.
//! Asks without an answer are left out: they may have had an effect or none, and can only forbid.

use std::collections::HashSet;

use serde::Serialize;

use super::holds::{Hold, Holds};

/// What the search found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Linear {
    /// How many steps were put in order.
    pub steps: u64,
    /// In how many windows, cut where nothing was going on.
    pub windows: u64,
    /// Windows that no order explains.
    pub broken: u64,
    /// Windows that were given up: too many orders to try.
    pub undecided: u64,
    /// The first window that no order explains.
    pub first: Option<Window>,
}

/// A window that no order explains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Of this key.
    pub key: String,
    /// When it begins.
    pub from: u64,
    /// When it ends.
    pub to: u64,
    /// The attempt at which every order fails, the farthest that any came.
    pub hold: u64,
}

/// So much is remembered per window before it is given up.
const PATIENCE: usize = 2_000_000;

/// Searches each key, window by window.
pub fn check(holds: &Holds<'_>) -> Linear {
    let mut linear = Linear::default();
    for (key, holds) in holds.by_key() {
        let steps = steps(&holds);
        linear.steps += steps.len() as u64;
        let mut highest = None;
        for window in windows(&steps) {
            linear.windows += 1;
            match explain(window, highest) {
                Ok(()) => {}
                Err(Some(at)) => {
                    linear.broken += 1;
                    let to = window.iter().map(|step| step.to).filter(|&to| to != OPEN).max();
                    let to = to.unwrap_or(window[at].from);
                    let (key, from) = (key.to_owned(), window[0].from);
                    let told = Window { key, from, to, hold: window[at].hold };
                    linear.first.get_or_insert(told);
                }
                Err(None) => linear.undecided += 1,
            }
            let tokens = window.iter().filter_map(Step::token);
            highest = tokens.chain(highest).max();
        }
    }
    linear
}

/// One step that takes effect at one moment between `from` and `to`.
#[derive(Clone, Debug)]
struct Step {
    hold: u64,
    from: u64,
    to: u64,
    what: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    Grant(Option<u64>),
    /// Gives back what is its own.
    Release,
    /// Gives back what is no longer its own.
    ReleaseInVain,
    /// Ends if it was still there: by the server, or by an answer that nobody saw.
    End,
}

const OPEN: u64 = u64::MAX;

impl Step {
    fn token(&self) -> Option<u64> {
        if let Effect::Grant(token) = self.what { token } else { None }
    }

    /// Steps that nobody saw need not have happened.
    fn optional(&self) -> bool {
        self.what == Effect::End
    }
}

/// The steps of one key, in the order of their beginnings.
fn steps(holds: &[&Hold<'_>]) -> Vec<Step> {
    let mut grants: Vec<u64> = holds.iter().filter_map(|hold| hold.granted).collect();
    grants.sort_unstable();
    // What has to have ended for the next grant has ended by then.
    let next =
        |at: u64| grants.get(grants.partition_point(|&grant| grant <= at)).copied().unwrap_or(OPEN);
    let mut steps = Vec::with_capacity(holds.len() * 2);
    for hold in holds {
        let Some(granted) = hold.granted else { continue };
        let mut step = |from, to, what| steps.push(Step { hold: hold.id, from, to, what });
        step(hold.asked, granted, Effect::Grant(hold.token));
        let ends = hold.certain_end().unwrap_or(granted);
        let begin = hold.releasing.or(hold.released.map(|(at, _)| at));
        match (begin, hold.released) {
            (Some(begin), Some((at, Some(true)))) => step(begin, at, Effect::Release),
            (Some(begin), Some((at, Some(false)))) => {
                step(ends, next(ends).max(at), Effect::End);
                step(begin, at, Effect::ReleaseInVain);
            }
            _ if ends != OPEN => step(ends, next(ends), Effect::End),
            _ => {}
        }
    }
    steps.sort_by_key(|step| (step.from, step.to));
    steps
}

/// Cuts where every step so far is over.
fn windows(steps: &[Step]) -> impl Iterator<Item = &[Step]> {
    let mut rest = steps;
    std::iter::from_fn(move || {
        let mut open = rest.first()?.to;
        let cut = rest.iter().position(|step| {
            let over = step.from > open;
            open = open.max(step.to);
            over
        });
        let (window, after) = rest.split_at(cut.unwrap_or(rest.len()));
        rest = after;
        Some(window)
    })
}

/// Who holds, and the highest token so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    holder: Option<u64>,
    highest: Option<u64>,
}

impl State {
    fn after(self, step: &Step) -> Option<State> {
        match step.what {
            Effect::Grant(token) => {
                let grows = token.is_none() || token > self.highest;
                let state = State { holder: Some(step.hold), highest: self.highest.max(token) };
                (self.holder.is_none() && grows).then_some(state)
            }
            Effect::Release | Effect::End => {
                (self.holder == Some(step.hold)).then_some(State { holder: None, ..self })
            }
            Effect::ReleaseInVain => (self.holder != Some(step.hold)).then_some(self),
        }
    }
}

/// Where the search stands: all steps before `first` are done, and these beyond it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    first: usize,
    beyond: Vec<usize>,
    state: State,
}

/// Searches an order, as Wing and Gong do, with Lowe's memory of the places that were seen. The
/// error is the step at which the farthest order failed, or none if patience ended.
fn explain(steps: &[Step], highest: Option<u64>) -> Result<(), Option<usize>> {
    let mut seen = HashSet::new();
    let state = State { holder: None, highest };
    let mut stack = vec![Place { first: 0, beyond: Vec::new(), state }];
    let (mut farthest, mut kept) = (0, 0);
    let tokens = sorted_tokens(steps);
    while let Some(place) = stack.pop() {
        if place.first == steps.len() {
            return Ok(());
        }
        farthest = farthest.max(place.first);
        if kept > PATIENCE.max(steps.len() * 16) {
            return Err(None);
        }
        let before = stack.len();
        place.each_next(steps, &tokens, |next| {
            if !seen.contains(&next) {
                kept += 1 + next.beyond.len();
                seen.insert(next.clone());
                stack.push(next);
            }
        });
        // The step that has to end first is the most likely one: it is tried first.
        stack[before..].reverse();
    }
    Err(Some(farthest))
}

fn sorted_tokens(steps: &[Step]) -> Vec<u64> {
    let mut tokens: Vec<u64> = steps.iter().filter_map(Step::token).collect();
    tokens.sort_unstable();
    tokens
}

impl Place {
    /// The places that one more step leads to, likeliest first.
    fn each_next(&self, steps: &[Step], tokens: &[u64], mut found: impl FnMut(Place)) {
        let done = |at: usize| at < self.first || self.beyond.binary_search(&at).is_ok();
        // Nothing may come after a step that is over before it begins.
        let mut limit = OPEN;
        let mut open = Vec::new();
        for (at, step) in steps.iter().enumerate().skip(self.first) {
            if step.from > limit {
                break;
            }
            if !done(at) {
                limit = limit.min(step.to);
                open.push(at);
            }
        }
        open.retain(|&at| steps[at].from <= limit);
        open.sort_by_key(|&at| (steps[at].to, at));
        // Tokens grow, so the lowest one that is left has to come next.
        let lowest = tokens.get(tokens.partition_point(|&token| Some(token) <= self.state.highest));
        for at in open {
            let token = steps[at].token();
            if token.is_some() && token.as_ref() != lowest {
                continue;
            }
            if let Some(state) = self.state.after(&steps[at]) {
                found(self.with(at, state));
            }
            if steps[at].optional() && self.state.holder != Some(steps[at].hold) {
                found(self.with(at, self.state));
            }
        }
    }

    fn with(&self, at: usize, state: State) -> Place {
        let mut next = Place { first: self.first, beyond: self.beyond.clone(), state };
        next.beyond.push(at);
        next.beyond.sort_unstable();
        while next.beyond.first() == Some(&next.first) {
            next.beyond.remove(0);
            next.first += 1;
        }
        next
    }
}
