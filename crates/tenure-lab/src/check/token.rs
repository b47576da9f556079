//! Tokens have to grow with the grants: if a grant came before another one was even requested, the
//! later token is greater, and no two grants of a key have the same token.

use std::collections::HashMap;

use serde::Serialize;

use super::hold::{Hold, Holds};

/// The most pairs that are listed.
const MAX_LISTED: usize = 100;

/// The result of the check of tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tokens {
    /// Number of grants with a token.
    pub given: u64,
    /// Number of grants without a token.
    pub missing: u64,
    /// Number of grants that have the token of an earlier grant of the key.
    pub equal: u64,
    /// Number of grants whose token is below one that was granted before they were requested.
    pub reversed: u64,
    /// The first pairs of grants whose tokens are wrong.
    pub first: Vec<Pair>,
}

/// Two grants whose tokens do not show which came later.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The attempt that was granted earlier, and its token.
    pub earlier: (u64, u64),
    /// The attempt that was granted later, and its token.
    pub later: (u64, u64),
}

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
        tokens.find_equal(&given);
        tokens.find_reversed(&given);
    }
    tokens
}

impl Tokens {
    fn find_equal(&mut self, holds: &[&Hold<'_>]) {
        let mut seen: HashMap<u64, u64> = HashMap::new();
        for hold in holds {
            let token = hold.token.unwrap_or_default();
            if let Some(other) = seen.insert(token, hold.id) {
                self.equal += 1;
                self.add_pair((other, token), (hold.id, token));
            }
        }
    }

    /// Goes over the requests in the order of time, and beside them over the grants that came
    /// before, so that only the highest token so far has to be remembered.
    fn find_reversed(&mut self, holds: &[&Hold<'_>]) {
        let mut granted: Vec<_> = holds.iter().collect();
        granted.sort_by_key(|hold| hold.granted);
        let mut granted = granted.into_iter().peekable();
        let mut highest: Option<(u64, u64)> = None;
        for hold in holds {
            while let Some(before) = granted.next_if(|before| before.granted < Some(hold.requested))
            {
                let token = before.token.unwrap_or_default();
                if highest.is_none_or(|(_, top)| top < token) {
                    highest = Some((before.id, token));
                }
            }
            let token = hold.token.unwrap_or_default();
            if let Some(earlier) = highest.filter(|(_, top)| *top > token) {
                self.reversed += 1;
                self.add_pair(earlier, (hold.id, token));
            }
        }
    }

    fn add_pair(&mut self, earlier: (u64, u64), later: (u64, u64)) {
        if self.first.len() < MAX_LISTED {
            self.first.push(Pair { earlier, later });
        }
    }
}
