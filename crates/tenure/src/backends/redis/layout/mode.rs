//! Modes as texts, in queue entries, grants and arguments: `x`, `s`, or `p<permits>/<limit>`.

use std::fmt;

use crate::backend::Mode;

/// A mode, written as its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModeText(pub(crate) Mode);

impl fmt::Display for ModeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Mode::Exclusive => f.write_str("x"),
            Mode::Shared => f.write_str("s"),
            Mode::Permits { take, of } => write!(f, "p{take}/{of}"),
        }
    }
}

/// Reads a text. What no version of tenure writes counts as exclusive: it is only shown.
pub(crate) fn read(text: &str) -> Mode {
    if text == "s" {
        return Mode::Shared;
    }
    let permits = text.strip_prefix('p').and_then(|numbers| numbers.split_once('/'));
    let permits =
        permits.and_then(|(take, of)| Mode::permits(take.parse().ok()?, of.parse().ok()?).ok());
    permits.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_the_mode_that_it_was_written_of() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::permits(2, 5).unwrap()] {
            assert_eq!(read(&ModeText(mode).to_string()), mode);
        }
        assert_eq!(read("p9/5"), Mode::Exclusive);
    }
}
