//! Whether some order of single steps explains the whole history: linearizability of a mutex that
//! knows its owner and hands out growing tokens.
//!
//! Steps: a grant takes effect between asking and its answer, giving back between the call and its
//! answer, and the server may take the lock away by itself, but not before the holder's own
//! deadline. Asks without an answer are left out: they may have had an effect or none, and can only
//! forbid.
//!
//! A search of our own, because it knows that tokens grow: the lowest one that is left has to come
//! next. So the order is found without trying, where a general checker needs seconds for some
//! thousand grants.

use std::cmp::Reverse;
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

/// So many places are remembered per window before it is given up.
const PATIENCE: usize = 300_000;

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
    /// When the attempt that it belongs to is over.
    over: u64,
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
        let first = steps.len();
        let mut step = |from, to, what| {
            steps.push(Step { hold: hold.id, from, to, over: OPEN, what });
        };
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
        let ends = steps[first + 1..].iter().map(|step| step.to).max();
        steps[first..].iter_mut().for_each(|step| step.over = ends.unwrap_or(OPEN));
    }
    steps.sort_by_key(|step| (step.from, step.to));
    steps
}

/// Cuts where every attempt so far is over: nobody holds there.
fn windows(steps: &[Step]) -> impl Iterator<Item = &[Step]> {
    let mut rest = steps;
    std::iter::from_fn(move || {
        let mut open = rest.first()?.over;
        // At least the first one, also if it says that it ended before it began.
        let cut = rest[1..].iter().position(|step| {
            let over = step.from > open;
            open = open.max(step.over);
            over
        });
        let (window, after) = rest.split_at(cut.map_or(rest.len(), |cut| cut + 1));
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

/// Searches an order, as Wing and Gong do, with Lowe's memory of the places that were seen. The
/// error is the step at which the farthest order failed, or none if patience ended.
fn explain(steps: &[Step], highest: Option<u64>) -> Result<(), Option<usize>> {
    let mut search = Search::new(steps, State { holder: None, highest });
    let mut seen = HashSet::new();
    let mut farthest = 0;
    // Each place on the way: the step that led there, the state before it, and what may come next.
    let mut way = vec![(None, search.state, search.next())];
    while let Some((led, before, next)) = way.last_mut() {
        let Some((step, state)) = next.pop() else {
            if let Some(step) = *led {
                search.undo(step, *before);
            }
            way.pop();
            continue;
        };
        let before = search.state;
        search.take(step, state);
        if search.left == 0 {
            return Ok(());
        }
        farthest = farthest.max(search.first());
        if seen.len() > PATIENCE.max(steps.len() * 4) {
            return Err(None);
        }
        let next = search.next();
        // A place with one way out need not be remembered: the next fork is.
        if next.len() < 2 || seen.insert((search.place, search.state)) {
            way.push((Some(step), before, next));
        } else {
            search.undo(step, before);
        }
    }
    Err(Some(farthest))
}

/// The steps that are not yet in order, as a list that steps leave and come back to.
struct Search<'a> {
    steps: &'a [Step],
    /// The next one of each, shifted by one: at 0 stands the first of all.
    after: Vec<usize>,
    before: Vec<usize>,
    left: usize,
    state: State,
    /// A fingerprint of the set of steps in order; two sets share one by no chance that matters.
    place: u128,
    tokens: Vec<u64>,
}

impl<'a> Search<'a> {
    fn new(steps: &'a [Step], state: State) -> Search<'a> {
        let mut tokens: Vec<u64> = steps.iter().filter_map(Step::token).collect();
        tokens.sort_unstable();
        let after = (1..=steps.len() + 1).collect();
        let before = (0..=steps.len() + 1).map(|at| at.saturating_sub(1)).collect();
        Search { steps, after, before, left: steps.len(), state, place: 0, tokens }
    }

    /// The first step that is not yet in order.
    fn first(&self) -> usize {
        self.after[0].min(self.steps.len()) - 1
    }

    fn take(&mut self, step: usize, state: State) {
        let (before, after) = (self.before[step + 1], self.after[step + 1]);
        self.after[before] = after;
        self.before[after] = before;
        self.left -= 1;
        self.place ^= fingerprint(step);
        self.state = state;
    }

    fn undo(&mut self, step: usize, state: State) {
        let (before, after) = (self.before[step + 1], self.after[step + 1]);
        self.after[before] = step + 1;
        self.before[after] = step + 1;
        self.left += 1;
        self.place ^= fingerprint(step);
        self.state = state;
    }

    /// The steps that may come next and the states that they lead to, likeliest last.
    fn next(&self) -> Vec<(usize, State)> {
        // Nothing may come after a step that is over before it begins.
        let (mut limit, mut open) = (OPEN, Vec::new());
        let mut at = self.after[0];
        while let Some(step) = self.steps.get(at - 1).filter(|step| step.from <= limit) {
            limit = limit.min(step.to);
            open.push(at - 1);
            at = self.after[at];
        }
        open.retain(|&at| self.steps[at].from <= limit);
        // The step that has to end first is the most likely one.
        open.sort_unstable_by_key(|&at| (Reverse(self.steps[at].to), Reverse(at)));
        // Tokens grow, so the lowest one that is left has to come next.
        let given = self.tokens.partition_point(|&token| Some(token) <= self.state.highest);
        let lowest = self.tokens.get(given);
        let mut next = Vec::new();
        for at in open {
            let step = &self.steps[at];
            let token = step.token();
            if token.is_some() && token.as_ref() != lowest {
                continue;
            }
            if step.optional() && self.state.holder != Some(step.hold) {
                next.push((at, self.state));
            }
            next.extend(self.state.after(step).map(|state| (at, state)));
        }
        next
    }
}

/// A number of its own for each step.
fn fingerprint(step: usize) -> u128 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let seed = (step as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u128::from(mix(seed)) << 64 | u128::from(mix(!seed))
}
