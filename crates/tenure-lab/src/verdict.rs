//! The verdict: one word for a run, and whether it is the expected one.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::check::Report;
use crate::check::liveness::Recovery;
use crate::history::Header;

/// What a fault does to a lock.
///
/// # Examples
///
/// ```
/// use tenure_lab::verdict::Verdict;
///
/// let verdict: Verdict = "overlap".parse()?;
/// assert_eq!(verdict, "U".parse()?);
/// assert_eq!(verdict.symbol(), "U");
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Exclusive, and the lock stays available.
    Holds,
    /// Two holders: data without a fence is lost, a fence on reading and writing saves it.
    Overlap,
    /// Two holders and no sound token: not even a fence saves the data.
    Broken,
    /// Exclusive, but stuck until the lease ends.
    Stuck,
    /// Exclusive, but stuck for longer than the lease.
    Longer,
    /// Exclusive, but stuck until an operator intervenes.
    Forever,
    /// Exclusive, but a figure is above its limit.
    Costly,
    /// The fault cannot happen to this lock.
    Inapplicable,
}

impl Verdict {
    /// All verdicts, best first.
    pub const ALL: [Verdict; 8] = [
        Verdict::Holds,
        Verdict::Stuck,
        Verdict::Longer,
        Verdict::Costly,
        Verdict::Overlap,
        Verdict::Forever,
        Verdict::Broken,
        Verdict::Inapplicable,
    ];

    /// The verdict on a report. Harm to data outweighs a lock that is stuck.
    pub fn of(report: &Report) -> Verdict {
        let harmed = report.overlap.certain.count > 0 || report.resource.plain.lost > 0;
        let saved = report.tokens.sound() && report.resource.read_write.lost == 0;
        match report.liveness.worst {
            _ if harmed && saved => Verdict::Overlap,
            _ if harmed => Verdict::Broken,
            Recovery::Never => Verdict::Forever,
            Recovery::Longer => Verdict::Longer,
            Recovery::Lease => Verdict::Stuck,
            Recovery::Soon if report.measured.iter().any(|figure| figure.exceeds()) => {
                Verdict::Costly
            }
            Recovery::Soon => Verdict::Holds,
        }
    }

    /// Its name in histories and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Overlap => "overlap",
            Verdict::Broken => "broken",
            Verdict::Stuck => "stuck",
            Verdict::Longer => "longer",
            Verdict::Forever => "forever",
            Verdict::Costly => "costly",
            Verdict::Inapplicable => "inapplicable",
        }
    }

    /// Its symbol in tables.
    pub fn symbol(self) -> &'static str {
        match self {
            Verdict::Holds => "✔",
            Verdict::Overlap => "U",
            Verdict::Broken => "U!",
            Verdict::Stuck => "T",
            Verdict::Longer => "T+",
            Verdict::Forever => "∞",
            Verdict::Costly => "$",
            Verdict::Inapplicable => "–",
        }
    }

    /// What it means, in a few words.
    pub fn meaning(self) -> &'static str {
        match self {
            Verdict::Holds => "exclusive and live",
            Verdict::Overlap => "two holders; a read+write fence saves the data",
            Verdict::Broken => "two holders and no sound token; nothing saves the data",
            Verdict::Stuck => "exclusive; stuck until the lease ends",
            Verdict::Longer => "exclusive; stuck for longer than the lease",
            Verdict::Forever => "exclusive; stuck until an operator comes",
            Verdict::Costly => "exclusive; costs more than its limit",
            Verdict::Inapplicable => "cannot happen to this lock",
        }
    }

    /// Whether data without a fence is lost.
    pub fn harms(self) -> bool {
        matches!(self, Verdict::Overlap | Verdict::Broken)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Verdict {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Verdict> {
        let matches = |verdict: &Verdict| verdict.name() == text || verdict.symbol() == text;
        let Some(verdict) = Verdict::ALL.into_iter().find(matches) else {
            let names: Vec<_> = Verdict::ALL.iter().map(|verdict| verdict.name()).collect();
            bail!("no verdict is called {text:?}; there are {}", names.join(", "));
        };
        Ok(verdict)
    }
}

/// The expected verdicts: one, or several separated by `|` where the server decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expected(Vec<Verdict>);

impl Expected {
    /// Whether this verdict is among the expected ones.
    pub fn allows(&self, verdict: Verdict) -> bool {
        self.0.contains(&verdict)
    }

    /// The expected verdicts.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.0
    }

    /// Whether data without a fence is lost with each of them.
    pub fn harms(&self) -> bool {
        self.0.iter().all(|verdict| verdict.harms())
    }
}

impl FromStr for Expected {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Expected> {
        let verdicts = text.split('|').map(|name| name.trim().parse());
        Ok(Expected(verdicts.collect::<anyhow::Result<_>>()?))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|verdict| verdict.name()).collect();
        f.pad(&names.join("|"))
    }
}

/// The outcome of a run: its verdict compared with the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The measured verdict is expected, also where the expectation is a broken lock.
    AsExpected,
    /// The measured verdict is another one.
    Differs,
    /// The run was not able to show what it should.
    Inconclusive,
    /// The scenario cannot be run on this machine.
    Skipped,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Outcome; 4] =
        [Outcome::AsExpected, Outcome::Differs, Outcome::Inconclusive, Outcome::Skipped];

    /// The exit code of the program.
    pub fn code(self) -> u8 {
        match self {
            Outcome::AsExpected => 0,
            Outcome::Differs => 1,
            Outcome::Inconclusive => 2,
            Outcome::Skipped => 3,
        }
    }

    /// The outcome in words.
    pub fn text(self) -> &'static str {
        match self {
            Outcome::AsExpected => "as expected",
            Outcome::Differs => "differs",
            Outcome::Inconclusive => "inconclusive",
            Outcome::Skipped => "skipped",
        }
    }
}

/// The verdict of a run, compared with the expected ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The measured verdict.
    pub measured: Verdict,
    /// The expected verdicts; none if the history names one that does not exist.
    pub expected: Option<Expected>,
    /// The outcome of the comparison.
    pub outcome: Outcome,
    /// The reason, in words.
    pub why: String,
}

impl Judgement {
    /// Compares the measured verdict with those that the header of the history expects.
    ///
    /// A run that should have lost an update of the register without a fence, and did not, proves
    /// nothing: it is inconclusive, not as expected.
    pub fn of(header: &Header, report: &Report) -> Judgement {
        let measured = Verdict::of(report);
        let expected: Expected = match header.expected.parse() {
            Ok(expected) => expected,
            Err(error) => {
                let why = error.to_string();
                let outcome = Outcome::Inconclusive;
                return Judgement { measured, expected: None, outcome, why };
            }
        };
        let (outcome, why) = compare(measured, &expected, report);
        Judgement { measured, expected: Some(expected), outcome, why }
    }
}

fn compare(measured: Verdict, expected: &Expected, report: &Report) -> (Outcome, String) {
    if expected.harms() && !report.control.harmed {
        let why = "the register without a fence stayed whole, so the run shows nothing";
        return (Outcome::Inconclusive, why.to_owned());
    }
    if report.granted == 0 && measured == Verdict::Holds {
        return (Outcome::Inconclusive, "the lock was never granted".to_owned());
    }
    let why = format!("{}: {}", measured.name(), measured.meaning());
    let outcome = if expected.allows(measured) { Outcome::AsExpected } else { Outcome::Differs };
    (outcome, why)
}
