//! The protected resource: three registers side by side, each with another fence, and the order of
//! their effects.
//!
//! A fence remembers the highest token that it was shown, and refuses lower ones. The register
//! with a fence on writes shows how much that leaves open: a stale holder that writes before the
//! new holder's first write is still accepted.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::history::{EventKind, Register};

/// A read or a write of one register.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RegisterRequest {
    pub(crate) client: String,
    pub(crate) hold: u64,
    pub(crate) register: Register,
    pub(crate) token: Option<u64>,
    /// The value to write; none for a read.
    pub(crate) value: Option<u64>,
}

/// The response to a [`RegisterRequest`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RegisterResponse {
    /// Position in the order of effects.
    pub(crate) seq: u64,
    pub(crate) value: u64,
    pub(crate) refused: bool,
}

/// The three registers.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    seq: u64,
    states: HashMap<Register, RegisterState>,
}

#[derive(Debug, Default)]
struct RegisterState {
    value: u64,
    /// The highest token that the fence was shown.
    fence: u64,
    /// Number of accepted writes.
    version: u64,
    /// The version that each attempt read.
    read: HashMap<u64, u64>,
}

impl Registers {
    /// Executes one read or write. The second value is the event for the history.
    pub(crate) fn execute(&mut self, request: &RegisterRequest) -> (RegisterResponse, EventKind) {
        self.seq += 1;
        let seq = self.seq;
        let RegisterRequest { hold, register, token, .. } = *request;
        let state = self.states.entry(register).or_default();
        let is_fenced = match register {
            Register::Plain => false,
            Register::Write => request.value.is_some(),
            Register::ReadWrite => true,
        };
        // Without a token the fence has nothing to compare, and lets the request pass.
        let shown = token.filter(|_| is_fenced);
        let refused = shown.is_some_and(|token| token < state.fence);
        if !refused {
            state.fence = state.fence.max(shown.unwrap_or(0));
        }
        let kind = match request.value {
            None => {
                state.read.insert(hold, state.version);
                EventKind::Read { hold, register, seq, value: state.value, token, refused }
            }
            Some(value) => {
                let mut stale = false;
                if !refused {
                    stale = state.read.get(&hold).is_some_and(|read| *read != state.version);
                    state.value = value;
                    state.version += 1;
                }
                EventKind::Wrote { hold, register, seq, value, token, refused, stale }
            }
        };
        (RegisterResponse { seq, value: state.value, refused }, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes a request with the attempt's number as its token: whether it was refused, and
    /// whether it was stale.
    fn execute(
        registers: &mut Registers,
        hold: u64,
        register: Register,
        value: Option<u64>,
    ) -> (bool, bool) {
        let client = "A".to_owned();
        let request = RegisterRequest { client, hold, register, token: Some(hold), value };
        match registers.execute(&request).1 {
            EventKind::Wrote { refused, stale, .. } => (refused, stale),
            EventKind::Read { refused, .. } => (refused, false),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_fence_on_both_stops_a_stale_write_before_the_new_holders_first() {
        let mut registers = Registers::default();
        let mut late = Vec::new();
        for register in Register::ALL {
            execute(&mut registers, 1, register, None);
            execute(&mut registers, 2, register, None);
            let (refused, _) = execute(&mut registers, 1, register, Some(1));
            let (_, stale) = execute(&mut registers, 2, register, Some(1));
            late.push((refused, stale));
        }
        assert_eq!(late, [(false, true), (false, true), (true, false)]);
    }
}
