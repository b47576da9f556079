//! Linearizability: whether some order of single steps explains the whole history of a mutex that
//! knows its owner and hands out growing tokens.
//!
//! Steps: a grant takes effect between request and response, a release between call and response,
//! and the server may end a lease by itself, but not before the holder's own deadline. Attempts
//! with an unknown outcome are left out: they may have had an effect or none, and an effect could
//! only rule orders out.
//!
//! The search uses that tokens grow: of the grants that are left, the one with the lowest token has
//! to come next. So it finds the order without trying, where a general checker needs seconds for
//! some thousand grants.

use std::cmp::Reverse;
use std::collections::HashSet;

use serde::Serialize;

use super::hold::{Hold, Holds};

/// The result of the search.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Linearizability {
    /// Number of steps.
    pub steps: u64,
    /// Number of windows. The history is cut where no attempt is in progress.
    pub windows: u64,
    /// Number of windows that no order explains.
    pub broken: u64,
    /// Number of windows in which the search was given up: too many orders to try.
    pub undecided: u64,
    /// The first window that no order explains.
    pub first: Option<Window>,
}

/// A window that no order explains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Key of the lock.
    pub key: String,
    /// When the window begins.
    pub from: u64,
    /// When the window ends.
    pub to: u64,
    /// The attempt at which the longest order failed.
    pub hold: u64,
}

/// The most states that are remembered per window before the search is given up.
const MAX_STATES: usize = 300_000;
/// The end of a step that has none.
const OPEN: u64 = u64::MAX;

/// Searches each key, window by window.
pub fn check(holds: &Holds<'_>) -> Linearizability {
    let mut linear = Linearizability::default();
    for (key, holds) in holds.by_key() {
        let steps = steps(&holds);
        linear.steps += steps.len() as u64;
        let mut highest = None;
        for window in windows(&steps) {
            linear.windows += 1;
            match explain(window, highest) {
                Explanation::Found => {}
                Explanation::None { failed_at: at } => {
                    linear.broken += 1;
                    let to = window.iter().map(|step| step.to).filter(|&to| to != OPEN).max();
                    let to = to.unwrap_or(window[at].from);
                    let from = window[0].from;
                    let hold = window[at].hold;
                    linear.first.get_or_insert(Window { key: key.to_owned(), from, to, hold });
                }
                Explanation::Undecided => linear.undecided += 1,
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
    effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    Grant(Option<u64>),
    /// Releases a lock that is held.
    Release,
    /// Releases a lock that is no longer held.
    ReleaseInVain,
    /// Ends if it is still held: by the server, or by a release without a response.
    End,
}

impl Step {
    fn token(&self) -> Option<u64> {
        if let Effect::Grant(token) = self.effect { token } else { None }
    }

    /// Whether the step need not have happened, as no client saw it.
    fn is_optional(&self) -> bool {
        self.effect == Effect::End
    }
}

/// The steps of one key, sorted by when they begin.
fn steps(holds: &[&Hold<'_>]) -> Vec<Step> {
    let mut grants: Vec<u64> = holds.iter().filter_map(|hold| hold.granted).collect();
    grants.sort_unstable();
    // What has to end before the next grant has ended by then.
    let next =
        |at: u64| grants.get(grants.partition_point(|&grant| grant <= at)).copied().unwrap_or(OPEN);
    let mut steps = Vec::with_capacity(holds.len() * 2);
    for hold in holds {
        let Some(granted) = hold.granted else { continue };
        let first = steps.len();
        let mut step = |from, to, effect| {
            steps.push(Step { hold: hold.id, from, to, over: OPEN, effect });
        };
        step(hold.requested, granted, Effect::Grant(hold.token));
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

/// Cuts the steps where every attempt so far is over, so that the lock is free there.
fn windows(steps: &[Step]) -> impl Iterator<Item = &[Step]> {
    let mut rest = steps;
    std::iter::from_fn(move || {
        let mut open = rest.first()?.over;
        // At least the first step, even if it claims to end before it begins.
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

/// The holder, and the highest token so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    holder: Option<u64>,
    highest: Option<u64>,
}

impl State {
    fn after(self, step: &Step) -> Option<State> {
        match step.effect {
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

/// The result of the search in one window.
enum Explanation {
    Found,
    /// No order explains it; the longest order failed at this step.
    None {
        failed_at: usize,
    },
    /// The search was given up.
    Undecided,
}

/// Searches for an order, as Wing and Gong do, and remembers the visited states, as Lowe does.
fn explain(steps: &[Step], highest: Option<u64>) -> Explanation {
    let mut search = Search::new(steps, State { holder: None, highest });
    let mut seen = HashSet::new();
    let mut farthest = 0;
    // The path so far: the step that led there, the state before it, and what may come next.
    let mut path = vec![(None, search.state, search.next())];
    while let Some((led, before, next)) = path.last_mut() {
        let Some((step, state)) = next.pop() else {
            if let Some(step) = *led {
                search.revert(step, *before);
            }
            path.pop();
            continue;
        };
        let before = search.state;
        search.apply(step, state);
        if search.left == 0 {
            return Explanation::Found;
        }
        farthest = farthest.max(search.first());
        if seen.len() > MAX_STATES.max(steps.len() * 4) {
            return Explanation::Undecided;
        }
        let next = search.next();
        // A state with one successor need not be remembered: the next fork is.
        if next.len() < 2 || seen.insert((search.applied, search.state)) {
            path.push((Some(step), before, next));
        } else {
            search.revert(step, before);
        }
    }
    Explanation::None { failed_at: farthest }
}

/// The steps that are not yet in order, as a doubly linked list: applying a step unlinks it,
/// reverting it links it again.
struct Search<'a> {
    steps: &'a [Step],
    /// The successor of each step, shifted by one: index 0 has the first of all.
    after: Vec<usize>,
    before: Vec<usize>,
    left: usize,
    state: State,
    /// A fingerprint of the set of applied steps; that two sets share one is practically
    /// impossible.
    applied: u128,
    tokens: Vec<u64>,
}

impl<'a> Search<'a> {
    fn new(steps: &'a [Step], state: State) -> Search<'a> {
        let mut tokens: Vec<u64> = steps.iter().filter_map(Step::token).collect();
        tokens.sort_unstable();
        let after = (1..=steps.len() + 1).collect();
        let before = (0..=steps.len() + 1).map(|at| at.saturating_sub(1)).collect();
        Search { steps, after, before, left: steps.len(), state, applied: 0, tokens }
    }

    /// The first step that is not yet in order.
    fn first(&self) -> usize {
        self.after[0].min(self.steps.len()) - 1
    }

    fn apply(&mut self, step: usize, state: State) {
        let (before, after) = (self.before[step + 1], self.after[step + 1]);
        self.after[before] = after;
        self.before[after] = before;
        self.left -= 1;
        self.applied ^= fingerprint(step);
        self.state = state;
    }

    fn revert(&mut self, step: usize, state: State) {
        let (before, after) = (self.before[step + 1], self.after[step + 1]);
        self.after[before] = step + 1;
        self.before[after] = step + 1;
        self.left += 1;
        self.applied ^= fingerprint(step);
        self.state = state;
    }

    /// The steps that may come next and the states that they lead to, the likeliest last.
    fn next(&self) -> Vec<(usize, State)> {
        // A step cannot come next if another one is over before it begins.
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
            if step.is_optional() && self.state.holder != Some(step.hold) {
                next.push((at, self.state));
            }
            next.extend(self.state.after(step).map(|state| (at, state)));
        }
        next
    }
}

/// A pseudo-random number for each step.
fn fingerprint(step: usize) -> u128 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let seed = (step as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u128::from(mix(seed)) << 64 | u128::from(mix(!seed))
}
