//! Findings of `doctor`: what the checks of a server show.

use std::fmt;

/// The result of one check: the state of its subject, what follows from that, and what to do.
///
/// # Examples
///
/// ```
/// use tenure::{Finding, Severity};
///
/// let finding = Finding::new(Severity::Warning, "persistence", "a restart forgets every lock")
///     .advise("turn the append-only file on");
/// assert_eq!(
///     finding.to_string(),
///     "warning: persistence: a restart forgets every lock; turn the append-only file on"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How serious it is.
    pub severity: Severity,
    /// What was checked, in a word or two.
    pub subject: String,
    /// Its state, and what follows from that.
    pub detail: String,
    /// What to do about it; empty if nothing has to be done.
    pub advice: String,
}

impl Finding {
    /// The result of a check, without advice.
    pub fn new(
        severity: Severity,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) -> Finding {
        let (subject, detail) = (subject.into(), detail.into());
        Finding { severity, subject, detail, advice: String::new() }
    }

    /// The result of a check that found no problem.
    pub fn good(subject: impl Into<String>, detail: impl Into<String>) -> Finding {
        Finding::new(Severity::Good, subject, detail)
    }

    /// This finding, with what to do about it.
    pub fn advise(mut self, advice: impl Into<String>) -> Finding {
        self.advice = advice.into();
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.severity, self.subject, self.detail)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// How serious a [`Finding`] is, from best to worst.
///
/// # Examples
///
/// ```
/// use tenure::Severity;
///
/// assert!(Severity::Fault > Severity::Warning);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Good,
    /// Worth knowing.
    Notice,
    /// A guarantee holds only as long as nothing else goes wrong.
    Warning,
    /// A guarantee does not hold, or no lock can be acquired at all.
    Fault,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Good => "good",
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Fault => "fault",
        })
    }
}
