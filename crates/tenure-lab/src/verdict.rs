//! One word for a run, and whether it is the word that the catalogue expects.

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
    /// Exclusive, and the lock goes on.
    Holds,
    /// Two holders: data without a fence is lost, a fence on reading and writing saves it.
    Overlap,
    /// Two holders and no sound token: not even a fence saves the data.
    Broken,
    /// Exclusive, but stuck until the lease ends.
    Stuck,
    /// Exclusive, but stuck for longer than the lease.
    Longer,
    /// Exclusive, but stuck until an operator comes.
    Forever,
    /// Exclusive, but a figure is above its limit.
    Costly,
    /// The fault cannot happen to this lock.
    Inapplicable,
}

impl Verdict {
    /// All of them, best first.
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

    /// The verdict that a report speaks. Harm to data comes before a lock that is stuck.
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

    /// What it means, for people.
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
        let fits = |verdict: &Verdict| verdict.name() == text || verdict.symbol() == text;
        let Some(verdict) = Verdict::ALL.into_iter().find(fits) else {
            let names: Vec<_> = Verdict::ALL.iter().map(|verdict| verdict.name()).collect();
            bail!("no verdict is called {text:?}; there are {}", names.join(", "));
        };
        Ok(verdict)
    }
}

/// The verdicts that the catalogue expects: one, or several separated by `|`, where the server
/// decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expected(Vec<Verdict>);

impl Expected {
    /// Whether this verdict is one of them.
    pub fn allows(&self, verdict: Verdict) -> bool {
        self.0.contains(&verdict)
    }

    /// All of them.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.0
    }

    /// Whether each of them loses data without a fence.
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

/// How a run came out, measured against what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Measured is expected, also where that is a broken lock.
    AsExpected,
    /// Measured is something else.
    Differs,
    /// The run was not able to show what it should.
    Inconclusive,
    /// The run could not be played here.
    Skipped,
}

impl Outcome {
    /// All of them.
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

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Outcome::AsExpected => "as expected",
            Outcome::Differs => "differs",
            Outcome::Inconclusive => "inconclusive",
            Outcome::Skipped => "skipped",
        }
    }
}

/// The verdict of a run beside the expected one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// What was measured.
    pub measured: Verdict,
    /// What is expected; none if the history names none that exists.
    pub expected: Option<Expected>,
    /// How they compare.
    pub outcome: Outcome,
    /// Why, in words.
    pub why: String,
}

impl Judgement {
    /// Compares what was measured with what the history's header expects.
    ///
    /// A run that should have lost an update of the register without a fence, and did not, proves
    /// nothing: it is inconclusive, not passed.
    pub fn of(header: &Header, report: &Report) -> Judgement {
        let measured = Verdict::of(report);
        let expected: Expected = match header.expected.parse() {
            Ok(expected) => expected,
            Err(error) => {
                let (outcome, why) = (Outcome::Inconclusive, error.to_string());
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
    let allowed = expected.allows(measured);
    (if allowed { Outcome::AsExpected } else { Outcome::Differs }, why)
}
