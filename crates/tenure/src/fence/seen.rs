//! The two numbers of a fence, and the rule by which they admit and refuse.

use std::fmt;
use std::str::FromStr;

use super::refused::Stale;
use crate::token::FencingToken;

/// The highest tokens that a fence has seen: that of writers, and that of readers. This is the rule
/// of every fence of this module, for a fence of your own.
///
/// A **writer** is refused by any later holder. A **reader** is refused by a later writer only, for
/// the readers of a shared lock hold it together, and each has a token of its own: of two that are
/// alive, the one with the lower token must not be refused because the other came first.
///
/// As text it is the writer's number, and after a `;` the reader's, if there was one.
///
/// # Examples
///
/// ```
/// use tenure::{fence::Seen, FencingToken};
///
/// let [writer, one, other, next] = [7, 8, 9, 10].map(|n| FencingToken::new(n).unwrap());
/// let mut seen = Seen::default();
/// seen.admit(writer)?;
/// seen.admit_shared(other)?;
/// seen.admit_shared(one)?; // both are alive
/// assert_eq!(seen.to_string(), "7;9");
/// let stale = seen.admit(writer).unwrap_err();
/// assert_eq!(stale.to_string(), "token 7 is stale: 9 was here before, as a reader");
/// seen.admit(next)?;
/// assert!(seen.admit_shared(other).is_err());
/// # Ok::<(), tenure::fence::Stale>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    exclusive: Option<FencingToken>,
    shared: Option<FencingToken>,
}

impl Seen {
    /// A fence that has seen no token.
    pub const fn new() -> Seen {
        Seen { exclusive: None, shared: None }
    }

    /// A fence that has seen these.
    pub(super) const fn of(exclusive: Option<FencingToken>, shared: Option<FencingToken>) -> Seen {
        Seen { exclusive, shared }
    }

    /// Admits this token of a writer, and from now on no lower one.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a writer or a reader with a higher token was here before.
    pub fn admit(&mut self, token: FencingToken) -> Result<(), Stale> {
        self.check(token)?;
        self.exclusive = Some(token);
        Ok(())
    }

    /// Admits this token of a reader, and from now on no lower one of a writer.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a writer with a higher token was here before.
    pub fn admit_shared(&mut self, token: FencingToken) -> Result<(), Stale> {
        self.check_shared(token)?;
        self.shared = self.shared.max(Some(token));
        Ok(())
    }

    /// Whether a writer would be admitted.
    pub(super) fn check(&self, token: FencingToken) -> Result<(), Stale> {
        if let Some(reader) = self.shared.filter(|_| self.shared > self.exclusive) {
            Stale::check_reader(token, reader)?;
        }
        self.check_shared(token)
    }

    /// Whether a reader would be admitted.
    pub(super) fn check_shared(&self, token: FencingToken) -> Result<(), Stale> {
        self.exclusive.map_or(Ok(()), |writer| Stale::check(token, writer))
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.exclusive.map_or(0, FencingToken::get))?;
        match self.shared {
            Some(shared) => write!(f, ";{shared}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Seen {
    type Err = crate::error::Error;

    fn from_str(text: &str) -> Result<Seen, Self::Err> {
        let Some((exclusive, shared)) = text.split_once(';') else {
            return Ok(Seen { exclusive: Some(text.parse()?), shared: None });
        };
        // Readers alone have been here.
        let exclusive = if exclusive == "0" { None } else { Some(exclusive.parse()?) };
        Ok(Seen { exclusive, shared: Some(shared.parse()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    /// One holder of a random history.
    #[derive(Clone, Copy)]
    struct Holder {
        token: FencingToken,
        is_reader: bool,
        is_live: bool,
    }

    /// Xorshift: the same histories every time.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % below
    }

    /// The next grant: a reader comes to readers, everything else ends all who hold. Those stay,
    /// paused, and show their tokens late.
    fn grant(holders: &mut Vec<Holder>, state: &mut u64) {
        let is_reader = random(state, 3) > 0;
        if !is_reader || holders.iter().any(|holder| holder.is_live && !holder.is_reader) {
            holders.iter_mut().for_each(|holder| holder.is_live = false);
        }
        let token = token(holders.len() as u64 + 1);
        holders.push(Holder { token, is_reader, is_live: true });
    }

    #[test]
    fn no_live_holder_is_refused_and_no_stale_one_admitted_after_a_later_one() {
        let state = &mut 0x9e37_79b9_7f4a_7c15;
        for history in 0..20_000 {
            let (mut holders, mut shown) = (Vec::new(), Vec::<Holder>::new());
            let mut seen = Seen::new();
            for _ in 0..12 {
                if holders.is_empty() || random(state, 3) == 0 {
                    grant(&mut holders, state);
                }
                let holder = holders[random(state, holders.len() as u64) as usize];
                let conflicts = |later: &&Holder| {
                    later.token > holder.token && !(later.is_reader && holder.is_reader)
                };
                let later = shown.iter().find(conflicts);
                let outcome = if holder.is_reader {
                    seen.admit_shared(holder.token)
                } else {
                    seen.admit(holder.token)
                };
                assert!(outcome.is_ok() || !holder.is_live, "{history}: {outcome:?}");
                assert_eq!(outcome.is_ok(), later.is_none(), "{history}: {outcome:?}");
                shown.extend(outcome.is_ok().then_some(holder));
            }
        }
    }

    #[test]
    fn the_refusal_names_the_higher_of_the_two_numbers() {
        let refusal = |text: &str| {
            let mut seen: Seen = text.parse().unwrap();
            assert_eq!(seen.to_string(), text);
            let stale = seen.admit(token(7)).unwrap_err();
            (stale.seen().get(), stale.is_by_reader())
        };
        assert_eq!(refusal("8"), (8, false));
        assert_eq!(refusal("0;8"), (8, true));
        assert_eq!(refusal("7;8"), (8, true));
        assert_eq!(refusal("9;8"), (9, false));
        assert_eq!(refusal("8;8"), (8, false));
        assert_eq!(refusal("8;9"), (9, true));
    }

    #[test]
    fn a_text_that_no_fence_writes_is_refused() {
        for garbage in ["", ";", "0", "0;", "8;", ";8", "8;0", "8;9;10", "8 9", "-1;2"] {
            assert!(garbage.parse::<Seen>().is_err(), "{garbage}");
        }
    }
}
