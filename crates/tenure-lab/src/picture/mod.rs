//! What happened, for the eye: a page for the browser, lines for the terminal, one sentence for both.
//!
//! Everything that a history says is text of strangers: each writer here escapes it for its medium.

mod headline;

pub use self::headline::{duration, headline};
