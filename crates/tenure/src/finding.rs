//! What an examination of a server found: for people, before it bites.

use std::fmt;

/// One thing that was looked at: how it is, what follows from that, and what to do about it.
///
/// # Examples
///
/// ```
/// use tenure::{Finding, Grade};
///
/// let finding = Finding::new(Grade::Warning, "persistence", "none: a restart forgets every lock")
///     .advise("turn the append-only file on");
/// assert_eq!(
///     finding.to_string(),
///     "warning: persistence: none: a restart forgets every lock; turn the append-only file on"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub grade: Grade,
    /// What was looked at, in a word or two.
    pub subject: String,
    /// How it is, and what follows from that.
    pub detail: String,
    /// What to do about it; empty if nothing is to be done.
    pub advice: String,
}

impl Finding {
    /// Something that was looked at.
    pub fn new(grade: Grade, subject: impl Into<String>, detail: impl Into<String>) -> Finding {
        let (subject, detail) = (subject.into(), detail.into());
        Finding { grade, subject, detail, advice: String::new() }
    }

    /// All is well with it.
    pub fn good(subject: impl Into<String>, detail: impl Into<String>) -> Finding {
        Finding::new(Grade::Good, subject, detail)
    }

    /// The same finding with what to do about it.
    pub fn advise(mut self, advice: impl Into<String>) -> Finding {
        self.advice = advice.into();
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.grade, self.subject, self.detail)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// How bad a [`Finding`] is, from best to worst.
///
/// # Examples
///
/// ```
/// use tenure::Grade;
///
/// assert!(Grade::Fault > Grade::Warning);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Grade {
    /// As it should be.
    Good,
    /// Worth knowing.
    Notice,
    /// A promise holds only as long as nothing else goes wrong.
    Warning,
    /// A promise does not hold, or locks cannot be had at all.
    Fault,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Grade::Good => "good",
            Grade::Notice => "notice",
            Grade::Warning => "warning",
            Grade::Fault => "fault",
        })
    }
}
