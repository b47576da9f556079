//! Tokens have to grow with the grants: if one was given before the next was even asked for, the
//! next token is greater, and no two grants of a key share one.

use std::collections::HashMap;

use serde::Serialize;

use super::holds::{Hold, Holds};

/// What is wrong with the tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tokens {
    /// Grants with a token.
    pub given: u64,
    /// Grants without.
    pub missing: u64,
    /// Grants that share their token with another grant of the key.
    pub equal: u64,
    /// Grants whose token is not above one that was given before they were asked for.
    pub reversed: u64,
    /// The first pairs, in words of data.
    pub first: Vec<Pair>,
}

/// Two grants whose tokens do not tell which came later.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The attempt that was granted earlier, and its token.
    pub earlier: (u64, u64),
    /// The attempt that was granted later, and its token.
    pub later: (u64, u64),
}

const TOLD: usize = 100;

impl Tokens {
    /// Whether a fence can tell every pair of holders apart.
    pub fn sound(&self) -> bool {
        self.missing == 0 && self.equal == 0 && self.reversed == 0
    }
}

/// Compares the tokens of each key.
pub fn check(holds: &Holds<'_>) -> Tokens {
    let mut tokens = Tokens::default();
    for (_, holds) in holds.by_key() {
        let granted: Vec<_> = holds.into_iter().filter(|hold| hold.granted.is_some()).collect();
        let (given, missing): (Vec<&Hold<'_>>, Vec<_>) =
            granted.into_iter().partition(|hold| hold.token.is_some());
        tokens.given += given.len() as u64;
        tokens.missing += missing.len() as u64;
        tokens.look_for_equal(&given);
        tokens.look_for_reversed(&given);
    }
    tokens
}

impl Tokens {
    fn look_for_equal(&mut self, holds: &[&Hold<'_>]) {
        let mut seen: HashMap<u64, u64> = HashMap::new();
        for hold in holds {
            let token = hold.token.unwrap_or_default();
            if let Some(other) = seen.insert(token, hold.id) {
                self.equal += 1;
                self.tell((other, token), (hold.id, token));
            }
        }
    }

    /// Asks come in the order of time; beside them walk the grants that were answered before, so
    /// that only the highest token so far has to be kept.
    fn look_for_reversed(&mut self, holds: &[&Hold<'_>]) {
        let mut answered: Vec<_> = holds.iter().collect();
        answered.sort_by_key(|hold| hold.granted);
        let mut answered = answered.into_iter().peekable();
        let mut highest: Option<(u64, u64)> = None;
        for hold in holds {
            while let Some(before) = answered.next_if(|before| before.granted < Some(hold.asked)) {
                let token = before.token.unwrap_or_default();
                if highest.is_none_or(|(_, top)| top < token) {
                    highest = Some((before.id, token));
                }
            }
            let token = hold.token.unwrap_or_default();
            if let Some(earlier) = highest.filter(|(_, top)| *top > token) {
                self.reversed += 1;
                self.tell(earlier, (hold.id, token));
            }
        }
    }

    fn tell(&mut self, earlier: (u64, u64), later: (u64, u64)) {
        if self.first.len() < TOLD {
            self.first.push(Pair { earlier, later });
        }
    }
}
